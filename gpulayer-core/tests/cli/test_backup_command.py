"""The file of a backup: whole and under its name, or nothing, and nobody else's file is touched."""

import errno
import os
import signal
import subprocess
import threading

import pytest

from gpulayer.cli import backup as command
from gpulayer.errors import StorageUnavailable
from gpulayer.server.store import Store


@pytest.fixture
def state(tmp_path, monkeypatch):
    folder = tmp_path / "stopped"
    folder.mkdir(mode=0o700)
    Store(str(folder / "store.db")).close()
    (folder / "pepper").write_bytes(b"p" * 32)
    monkeypatch.chdir(tmp_path)
    return folder


def names(folder):
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_what_lies_beside_it_is_left_alone(cli, state, tmp_path):
    (tmp_path / "kept.part").write_bytes(b"mine")
    (tmp_path / "other.part").symlink_to("victim")
    before = names(tmp_path)
    for file in ("kept", "other"):
        said = cli("backup", file, "--state", str(state))
        assert said.code == 0, said.err
    assert names(tmp_path) - before == {"kept", "other"}
    assert (tmp_path / "kept.part").read_bytes() == b"mine"
    assert not (tmp_path / "victim").exists()


def test_of_two_to_one_name_the_first_is_kept_whole_and_the_other_says_so(cli, state, tmp_path, monkeypatch):
    real, seconds = command._give_name, []

    def meanwhile(making, path):
        monkeypatch.setattr(command, "_give_name", real)
        real(making, path)
        seconds.append(path.read_bytes())
        # The other one was looking before there was anything of that name.
        with pytest.raises(command.UsageError, match="is there already"):
            command._write(path, lambda _: iter([seconds[0]]))

    monkeypatch.setattr(command, "_give_name", meanwhile)
    assert cli("backup", "kept", "--state", str(state)).code == 0
    assert (tmp_path / "kept").read_bytes() == seconds[0]
    assert names(tmp_path) == {"kept"}


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_where_there_are_no_links_it_gets_its_name_all_the_same_and_takes_nobodys(
    cli, state, tmp_path, monkeypatch, number
):
    def link(_source, _target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(command.os, "link", link)
    assert cli("backup", "kept", "--state", str(state)).code == 0
    content = (tmp_path / "kept").read_bytes()
    with pytest.raises(command.UsageError, match="is there already"):
        command._write(tmp_path / "kept", lambda _: iter([content]))
    assert (tmp_path / "kept").read_bytes() == content
    assert names(tmp_path) == {"kept"}


def test_its_name_is_durable_before_anybody_is_told_and_gone_where_that_fails(cli, state, tmp_path, monkeypatch):
    synced = []

    def path(_self, where):
        synced.append((where, names(tmp_path)))
        raise OSError(errno.EIO, "I/O error", str(where))

    monkeypatch.setattr(command.Syncs, "path", path)
    said = cli("backup", "kept", "--state", str(state))
    assert said.code == 6, said.err
    (where, there) = synced[-1]
    assert "kept" in there
    assert os.path.samefile(where, tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("file", ["-", "", ".", "..", "new/", "stopped"])
def test_what_names_no_file_is_refused(cli, state, tmp_path, file):
    said = cli("backup", file, "--state", str(state))
    assert (said.code, "is not the name of a file" in said.err) == (2, True)
    assert names(tmp_path) == set()


def test_a_folder_that_is_not_there_is_named_as_it_was_given(cli, state, tmp_path):
    said = cli("backup", tmp_path / "gone" / "kept", "--state", str(state))
    assert said.code == 2
    assert said.err == f"error: {tmp_path}/gone is no folder\n hint: make it first, or name another FILE\n"


def test_what_can_not_be_made_is_told_by_the_name_that_was_given(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/.gpulayer-backup-x.part")

    monkeypatch.setattr(command.os, "open", refuse)
    with pytest.raises(StorageUnavailable, match=f"{tmp_path}/kept: Permission"):
        command._write(tmp_path / "kept", lambda _: iter(()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_who_is_told_to_end_leaves_nothing(program, state, tmp_path, number):
    os.mkfifo(state / "own-port")  # no file of ours, so it is left out
    blobs = state / "blobs" / "aa"
    blobs.mkdir(parents=True)
    with open(blobs / ("b" * 62), "wb") as large:
        large.truncate(8 * 2**30)
    backup = program("backup", "kept", "--state", str(state), cwd=tmp_path, stderr=subprocess.PIPE)
    while not names(tmp_path):
        assert backup.poll() is None, backup.stderr.read()
        threading.Event().wait(0.01)
    backup.send_signal(number)
    assert backup.wait(20) in (128 + number, 130)
    assert names(tmp_path) == set()
    assert not [path.name for path in state.iterdir() if path.name.startswith("backup-")]
