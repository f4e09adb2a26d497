"""For all tests: no deadline for property tests and one thread for sums, so that a busy machine is no failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Models of tests are small: a second thread of torch or of NumPy's BLAS has little to do but to wait for the first, and
# where another program has its core, that takes ten times as long. Read when the libraries are loaded.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A program in the background ignores Ctrl-C and hands that on to those it starts; those of tests are to be stopped.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("handbook", deadline=None)
settings.load_profile("handbook")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser_page import launched  # here, so that tests without a browser need no Playwright

    with launched() as found:
        yield found
