"""What holds for every test: Hypothesis draws the same examples each time, so a run tells of the code alone.

``HYPOTHESIS_PROFILE=search`` looks for new ones (``make soak`` does). ``--seed`` is for what tests leave to chance
themselves.
"""

import os

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Hypothesis has a ``--hypothesis-seed`` of its own."""
    group = parser.getgroup("gpulayer")
    group.addoption("--seed", type=int, default=1, help="of the tests that kill at random moments (default: 1)")
    group.addoption("--kills", type=int, default=1000, help="how many of them under -m soak (default: 1000)")
