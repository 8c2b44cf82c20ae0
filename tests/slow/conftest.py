"""A browser for the tests of pages."""

from collections.abc import Callable, Iterator

import pytest

from browser import Tab, browser


@pytest.fixture(scope="module")
def tabs() -> Iterator[Callable[[], Tab]]:
    with browser() as tab:
        yield tab
