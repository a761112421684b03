"""Scenes as fixtures, for the tests of this folder. What they are is in ``scene``."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kills.scene import Scene, scenes


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """What is left to chance in a test. Its seed stands in the output of a test that fails."""
    seed = request.config.getoption("--seed")
    print(f"the same again: --seed {seed}")
    return random.Random(seed)


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with scenes(tmp_path) as make:
        yield make


@pytest.fixture
def scene(make_scene: Callable[..., Scene]) -> Scene:
    made = make_scene()
    made.plane.start()
    return made


@pytest.fixture(scope="module")
def shared_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One for the tests of a module, whose kills leave it as it was."""
    with scenes(tmp_path_factory.mktemp("shared")) as make:
        made = make()
        made.plane.start()
        yield made
