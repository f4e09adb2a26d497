"""For all tests: no deadline for property tests and one thread for sums, so that a busy machine is no failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

# Models of tests are small: a second thread of torch or of NumPy's BLAS has little to do but to wait for the first, and
# where another program has its core, that takes ten times as long. Read when the libraries are loaded.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A program in the background ignores Ctrl-C and hands that on to those it starts; those of tests are to be stopped.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So it is with nohup and a hang-up; what has a handler here is at its default in those that are started.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

settings.register_profile("handbook", deadline=None)
settings.load_profile("handbook")


# Tests that build the book, export notebooks or drive a browser share what they made: one process has them all.
_OF_THE_BOOK = ("tests/browser/", "tests/site/")


class _ByFile(LoadScopeScheduling):
    """Where several processes share the tests (``-n``), those of a file stay together, and all that build the book."""

    def _split_scope(self, nodeid: str) -> str:
        return "book" if nodeid.startswith(_OF_THE_BOOK) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest group begins at once."""
    items.sort(key=lambda item: not item.nodeid.startswith(_OF_THE_BOOK))  # stable


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser_page import launched  # here, so that tests without a browser need no Playwright

    with launched() as found:
        yield found
