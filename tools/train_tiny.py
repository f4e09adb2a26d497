"""Trains the two bundled models, `tiny` and `tiny-draft`, and writes them to `minillm/assets`.

    python tools/train_tiny.py            fetch the text, train both, export (about an hour on 2 cores)
    python tools/train_tiny.py --export   export what the checkpoints hold, without training

A second call resumes from the last checkpoint in `--work`. Needs torch and tokenizers.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED = 20260101

# glibc gives large blocks back to the system after every step and faults them in again; keeping
# them makes a step about a fifth faster. It must be set before the process starts.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**33)}


def main() -> None:
    """Parse the options and run the stages that are not done yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "train", help="checkpoints and text")
    parser.add_argument("--out", type=Path, default=ROOT / "minillm" / "assets" / "models")
    parser.add_argument("--export", action="store_true", help="do not train, export checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="a sentence on this run for the model cards")
    options = parser.parse_args()

    if any(os.environ.get(name) != value for name, value in MALLOC.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})  # noqa: S606

    from tiny_lm import pipeline

    pipeline.run(options.work, options.out, options.threads, SEED, train_models=not options.export, note=options.note)


if __name__ == "__main__":
    main()
