"""The background control plane: found, started once, replaced, told apart from what a crash left behind."""

import json
import os
import stat
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import gpulayer
from gpulayer.client import calls
from gpulayer.client.embedded import (
    EmbeddedPlane,
    ensure_plane,
    find_plane,
    is_compatible,
    is_stale,
    is_starting,
    log_tail,
    plane_argv,
    start_detached,
    wait_until_gone,
    why_not_started,
)
from gpulayer.client.holder import folder_holder
from gpulayer.client.location import EndpointFound
from gpulayer.client.transport import Transport
from gpulayer.errors import Unreachable, UsageError
from gpulayer.server.folder import locked
from gpulayer.server.settings import Layout


@pytest.fixture
def settings(tmp_path):
    """Real ones; whatever they start is ended."""
    made = EmbeddedPlane(tmp_path / "state", gpulayer.__version__, dict(os.environ), idle_exit_s=60)
    yield made
    found = find_plane(made.state_dir)
    if found is not None:
        with Transport(found.location) as transport:
            transport.send(calls.shutdown_plane())
        assert wait_until_gone(found, made.state_dir, deadline_s=30)


def write_endpoint(folder, **changes):
    folder.mkdir(exist_ok=True)
    endpoint = {"schema": 1, "url": "http://127.0.0.1:9", "token": "t", "pid": os.getpid(), "version": "0.1.0"}
    (folder / "endpoint.json").write_text(json.dumps({**endpoint, "embedded": True, **changes}))


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("is_up", [False, True], ids=["by itself", "by gpulayer up"])
def test_a_start_on_a_full_disk_says_that_there_is_no_room_and_where(disk_of, fill, is_up):
    state = disk_of(256) / "state"
    state.mkdir(mode=0o700)
    (state / "plane.log").touch()
    fill(state / "filler")
    if is_up:
        argv = [
            sys.executable,
            "-m",
            "gpulayer.cli",
            "up",
            "--detach",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--state",
            str(state),
        ]
        ended = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)
        assert ended.returncode != 0
        said = ended.stderr
    else:
        with pytest.raises(Unreachable) as caught:
            ensure_plane(EmbeddedPlane(state, gpulayer.__version__, dict(os.environ), deadline_s=60))
        said = caught.value.message
    assert f"did not start: there is no room on the disk of {state}" in said


def test_a_start_that_fails_on_a_disk_with_room_blames_no_disk(tmp_path):
    (tmp_path / "plane.log").write_text("port taken\n")
    assert why_not_started(tmp_path / "plane.log") == "; the end of its log:\nport taken"
    assert [path.name for path in tmp_path.iterdir()] == ["plane.log"]


def test_the_command_line_is_a_plan():
    settings = EmbeddedPlane(Path("/s"), "0.1.0", {}, python="py", idle_exit_s=0.5)
    assert plane_argv(settings) == (
        *("py", "-P", "-m", "gpulayer.cli.background", "plane", "--state", "/s", "--mode", "embedded"),
        *("--host", "127.0.0.1", "--port", "0", "--idle-exit-s", "0.5"),
    )


def test_a_standing_control_plane_that_died_is_started_again_as_it_was():
    restart = ("plane", "--state", "/s", "--mode", "standing", "--host", "127.0.0.1", "--port", "9", "--no-worker")
    died = EndpointFound("http://127.0.0.1:9", "127.0.0.1", 9, "t", 1, "0.1.0", embedded=False, restart=restart)
    assert plane_argv(EmbeddedPlane(Path("/s"), "0.1.0", {}, python="py", idle_exit_s=0.5), died=died) == (
        *("py", "-P", "-m", "gpulayer.cli.background", "plane", "--state", "/s", "--mode", "standing"),
        *("--host", "127.0.0.1", "--port", "9", "--no-worker", "--in-place-of-one-that-died"),
    )


