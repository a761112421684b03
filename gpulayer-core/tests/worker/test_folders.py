"""Folders that others have filled: emptied whatever they made of them, or it is said that they could not be."""

import os

import pytest

from gpulayer.worker import folders
from gpulayer.worker.folders import emptied, remove, write_out

NOBODY = 65_534


@pytest.fixture
def as_anybody(tmp_path, monkeypatch):
    """As a user to whom modes mean something, at home in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    if os.geteuid():
        yield tmp_path.relative_to(tmp_path)
        return
    os.chown(tmp_path, NOBODY, -1)
    os.seteuid(NOBODY)
    try:
        yield tmp_path.relative_to(tmp_path)
    finally:
        os.seteuid(0)


def test_what_was_made_read_only_goes_too(as_anybody):
    folder = as_anybody / "it"
    (folder / "below" / "deep").mkdir(parents=True)
    (folder / "below" / "deep" / "file").touch()
    (as_anybody / "other").mkdir(mode=0o500)
    (folder / "below" / "link").symlink_to(as_anybody.absolute() / "other")
    for made in (folder / "below" / "deep", folder / "below", folder):
        made.chmod(0o500)
    assert emptied(folder) == folder
    assert list(folder.iterdir()) == []
    assert (as_anybody / "other").stat().st_mode & 0o777 == 0o500
    remove(folder)
    remove(folder)
    assert not folder.exists()


def test_a_link_in_its_place_goes_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "it").symlink_to("other")
    assert list(emptied(tmp_path / "it").iterdir()) == []
    assert (tmp_path / "other" / "file").exists()


def test_what_can_not_be_removed_is_said(tmp_path, monkeypatch):
    def stays(path):
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr(folders.shutil, "rmtree", stays)
    with pytest.raises(OSError, match="busy"):
        emptied(tmp_path)


@pytest.mark.parametrize("stragglers", [1, 4, 5])
def test_what_somebody_still_makes_in_it_meanwhile_goes_too_or_it_is_said(tmp_path, monkeypatch, stragglers):
    folder = tmp_path / "it"
    folder.mkdir()
    rmdir, left = os.rmdir, [*range(stragglers)]

    def beaten(path, **how):
        if left:
            (folder / f"late{left.pop()}").touch()
        rmdir(path, **how)

    monkeypatch.setattr(os, "rmdir", beaten)
    if stragglers < 5:
        assert list(emptied(folder).iterdir()) == []
    else:
        with pytest.raises(OSError, match="not empty"):
            remove(folder)


def test_what_is_written_out_is_there_or_it_is_said(tmp_path):
    write_out(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        write_out(tmp_path / "none")
