"""Networks for the tests of this folder, which are skipped where none can be made."""

import functools
from collections.abc import Iterator

import pytest

from tests.net.lab import Lab, missing

_why_not = functools.cache(missing)


@pytest.fixture
def lab() -> Iterator[Lab]:
    if why := _why_not():
        pytest.skip(why)
    with Lab() as made:
        yield made
