"""What is remembered of trees is bounded by what they hold, not by their number."""

import asyncio

import pytest

from gpulayer.errors import NotFound
from gpulayer.server.trees import TreeDigests


def _tree(name: str, size: int) -> frozenset[str]:
    return frozenset(f"{name}{number}" for number in range(size))


def test_the_trees_not_asked_for_longest_are_forgotten_first_and_the_newest_is_kept_whatever_its_size() -> None:
    loaded: list[str] = []

    async def scenario() -> None:
        trees = TreeDigests(kept=10)

        async def of(name: str, size: int) -> None:
            async def load() -> frozenset[str]:
                loaded.append(name)
                return _tree(name, size)

            assert await trees.of(name, load) == _tree(name, size)

        await of("a", 4)
        await of("b", 4)
        await of("a", 4)
        await of("c", 4)  # forgets b
        await of("a", 4)
        await of("b", 4)  # forgets c
        assert loaded == ["a", "b", "c", "b"]
        await of("huge", 50)
        await of("huge", 50)
        await of("a", 4)
        assert loaded == ["a", "b", "c", "b", "huge", "a"]
        trees.keep("a", _tree("a", 4))
        trees.keep("d", _tree("d", 6))
        await of("a", 4)
        assert loaded[-1] == "a"
        assert len(loaded) == 6

    asyncio.run(scenario())


def test_requests_for_one_tree_read_it_once_and_a_failure_is_not_remembered() -> None:
    loaded: list[int] = []

    async def scenario() -> None:
        trees = TreeDigests()

        async def fail() -> frozenset[str]:
            raise NotFound("no tree")

        async def load() -> frozenset[str]:
            loaded.append(1)
            await asyncio.sleep(0)
            return _tree("a", 3)

        with pytest.raises(NotFound):
            await trees.of("a", fail)
        found = await asyncio.gather(*(trees.of("a", load) for _ in range(5)))
        assert set(found) == {_tree("a", 3)}

    asyncio.run(scenario())
    assert loaded == [1]
