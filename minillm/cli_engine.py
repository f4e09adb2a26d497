"""Options of the command ``minillm generate`` that say how the engine works, and the trace of what it did."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from minillm.core.config import EngineConfig
from minillm.core.engine import Engine
from minillm.core.observe.chrome_trace import chrome_trace
from minillm.files import write_whole


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    default = EngineConfig()
    parser.add_argument("--block-size", type=int, default=default.block_size, help="tokens in a KV block (%(default)s)")
    parser.add_argument("--kv-blocks", type=int, metavar="N", help="KV blocks (default: as memory allows)")
    parser.add_argument(
        "--chunk-size", type=int, metavar="N", help="most tokens of one prompt in a step (default: the step's budget)"
    )
    parser.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt whole")
    parser.add_argument("--overlap", action="store_true", help="plan the next step while one runs")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write what the engine decided, for Perfetto or chrome://tracing"
    )


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """The engine that the options ask for; ``ValueError`` for a value that cannot be, ``OSError`` for a bad path."""
    if options.kv_blocks is not None and options.kv_blocks < 1:
        raise ValueError(f"--kv-blocks is {options.kv_blocks}, it must be at least 1")
    if options.trace is not None and not options.trace.parent.is_dir():
        raise FileNotFoundError(f"--trace {options.trace}: there is no folder {options.trace.parent}, make it first")
    if options.trace is not None and options.trace.is_dir():
        raise IsADirectoryError(f"--trace {options.trace} is a folder: name a file in it")
    return EngineConfig(
        block_size=options.block_size,
        num_blocks=None if options.kv_blocks is None else options.kv_blocks + 1,  # and the null block
        chunk_size=options.chunk_size,
        prefix_caching=not options.no_prefix_cache,
        overlap=int(options.overlap),
        max_model_len=options.max_model_len,
        record_trace=options.trace is not None,
    )


def write_trace(engine: Engine, path: Path) -> None:
    """All decisions of the run as Chrome trace JSON; where it cannot be written whole, the file stays as it was."""
    write_whole(path, json.dumps(chrome_trace(engine.trace.events)))
