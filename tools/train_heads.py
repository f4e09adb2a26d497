"""Trains the draft heads of the bundled `tiny` (Medusa, EAGLE-style, multi-token prediction) into `minillm/assets`.

    python tools/train_heads.py           train all three, export, measure (about 15 minutes on one core)
    python tools/train_heads.py --cards   measure what is shipped, and write the cards anew

On the text of `tools/train_tiny.py`. A kind whose checkpoint is in `--work` is not trained again. Needs torch and
tokenizers.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED = 20260101

# As in `train_tiny.py`: large blocks are kept between steps.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def main() -> None:
    """Parse the options and run the stages that are not done yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "train", help="checkpoints and text")
    parser.add_argument("--cards", action="store_true", help="train and export nothing")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})  # noqa: S606

    sys.path.insert(0, str(ROOT))
    from tiny_heads import pipeline

    models = ROOT / "minillm" / "assets" / "models"
    pipeline.run(options.work, models, options.threads, SEED, only_cards=options.cards)


if __name__ == "__main__":
    main()
