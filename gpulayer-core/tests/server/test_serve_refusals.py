"""A start that is refused says so in one line, and leaves what it found."""

import errno
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from gpulayer.client.embedded import is_stale
from gpulayer.errors import DiskFull, StorageUnavailable, UsageError
from gpulayer.server import ServeSettings, serve
from gpulayer.server.auth import load_pepper
from gpulayer.server.folder import EndpointKeeper, unusable
from gpulayer.server.settings import Layout
from gpulayer.server.store import Store
from tests.served import WORKER, until_it_is


def test_a_damaged_pepper_is_refused_in_one_line_and_not_replaced(serving, tmp_path) -> None:
    pepper = tmp_path / "state" / "pepper"
    pepper.parent.mkdir(mode=0o700)
    Store(str(pepper.with_name("store.db"))).close()
    pepper.write_bytes(b"p" * 31)
    command = (sys.executable, "-c", WORKER)
    code, said = serving(worker_command=command).wait()
    assert code == 1
    assert said.startswith(f"{pepper} is damaged: 31 bytes instead of 32 (put it back from a backup")
    assert said.count("\n") == 1
    assert pepper.read_bytes() == b"p" * 31


def test_a_state_folder_that_can_not_be_used_is_said_in_one_line(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="can't be used"):
            serve(ServeSettings(folder, port=0))


@pytest.mark.parametrize("name", ["plane.lock", "endpoint.json", "logs", "blobs"])
def test_something_else_in_the_place_of_its_files_is_named_with_what_to_do(serving, tmp_path, name) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    path = state / name
    path.touch() if name in ("logs", "blobs") else path.mkdir()
    code, said = serving().wait()
    assert code == 1, said
    assert str(path) in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "mode and owner"),
        (errno.EPERM, "mode and owner"),
        (errno.EISDIR, "move it away"),
        (errno.EIO, "disk"),
    ],
)
def test_a_file_that_can_not_be_used_comes_with_what_to_do(tmp_path, number, advice) -> None:
    error = unusable(tmp_path / "plane.lock", OSError(number, os.strerror(number)))
    assert error.message == f"{tmp_path}/plane.lock can't be used: {os.strerror(number)}"
    assert advice in error.hint


def test_a_pepper_that_can_not_be_read_comes_with_what_to_do(tmp_path) -> None:
    (tmp_path / "pepper").mkdir()
    with pytest.raises(StorageUnavailable, match="pepper can't be used: Is a directory") as caught:
        load_pepper(Layout(tmp_path))
    assert "move it away" in caught.value.hint


def test_a_lock_of_another_user_is_told_in_words(tmp_path, monkeypatch) -> None:
    def refuse(layout):
        raise PermissionError(errno.EACCES, "Permission denied", str(layout.lock))

    monkeypatch.setattr(sys.modules["gpulayer.server.serve"], "locked", refuse)
    with pytest.raises(StorageUnavailable, match=r"plane\.lock can't be used: Permission denied") as caught:
        serve(ServeSettings(tmp_path, port=0))
    assert "sudo" in caught.value.hint


LEFT = {"schema": 1, "url": "http://127.0.0.1:9", "token": "t", "version": "0.1.0", "embedded": False}


@pytest.fixture
def left(tmp_path) -> bytes:
    """What a plane of ``gpulayer up`` left that was killed; how it was started stands in it alone."""
    process = subprocess.Popen(["true"])
    process.wait()
    content = json.dumps({**LEFT, "pid": process.pid, "restart": ["plane", "--state", "s", "--mode", "standing"]})
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "endpoint.json").write_text(content)
    return content.encode()


def fail(*_args: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def fail_later(*_args: object) -> None:
    raise DiskFull("database or disk is full")


@pytest.mark.parametrize(
    "step", ["set_aside", "reach_of", "raise_file_limit", "_start_worker", "_first_commit", "write"]
)
def test_a_start_that_fails_leaves_the_endpoint_file_of_the_plane_that_was_killed(
    tmp_path, left, monkeypatch, step
) -> None:
    where = EndpointKeeper if step in ("set_aside", "write") else sys.modules["gpulayer.server.serve"]
    monkeypatch.setattr(where, step, fail_later if step == "_first_commit" else fail)
    with pytest.raises(DiskFull):
        serve(ServeSettings(tmp_path / "state", port=0))
    assert (tmp_path / "state" / "endpoint.json").read_bytes() == left
    assert not (tmp_path / "state" / "endpoint.json.former").exists()
    assert is_stale(tmp_path / "state")


def test_so_does_one_that_is_refused_for_what_lies_in_the_folder(serving, tmp_path, left) -> None:
    state = tmp_path / "state"
    Store(str(state / "store.db")).close()
    (state / "pepper").write_bytes(b"p" * 31)
    assert serving().wait()[0] == 1
    assert (state / "endpoint.json").read_bytes() == left
    (state / "pepper").unlink()
    (state / "endpoint.json.part").mkdir()
    assert serving(worker_command=("/not/there",)).wait()[0] == 1
    assert (state / "endpoint.json").read_bytes() == left


@pytest.mark.parametrize("point", ["after_lock", "before_pepper", "before_endpoint", "in_endpoint"])
def test_after_kill_9_in_the_middle_of_a_start_it_is_known_how_the_one_before_was_started(
    serving, tmp_path, left, point
) -> None:
    state = tmp_path / "state"
    assert serving(faults=f"plane.{point}").wait()[0] == -signal.SIGKILL
    assert is_stale(state)
    found = [each for each in (state / "endpoint.json", state / "endpoint.json.former") if each.exists()]
    assert [each.read_bytes() for each in found] == [left]
    assert serving(faults=f"plane.{point}").wait()[0] == -signal.SIGKILL, "nor does a second one lose it"
    served = serving().ready()
    assert served.http.get("/v1/plane").status_code == 200  # its file is there a moment before the former one goes
    assert not (state / "endpoint.json.former").exists()
    served.process.send_signal(signal.SIGTERM)
    assert served.wait()[0] == 0
    assert not is_stale(state)


def test_a_start_in_the_place_of_one_that_died_does_not_serve_once_nothing_is_left_of_that(
    serving, tmp_path, left
) -> None:
    """Whoever says down takes it away, and a start may have been on its way to the lock just then."""
    state = tmp_path / "state"
    (state / "endpoint.json").unlink()
    code, said = serving(in_place=True).wait()
    assert code == 1
    assert "somebody has said down" in said
    assert not list(state.glob("endpoint*"))
    (state / "endpoint.json.former").write_bytes(left)
    served = serving(in_place=True).ready()
    served.process.send_signal(signal.SIGTERM)
    assert served.wait()[0] == 0


def test_a_start_that_is_called_off_before_it_serves_leaves_what_it_found(serving, tmp_path, left) -> None:
    state = tmp_path / "state"
    served = serving(faults="plane.before_commit:1:stop")
    until_it_is((state / "store.db").exists)
    until_it_is(lambda: psutil.Process(served.process.pid).status() == psutil.STATUS_STOPPED)
    served.process.send_signal(signal.SIGTERM)
    served.process.send_signal(signal.SIGCONT)
    assert served.wait()[0] == 0
    assert (state / "endpoint.json").read_bytes() == left
