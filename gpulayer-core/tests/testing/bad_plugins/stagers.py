"""Stagers."""

import itertools
from pathlib import Path

import pytest

from bad_plugins.caught import for_ever, given, hanging
from gpulayer.plugins import StageFailed
from gpulayer.plugins.builtin.file import FileStager
from gpulayer.testing import StagerContract


class StagerContractHere(StagerContract):
    @pytest.fixture
    def uri(self, tmp_path):
        (tmp_path / "data").write_text("x")
        return (tmp_path / "data").as_uri()

    @pytest.fixture
    def missing_uri(self, tmp_path):
        return (tmp_path / "nowhere").as_uri()


def stager(test):
    return given(StagerContractHere, "stager", test)


@stager("plain_scheme")
class StagerOfColons(FileStager):
    scheme = "file:"


@stager("can_be_read")
class StagerOfPromises(FileStager):
    def fetch(self, uri, site):
        return Path("relative")


@stager("same_content")
class StagerThatCounts(FileStager):
    count = itertools.count()

    def fetch(self, uri, site):
        super().fetch(uri, site)
        (site.folder / "data").write_text(str(next(self.count)))
        return site.folder / "data"


@stager("in_its_own_folder")
class StagerOfSharedFolders(FileStager):
    def fetch(self, uri, site):
        (site.folder.parent / "cache").mkdir(exist_ok=True)
        return super().fetch(uri, site)


@stager("users_mistake")
class StagerThatBlamesMachines(FileStager):
    def fetch(self, uri, site):
        try:
            return super().fetch(uri, site)
        except StageFailed as failed:
            raise StageFailed(failed.message, is_users=False) from None


@stager("makes_no_sense")
class StagerThatTrusts(FileStager):
    def fetch(self, uri, site):
        path = Path(uri.removeprefix("file://"))
        if not path.exists():
            raise StageFailed(f"{path} is not there") if "nowhere" in uri else FileNotFoundError(uri)
        return path


@hanging(StagerContractHere, "stager")
class StagerForEver(FileStager):
    fetch = for_ever
