"""For all tests: property tests have no deadline, since a busy machine is no failure; a Chromium for who asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("handbook", deadline=None)
settings.load_profile("handbook")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser_page import launched  # here, so that tests without a browser need no Playwright

    with launched() as found:
        yield found
