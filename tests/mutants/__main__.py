"""``python -m mutants``: kill every mutant, print a table, and fail if one survives or takes a minute.

``--of WORD`` takes those alone whose name or test has the word in it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from types import FrameType

from mutants import MUTANTS
from mutants.invariants import INVARIANTS
from mutants.registry import kill

LIMIT_S = 60


def _too_long(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"not killed within {LIMIT_S} s")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--of", default="", metavar="WORD", help="only mutants whose name or test has WORD in it")
    word = parser.parse_args().of
    chosen = [mutant for mutant in MUTANTS if word in mutant.fault or word in mutant.killer.test]
    if not chosen:
        print(f"no mutant's name or test has {word!r} in it", file=sys.stderr)
        return 2
    signal.signal(signal.SIGALRM, _too_long)
    width = max(len(mutant.fault) for mutant in chosen)
    survivors, started = [], time.perf_counter()
    print(f"{'mutant':{width}}  seconds  killed by")
    for mutant in chosen:
        began = time.perf_counter()
        signal.alarm(LIMIT_S)
        try:
            found = kill(mutant)
            verdict = f"{mutant.killer.named(found.case)}: {found.error.splitlines()[0][:80]}"
        except Exception as error:  # it survived, took too long, or its edit makes no program
            survivors.append(mutant.fault)
            verdict = f"NOT KILLED: {type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        print(f"{mutant.fault:{width}}  {time.perf_counter() - began:7.2f}  {verdict}", flush=True)
    broken = [name for name, one in INVARIANTS.items() if set(one.faults) & {mutant.fault for mutant in chosen}]
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed in {time.perf_counter() - started:.0f} s; "
        f"they break {len(broken)} of {len(INVARIANTS)} invariants"
    )
    for fault in survivors:
        print(f"not killed: {fault}")
    return 1 if survivors else 0


sys.exit(main())
