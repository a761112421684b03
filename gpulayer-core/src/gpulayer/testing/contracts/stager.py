"""The contract of stagers, as tests."""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from gpulayer.plugins.contracts.stager import StageFailed, Stager, StageSite
from gpulayer.testing.contracts.contract import Ask, SharedContract, check_line, check_plain_name, within

__all__ = ["StagerContract"]


class StagerContract(SharedContract):
    """``class TestMine(StagerContract)`` with the fixtures ``stager``, ``uri`` (of something small that is there) and
    ``missing_uri`` (of something that is not)."""

    deadline_s: ClassVar[float] = 60.0  # of something small

    @pytest.fixture
    def stager(self) -> Stager:
        raise NotImplementedError("a fixture `stager` gives the stager to be tested")

    @pytest.fixture
    def uri(self) -> str:
        raise NotImplementedError("a fixture `uri` names something small that can be fetched")

    @pytest.fixture
    def missing_uri(self) -> str:
        raise NotImplementedError("a fixture `missing_uri` names something that is not there")

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return {"PATH": "/usr/bin:/bin"}

    @pytest.fixture
    def make_site(self, tmp_path: Path, environment: Mapping[str, str]) -> Callable[..., StageSite]:
        """``make_site()``: another one, with an empty folder."""
        lock, made = threading.Lock(), [0]

        def make(*, is_cancelled: bool = False) -> StageSite:
            with lock:
                made[0] += 1
                folder = tmp_path / "inputs" / str(made[0])
                folder.mkdir(parents=True)
            return StageSite(folder, environment, progress=_check_progress, is_cancelled=lambda: is_cancelled)

        return make

    @pytest.fixture
    def ask(self, stager: Stager, uri: str, make_site: Callable[..., StageSite]) -> Ask:
        return lambda: stager.fetch(uri, make_site())

    def test_it_is_a_stager_of_one_plain_scheme(self, stager: Stager, uri: str) -> None:
        assert isinstance(stager, Stager), "a stager has a scheme and a method fetch"
        check_plain_name(stager.scheme)
        assert uri.lower().startswith(f"{stager.scheme}:"), "the URI of this test is of another scheme"

    def test_what_it_fetches_is_there_and_can_be_read(self, ask: Ask) -> None:
        path = within(self.deadline_s, ask)
        assert isinstance(path, Path), f"fetch gave a {type(path).__name__}"
        assert path.is_absolute(), f"{path} depends on the current folder"
        assert os.access(path, os.R_OK), f"{path} can't be read"

    def test_fetching_again_gives_the_same_content(self, ask: Ask) -> None:
        assert _content(within(self.deadline_s, ask)) == _content(within(self.deadline_s, ask))

    def test_it_writes_in_its_own_folder_alone(
        self, stager: Stager, uri: str, make_site: Callable[..., StageSite]
    ) -> None:
        neighbour, site = make_site(), make_site()
        within(self.deadline_s, lambda: stager.fetch(uri, site))
        assert list(neighbour.folder.iterdir()) == []
        assert {path.name for path in site.folder.parent.iterdir()} == {neighbour.folder.name, site.folder.name}

    def test_what_is_not_there_is_the_users_mistake_and_named(
        self, stager: Stager, missing_uri: str, make_site: Callable[..., StageSite]
    ) -> None:
        with pytest.raises(StageFailed) as failed:
            within(self.deadline_s, lambda: stager.fetch(missing_uri, make_site()))
        check_line(failed.value.message.partition("\n")[0], "the message")
        assert failed.value.is_users, "another machine would not find it either"

    @pytest.mark.parametrize(
        "rest", ["", "//", "///\udcff", "//[", "not/absolute", "//host:port/x", "///a?b#c", "///%00"]
    )
    def test_a_uri_that_makes_no_sense_is_refused_and_nothing_else(
        self, rest: str, stager: Stager, make_site: Callable[..., StageSite]
    ) -> None:
        try:
            found = within(self.deadline_s, lambda: stager.fetch(f"{stager.scheme}:{rest}", make_site()))
        except StageFailed as failed:
            check_line(failed.message.partition("\n")[0], "the message")
            return
        assert isinstance(found, Path)

    def test_a_fetch_that_is_cancelled_ends(
        self, stager: Stager, uri: str, make_site: Callable[..., StageSite]
    ) -> None:
        try:
            within(self.deadline_s, lambda: stager.fetch(uri, make_site(is_cancelled=True)))
        except StageFailed:
            return


def _check_progress(done: int, total: int | None) -> None:
    assert isinstance(done, int), "progress is in bytes"
    assert done >= 0
    assert total is None or done <= total, f"{done} of {total}"


def _content(path: Path) -> object:
    if path.is_file():
        return path.read_bytes()
    return {str(below.relative_to(path)): below.read_bytes() for below in path.rglob("*") if below.is_file()}
