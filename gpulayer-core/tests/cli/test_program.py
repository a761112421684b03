"""The program as a process: signals, pipes, terminals, start-up."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from gpulayer.server.folder import locked
from gpulayer.server.settings import Layout


class Job:
    """A scripted job that runs until it is cancelled or ``finish`` is called."""

    def __init__(self, plane, parts):
        self.parts = parts
        self.plane = plane
        self.following = threading.Event()
        self.over = threading.Event()
        self.cancels = 0
        self.record = parts.job(state="running", attempts=[parts.attempt(ended_at=None)], ended_at=None, exit_code=None)
        plane.on("POST", "/v1/jobs", lambda asked: self.record)
        plane.on("GET", "/v1/jobs/{ref}", lambda asked: self.record)
        plane.on("POST", "/v1/jobs/{ref}:cancel", self._cancel)
        plane.on("GET", "/v1/jobs/{ref}/logs", self._logs)

    def finish(self, **changes):
        self.record = self.parts.job(**changes)
        self.over.set()

    def _cancel(self, asked):
        self.cancels += 1
        self.finish(state="cancelled", exit_code=None, ended_by="cancel")
        return self.record

    def _logs(self, asked):
        offset = int(asked.query.get("offset", 0))

        def pieces():
            if offset == 0:
                yield b"first line\n"
            self.following.set()
            self.over.wait(20)
            if offset == 0:
                yield b"last line\n"

        return self.parts.Answer(pieces=pieces(), headers={"X-Gpulayer-Log-Start": offset})


@pytest.fixture
def job(plane, parts):
    scripted = Job(plane, parts)
    yield scripted
    scripted.over.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_off_a_terminal_and_sigterm_cancel_and_exit_with_7(program, plane, job, number):
    process = program("submit", "--", "sleep", plane=plane, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    assert process.stdout.readline() == b"first line\n"
    assert job.following.wait(10)
    process.send_signal(number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 7
    assert job.cancels == 1
    assert b"cancelling job 7f3a000000000001" in err
    assert b"Traceback" not in err


class Terminal:
    """A program on a pseudo-terminal of its own."""

    def __init__(self, argv, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.execve(sys.executable, [sys.executable, "-P", "-m", "gpulayer.cli", *argv], env)
            finally:
                os._exit(99)
        self.seen = b""

    def expect(self, words, timeout=15):
        ends = time.monotonic() + timeout
        while words not in self.seen:
            assert time.monotonic() < ends, self.seen
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    break
        assert words in self.seen, self.seen
        self.seen = self.seen.split(words, 1)[1]

    def type(self, keys):
        os.write(self.fd, keys)

    def wait(self, timeout=15):
        ends = time.monotonic() + timeout
        while time.monotonic() < ends:
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still runs: {self.seen!r}")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(away, plane):
    opened = []

    def start(*argv):
        opened.append(Terminal(argv, {**os.environ, **plane.environment, "TERM": "xterm"}))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_ctrl_c_on_a_terminal_asks_and_d_detaches(terminal, job):
    screen = terminal("submit", "--", "sleep")
    screen.expect(b"first line")
    assert job.following.wait(10)
    screen.type(b"\x03")
    screen.expect(b"detach or cancel? [d/C] ")
    screen.type(b"d\n")
    screen.expect(b"job 7f3a000000000001 goes on: gpulayer job logs --follow 7f3a000000000001")
    screen.expect(b"gpulayer job result --download 7f3a000000000001")
    assert screen.wait() == 0
    assert job.cancels == 0


def test_a_detached_command_does_not_wait_for_the_second_stream(terminal, job):
    job.record["split_streams"] = True
    screen = terminal("submit", "--split-streams", "--", "sleep")
    screen.expect(b"first line")
    assert job.following.wait(10)
    screen.type(b"\x03")
    screen.expect(b"detach or cancel? [d/C] ")
    screen.type(b"d\n")
    assert screen.wait() == 0
    assert job.cancels == 0


def test_the_reason_of_waiting_drives_no_terminal(terminal, plane, parts, job):
    plane.on("GET", "/v1/jobs/{ref}/logs", lambda asked: job.over.wait(20) and parts.Answer(body=b""))
    hostile = "[bold]x[/bold] \x1b]0;owned\x07\x9b2J"
    job.record |= {"state": "queued", "attempts": [], "reason": {"code": "busy", "message": hostile}}
    screen = terminal("submit", "--", "sleep")
    screen.expect("is queued: [bold]x[/bold] \ufffd]0;owned\ufffd\ufffd2J".encode())
    job.finish()
    assert screen.wait() == 0


@pytest.mark.parametrize("answer", [b"\n", b"c\n", b"\x03", b"\x04"], ids=["enter", "c", "second ctrl-c", "end"])
def test_ctrl_c_on_a_terminal_asks_and_all_else_cancels(terminal, job, answer):
    screen = terminal("submit", "--", "sleep")
    screen.expect(b"first line")
    assert job.following.wait(10)
    screen.type(b"\x03")
    screen.expect(b"detach or cancel? [d/C] ")
    screen.type(answer)
    screen.expect(b"cancelling job")
    assert screen.wait() == 7
    assert job.cancels == 1


def test_an_answer_that_is_neither_is_asked_for_again(terminal, job):
    screen = terminal("submit", "--", "sleep")
    screen.expect(b"first line")
    assert job.following.wait(10)
    screen.type(b"\x03")
    screen.expect(b"detach or cancel? [d/C] ")
    screen.type(b"what?\n")
    screen.expect(b"detach or cancel? [d/C] ")
    assert job.cancels == 0
    screen.type(b"detach\n")
    screen.expect(b"goes on")
    assert screen.wait() == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, b"is starting"),
        ({"tree": "a" * 64, "files": 1, "size_bytes": 2_000}, b"the worker gets the source (2 kB"),
    ],
)
def test_a_job_that_starts_says_what_takes_long_until_it_runs(terminal, plane, job, parts, source, words):
    job.record = parts.job(state="staging", source=source, attempts=[], ended_at=None)
    plane.on("GET", "/v1/jobs/{ref}/logs", lambda asked: job.over.wait(20) and parts.Answer(body=b""))
    screen = terminal("submit", "--", "sleep")
    screen.expect(words)
    job.finish()
    screen.expect(b"succeeded")
    assert screen.wait() == 0


@pytest.fixture
def own_plane(plane, parts, away):
    """The scripted control plane as this machine's own, with a worker that has two jobs; ended when told to."""
    state = away.parent / "state"
    (state / "worker").mkdir(parents=True)
    (state / "worker" / "identity.json").write_text(json.dumps({"worker_id": "b" * 16}))
    sleeper = subprocess.Popen(["sleep", "60"])
    plane.pid = sleeper.pid
    document = {"schema": 1, "url": plane.url, "token": plane.token, "pid": sleeper.pid, "version": "0.1.0"}
    (state / "endpoint.json").write_text(json.dumps({**document, "embedded": False}))
    plane.on("GET", "/v1/workers/{ref}", lambda asked: parts.worker(leases=[4, 7]))

    def end(asked):
        sleeper.kill()
        sleeper.wait()
        (state / "endpoint.json").unlink()
        return {}

    plane.on("POST", "/v1/plane:shutdown", end)
    with locked(Layout(state)):  # as that process would
        (state / "plane.lock").write_text(f"{sleeper.pid}\n")
        yield plane
    sleeper.kill()
    sleeper.wait()


