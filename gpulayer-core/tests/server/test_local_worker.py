"""The end of a control plane's own worker, whatever state it is in: nothing of it is left."""

import os
import signal
import sys
import time

import pytest

from gpulayer.errors import UsageError
from gpulayer.server.local_worker import LocalWorker
from gpulayer.spawner import tree
from gpulayer.spawner.state import StateDir, read_exit_record
from tests.together import is_alive, kill_together

DEADLINE_S = 30.0

AGENT = """
import fcntl, os, signal, subprocess, sys
from gpulayer.spawner import messages as m, spawner_command
from gpulayer.spawner.state import StateDir
folder, on_term = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_IGN if on_term == "ignore" else lambda *_: os._exit(0))
lock = os.open(folder + "/agent.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.write(lock, str(os.getpid()).encode())
state = StateDir(folder + "/spawner")
subprocess.run(spawner_command(state.path, python=sys.executable), check=False)
stream = state.connect()
program = ("sh", "-c", "(setsid sleep 601 &) ; echo up; exec sleep 600")
paths = {"log_path": folder + "/log", "exit_path": folder + "/exit"}
stream.sendall(m.encode(m.Hello(1)))
stream.sendall(m.encode(m.Spawn(1, "1.0", program, folder, {"PATH": os.environ["PATH"]}, **paths)))
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    "content", [b"", b"{garbage", b"[]", b'{"private_key": ""}', b'{"private_key": "zz", "worker_id": "w"}', None]
)
def test_an_identity_that_is_not_whole_is_told_and_left_where_it_is(tmp_path, content):
    path = tmp_path / "identity.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"identity\.json can't be read") as caught:
        LocalWorker(["false"], tmp_path, environment={}).needs_join_token()
    assert "move it away" in caught.value.hint
    assert [each.name for each in tmp_path.iterdir()] == ["identity.json"]
    assert content is None or path.read_bytes() == content


class Scene:
    def __init__(self, folder, on_term):
        self.folder = folder / "worker"
        self.spawner = StateDir(str(self.folder / "spawner"))
        self.command = [sys.executable, "-c", AGENT, str(self.folder), on_term]
        self.worker = LocalWorker(self.command, self.folder, environment=os.environ, agent_s=0.3, spawner_s=10.0)
        self.worker.start()
        self.until(lambda: (self.folder / "log").exists() and (self.folder / "log").read_bytes() == b"up\n")
        self.holders = {name: self.spawner.holder(name).pid for name in ("watchdog", "spawner")}
        self.agent = int((self.folder / "agent.lock").read_text())
        self.markers = {entry.marker for entry in self.spawner.load()}

    def until(self, condition):
        ends = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < ends
            time.sleep(0.01)
        return found

    def running(self):
        return tree.members(tree.processes(), roots=(), markers=self.markers, spare=())

    def is_over(self):
        return not self.running() and not any(map(is_alive, [self.agent, *self.holders.values()]))

    @property
    def record(self):
        return read_exit_record(str(self.folder / "exit"))


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    scenes = []

    def make(on_term="ignore"):
        scenes.append(Scene(tmp_path, on_term))
        return scenes[-1]

    yield make
    for scene in scenes:
        leftover = scene.running() | {pid for pid in scene.holders.values() if is_alive(pid)}
        for pid in leftover:
            os.kill(pid, signal.SIGKILL)
        assert not leftover


def test_a_worker_that_hangs_is_killed_and_its_spawner_is_told_to_end(scene):
    scene = scene()
    assert not scene.worker.is_gone()
    scene.until(scene.worker.end_step)
    scene.until(scene.is_over)
    assert (scene.record.reason, scene.record.tree_clean) == ("stopped", True)
    assert scene.worker.is_gone()


def test_a_worker_that_was_stopped_is_woken_to_hear_that_it_is_to_end(scene):
    scene = scene("exit")
    os.kill(scene.agent, signal.SIGSTOP)
    scene.until(scene.worker.end_step)
    scene.until(scene.is_over)
    assert scene.worker._process.returncode == 0, "it ended by itself"


def test_what_a_killed_worker_left_running_is_ended(scene):
    scene = scene()
    os.kill(scene.agent, signal.SIGKILL)
    scene.until(lambda: not scene.worker.is_running())
    scene.until(scene.worker.end_step)
    scene.until(scene.is_over)
    assert scene.record.reason == "stopped"


def test_a_hanging_worker_with_a_stopped_spawner_is_ended_all_the_same(scene):
    scene = scene()
    os.kill(scene.holders["spawner"], signal.SIGSTOP)
    scene.until(scene.worker.end_step)
    scene.until(scene.is_over)
    assert scene.record.message == "the spawner was stuck (state T) and was ended"


def test_what_is_left_of_a_worker_all_of_which_was_killed_is_ended_too(scene):
    scene = scene()
    kill_together((scene.agent, scene.holders["watchdog"], scene.holders["spawner"]))
    scene.until(lambda: not scene.worker.is_running() and not scene.spawner.is_held())
    assert scene.running()
    scene.until(scene.worker.end_step)
    scene.until(scene.is_over)
    assert scene.record.reason == "spawner_lost"


def test_the_end_of_a_worker_that_never_was_is_no_fault(tmp_path):
    assert LocalWorker((), tmp_path / "none", environment={}).end_step()


def test_a_worker_that_can_not_be_started_again_for_now_ends_nothing(tmp_path, monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    folder = tmp_path / "worker"
    worker = LocalWorker(("true",), folder, environment=os.environ)
    (folder / "worker.log").mkdir(parents=True)  # can't be opened, as without room or descriptors
    for _ in range(4):
        worker.look_after()
        now[0] += 100
    assert caplog.text.count("the worker can't be started: Is a directory") == 2
    (folder / "worker.log").rmdir()
    worker.look_after()
    now[0] += 100
    worker.look_after()
    assert worker._process.wait(DEADLINE_S) == 0


def test_a_worker_that_hangs_is_started_again_after_a_minute_and_its_jobs_go_on(scene, monkeypatch, caplog):
    scene = scene()
    now = [1000.0]
    monkeypatch.setattr("gpulayer.server.local_worker.time", Frozen(now))
    worker, before = scene.worker, scene.running()

    def looks(heard, seconds):
        for _ in range(seconds):
            now[0] += 1
            worker.look_after(heard)

    os.kill(scene.agent, signal.SIGSTOP)
    looks(0, 600)  # it has not been heard of since its start: its plugins may take their time
    looks(1, 59)
    looks(2, 50)
    now[0] += 3600  # the machine slept, or this process was stopped: that is one turn
    worker.look_after(2)
    assert not caplog.text
    assert is_alive(scene.agent)
    looks(2, 60)
    assert f"the worker (process {scene.agent}) hangs: nothing was heard of it for 6" in caplog.text
    scene.until(lambda: not is_alive(scene.agent))
    looks(2, 3)
    scene.until(lambda: (scene.folder / "agent.lock").read_text().startswith(str(worker._process.pid)))
    assert scene.running() == before, "what it ran goes on"
    assert caplog.text.count("hangs") == 1
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    scene.until(worker.end_step)
    scene.until(scene.is_over)


def test_a_worker_that_hung_before_this_control_plane_was_started_is_noticed_too(scene, monkeypatch):
    scene = scene()
    now = [1000.0]
    monkeypatch.setattr("gpulayer.server.local_worker.time", Frozen(now))
    heir = LocalWorker(("false",), scene.folder, environment=os.environ, agent_s=0.3, spawner_s=10.0)
    heir.start()
    os.kill(scene.agent, signal.SIGSTOP)
    for _ in range(60):
        now[0] += 1
        heir.look_after(0)
    scene.until(lambda: not is_alive(scene.agent))
    monkeypatch.undo()
    scene.until(scene.worker.end_step)
    scene.until(scene.is_over)


class Frozen:
    """``time`` with a clock that the test moves."""

    def __init__(self, now):
        self._now = now

    def monotonic(self):
        return self._now[0]
