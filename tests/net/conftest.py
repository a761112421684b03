"""Networks for the tests of this folder, which are skipped where none can be made."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.net.lab import Lab, missing
from tests.net.town import Town

_why_not = functools.cache(missing)


@pytest.fixture(autouse=True)
def _networks() -> None:
    if why := _why_not():
        pytest.skip(why)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.fixture
def town(lab: Lab, tmp_path: Path) -> Iterator[Town]:
    """A server, and what a test adds to it. Nothing that was started may be left at the end."""
    made = Town(lab, tmp_path)
    yield made
    made.close()