ENDED = b"2 running jobs were ended; they run again when a control plane is back"


@pytest.mark.parametrize("answer", [b"\n", b"n\n", b"y\n"])
def test_down_asks_before_it_ends_jobs(own_plane, away, answer):
    env = {name: value for name, value in os.environ.items() if name != "GPULAYER_URL"}
    screen = Terminal(["down"], {**env, "TERM": "xterm"})
    try:
        screen.expect(b"2 jobs are running here; end them? [y/N] ")
        screen.type(answer)
        is_yes = answer == b"y\n"
        screen.expect(ENDED if is_yes else b"the control plane goes on")
        assert screen.wait() == (0 if is_yes else 1)
    finally:
        screen.close()
    assert len(own_plane.of("POST", "/v1/plane:shutdown")) == is_yes


@pytest.mark.parametrize("flags", [[], ["--yes"], ["--state", "../state"]])
def test_down_off_a_terminal_goes_on_and_says_what_it_ended(program, own_plane, flags):
    process = program("down", *flags, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    _, err = process.communicate(timeout=15)
    assert process.returncode == 0, err
    assert ENDED in err


@pytest.fixture
def lab(plane, away):
    """The control plane of another machine, which the current context names."""
    file = away.parent / "config" / "contexts.json"
    file.parent.mkdir()
    entry = {"urls": [plane.url], "token": plane.token, "fingerprints": [], "proxy": ""}
    file.write_text(json.dumps({"schema": 1, "current": "lab", "contexts": {"lab": entry}}))
    file.chmod(0o600)
    plane.on("POST", "/v1/plane:shutdown", {})
    return plane


@pytest.mark.parametrize("by", ["context", "environment"])
def test_down_is_for_this_machine_wherever_commands_go(cli, lab, by):
    said = cli("down", plane=lab if by == "environment" else None)
    assert said.code == 0
    assert said.err.startswith("no control plane runs here")
    assert lab.asked == []


@pytest.mark.parametrize("target", ["lab", "remote"])
def test_down_off_a_terminal_ends_no_other_machines_control_plane_without_yes(cli, lab, target):
    said = cli("down", "--target", target)
    assert said.code == 2
    assert said.err == (
        f"error: the control plane at {lab.url} (lab) is not this machine's own\n hint: --yes ends it all the same\n"
    )
    assert lab.asked == []
    assert cli("down", "--target", target, "--yes").code == 0
    assert len(lab.of("POST", "/v1/plane:shutdown")) == 1


@pytest.mark.parametrize(("answer", "code"), [(b"\n", 1), (b"y\n", 0)])
def test_down_asks_before_it_ends_another_machines_control_plane(lab, away, answer, code):
    screen = Terminal(["down", "--target", "lab"], {**os.environ, "TERM": "xterm"})
    try:
        screen.expect(f"end the control plane at {lab.url} (lab), for all who use it? [y/N] ".encode())
        screen.type(answer)
        assert screen.wait() == code
    finally:
        screen.close()
    assert len(lab.of("POST", "/v1/plane:shutdown")) == 1 - code


def test_a_queued_job_says_why_it_waits(terminal, plane, job, parts):
    reason = {"code": "devices_busy", "message": "2 of 2 devices are in use"}
    job.record = parts.job(state="queued", reason=reason, attempts=[], ended_at=None)
    plane.on("GET", "/v1/jobs/{ref}/logs", lambda asked: job.over.wait(20) and parts.Answer(body=b""))
    screen = terminal("submit", "--", "sleep")
    screen.expect(b"2 of 2 devices are in use")
    job.finish()
    screen.expect(b"succeeded")
    assert screen.wait() == 0


def test_a_job_that_waits_at_its_worker_says_why_once_also_where_nobody_sees_lines_change(program, plane, job, parts):
    reason = {"code": "plugin_suspended", "message": "worker vm waits for plugin bad (environment e1)"}
    job.record = parts.job(state="staging", reason=reason, ended_at=None)
    looks, is_seen_again = [], threading.Event()

    def show(asked):
        looks.append(asked)
        if len(looks) == 3:
            is_seen_again.set()
        return job.record

    plane.on("GET", "/v1/jobs/{ref}", show)
    plane.on("GET", "/v1/jobs/{ref}/logs", lambda asked: job.over.wait(20) and parts.Answer(body=b""))
    process = program("submit", "--", "sleep", plane=plane, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    assert is_seen_again.wait(20)
    job.finish()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    assert err.count(b"is staging: worker vm waits for plugin bad (environment e1)\n") == 1, err


def test_a_closed_pipe_is_quiet(program, plane, job):
    process = program("submit", "--", "yes", plane=plane, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    assert process.stdout.readline() == b"first line\n"
    process.stdout.close()
    process.stdout = None
    job.finish()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 141, err
    assert b"Traceback" not in err
    assert b"goes on" in err


def loaded_modules(code):
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    return set(done.stdout.split())


def test_importing_the_package_loads_none_of_its_dependencies():
    loaded = loaded_modules("import gpulayer")
    assert not loaded & {"httpx", "pydantic", "typer", "rich", "asyncio", "http.client"}


def test_help_loads_no_command_and_no_http(away):
    loaded = loaded_modules("from gpulayer.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert not loaded & {"httpx", "pydantic", "rich", "http.client", "gpulayer.cli.submit", "gpulayer.client.transport"}
    assert not loaded & {"importlib.metadata", "pluggy", "gpulayer.plugins"}, "plugins cost --help nothing"
    assert "gpulayer.cli.app" in loaded


def test_a_submit_loads_neither_pydantic_nor_httpx_nor_the_server(away, job_plane):
    environment = repr(job_plane.environment)
    loaded = loaded_modules(
        f"import os; os.environ.update({environment})\nfrom gpulayer.cli import main\n"
        "assert main(['submit', '--devices', '1', '--', 'true']) == 0"
    )
    unwanted = {"httpx", "pydantic", "rich", "asyncio", "gpulayer.server", "gpulayer.wire.convert"}
    assert not loaded & unwanted