def test_how_it_was_is_known_also_where_the_start_after_the_crash_was_killed(settings, monkeypatch):
    restart = ["plane", "--state", "/s", "--mode", "standing", "--port", "9"]
    write_endpoint(settings.state_dir, pid=dead_pid(), embedded=False, restart=restart)
    (settings.state_dir / "endpoint.json").rename(settings.state_dir / "endpoint.json.former")
    assert is_stale(settings.state_dir)
    started = []

    def start(argv, **_):
        started.append(argv)
        raise UsageError("not here")

    monkeypatch.setattr(sys.modules["gpulayer.client.embedded"], "start_detached", start)
    with pytest.raises(UsageError, match="not here"):
        ensure_plane(settings)
    assert list(started[0][4:-1]) == restart
    with locked(Layout(settings.state_dir)):
        assert not is_stale(settings.state_dir), "one is starting"


def test_several_commands_at_once_start_one_control_plane(settings):
    found = []

    def ensure():
        found.append(ensure_plane(settings))

    threads = [threading.Thread(target=ensure) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({running.endpoint for running in found}) == 1
    assert len(found) == 3
    again = ensure_plane(settings)
    assert (again.endpoint, again.is_new) == (found[0].endpoint, False)
    for private in (settings.state_dir / "endpoint.json", settings.state_dir / "plane.log"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600


def test_what_a_crash_left_behind_is_no_control_plane(settings):
    assert not is_stale(settings.state_dir)
    write_endpoint(settings.state_dir, pid=dead_pid())
    assert find_plane(settings.state_dir) is None
    assert is_stale(settings.state_dir)
    running = ensure_plane(settings)
    assert running.is_new
    assert running.endpoint.pid != os.getpid()


@pytest.mark.parametrize("has", ["nobody", "a backup", "another control plane"])
def test_where_another_or_nobody_has_the_folder_no_stranger_is_asked(plane, parts, tmp_path, has):
    """PID and port that the file names are in use: of a program that would be shown the token."""
    state = tmp_path / "state"
    write_endpoint(state, url=plane.url, token=plane.token, embedded=False)
    with ExitStack() as stack:
        stack.enter_context(locked(Layout(state), doing="gpulayer backup" if has == "a backup" else ""))
        if has == "nobody":
            stack.close()
        elif has == "another control plane":
            (state / "plane.lock").write_text(f"{os.getppid()}\n")
        assert find_plane(state) is None
        assert is_starting(state) == (has == "another control plane")
        assert is_stale(state) == (has != "another control plane"), "one that starts, or ends, has not died"
    assert plane.asked == []
    assert find_plane(state) is None


def test_the_one_whose_folder_it_is_is_found(plane, tmp_path):
    state = tmp_path / "state"
    write_endpoint(state, url=plane.url, token=plane.token)
    with locked(Layout(state)):
        found = find_plane(state)
        assert found is not None
        assert found.url == plane.url
        assert not is_starting(state)
        (state / "endpoint.json").unlink()
        assert is_starting(state)


def test_who_looks_at_a_folder_hinders_no_start(tmp_path):
    """Each look has the lock for an instant."""
    is_over = threading.Event()

    def look():
        while not is_over.is_set():
            folder_holder(tmp_path)

    (tmp_path / "plane.lock").touch()
    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            with locked(Layout(tmp_path)):
                pass
    finally:
        is_over.set()
        looking.join()


def test_a_lock_that_is_no_file_of_ours_is_no_control_plane(tmp_path):
    assert folder_holder(tmp_path) is None
    assert folder_holder(tmp_path / "missing") is None
    (tmp_path / "plane.lock").mkdir()
    assert folder_holder(tmp_path) is None


@pytest.mark.parametrize("restart", [["plane", "--bogus"], ["x"], []], ids=str)
def test_a_standing_one_of_which_nobody_knows_how_it_was_started_is_replaced_and_that_is_said(settings, restart):
    write_endpoint(settings.state_dir, pid=dead_pid(), embedded=False, restart=restart)
    said = []
    assert ensure_plane(settings, say=said.append).is_new
    assert f"{settings.state_dir}/endpoint.json does not say how" in said[0]
    assert "gpulayer up" in said[1]


def test_a_standing_one_that_does_not_start_again_as_it_was_names_the_file_that_says_so(tmp_path):
    state = tmp_path / "state"
    restart = ["plane", "--state", str(state), "--mode", "standing", "--bogus"]
    write_endpoint(state, pid=dead_pid(), embedded=False, restart=restart)
    with pytest.raises(Unreachable, match="--bogus") as caught:
        ensure_plane(EmbeddedPlane(state, gpulayer.__version__, dict(os.environ), deadline_s=60))
    assert f"{state}/endpoint.json says" in caught.value.hint
    assert "gpulayer up" in caught.value.hint


def test_what_was_restored_is_not_started_by_a_command_that_only_looks(settings):
    settings.state_dir.mkdir()
    (settings.state_dir / "restored").touch()
    with pytest.raises(UsageError, match="was restored from a backup") as refused:
        ensure_plane(settings)
    assert f"gpulayer up --state {settings.state_dir}" in refused.value.hint
    assert [path.name for path in settings.state_dir.iterdir()] == ["restored"]


def test_a_log_that_can_not_be_written_is_named_and_not_its_folder(tmp_path):
    (tmp_path / "plane.log").mkdir()
    with pytest.raises(UsageError, match=rf"{tmp_path}/plane\.log can't be written: Is a directory") as caught:
        start_detached(["true"], log=tmp_path / "plane.log", environment={})
    assert "move it away" in caught.value.hint


def test_an_idle_control_plane_of_another_version_is_replaced(settings):
    first = ensure_plane(settings).endpoint
    newer = EmbeddedPlane(settings.state_dir, "99.0.0", settings.environment, idle_exit_s=60)
    second = ensure_plane(newer)
    assert second.is_new
    assert second.endpoint.pid != first.pid


@pytest.mark.parametrize(("version", "fits"), [("0.1.7", True), ("0.2.0", False)])
def test_a_busy_control_plane_of_another_version_is_used_if_it_is_of_the_series(plane, parts, tmp_path, version, fits):
    write_endpoint(tmp_path / "state", url=plane.url, token=plane.token, version=version)
    plane.on("GET", "/v1/plane", parts.plane(jobs={"running": 1, "succeeded": 4}))
    settings = EmbeddedPlane(tmp_path / "state", "0.1.0", {})
    with locked(Layout(settings.state_dir)):
        if fits:
            assert ensure_plane(settings).endpoint.version == version
        else:
            with pytest.raises(UsageError, match=r"is version 0\.2\.0, this is 0\.1\.0"):
                ensure_plane(settings)
    assert not plane.of("POST", "/v1/plane:shutdown")


def test_versions_of_one_minor_series_understand_each_other():
    assert is_compatible("0.1.0", "0.1.9")
    assert not is_compatible("0.1.0", "0.2.0")


def test_one_that_does_not_start_shows_the_end_of_its_log(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho it broke because of this >&2\nexit 1\n")
    script.chmod(0o755)
    settings = EmbeddedPlane(tmp_path / "state", "0.1.0", {}, python=str(script), deadline_s=0.6)
    with pytest.raises(Unreachable, match="it broke because of this") as caught:
        ensure_plane(settings)
    assert str(tmp_path / "state" / "plane.log") in caught.value.hint


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_state_folder_that_can_not_be_used_is_the_users_to_change(tmp_path, place):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"state folder .*file.* can't be used") as caught:
        ensure_plane(EmbeddedPlane(tmp_path / place, "0.1.0", {}))
    assert "GPULAYER_STATE_DIR" in caught.value.hint


def test_one_that_hangs_is_ended_after_the_deadline(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    settings = EmbeddedPlane(
        tmp_path / "state", "0.1.0", {"PATH": os.environ["PATH"]}, python=str(script), deadline_s=0.3
    )
    with pytest.raises(Unreachable, match="did not start"):
        ensure_plane(settings)


def test_the_tail_of_a_log_is_short_and_of_none_is_empty(tmp_path):
    (tmp_path / "log").write_text("".join(f"line {n}\n" for n in range(5000)))
    assert log_tail(tmp_path / "log", lines=2) == "line 4998\nline 4999"
    assert log_tail(tmp_path / "none") == ""
