"""A worker as a service: the plan by value, its text as systemd itself reads it, and the act against a recorder."""

import json
import os
import plistlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.cli import service_install
from gpulayer.cli.service import MARKER, Command, Host, plan_service
from gpulayer.errors import NotSupported, UsageError
from gpulayer.server.tokens import TokenKind, make_token

ROOT = Host("linux", True, 0, "root", Path("/root"), Path("/root/.config"))
USER = replace(ROOT, uid=1000, user="ada", home=Path("/home/ada"), config=Path("/home/ada/.config"))
MAC = replace(USER, platform="darwin", is_systemd=False, home=Path("/Users/ada"))
ARGV = ["/opt/venv/bin/python", "-P", "-m", "gpulayer.cli.background", "worker", "--url", "http://127.0.0.1:8470"]


def plan(host, *, argv=ARGV, name="", search_path="/opt/cuda/bin:/usr/bin"):
    return plan_service(argv, name=name, host=host, log=Path("/srv/worker.log"), search_path=search_path)


SYSTEM_UNIT = f"""\
# gpulayer-worker.service: {MARKER}
[Unit]
Description=GPUlayer worker
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart="/opt/venv/bin/python" "-P" "-m" "gpulayer.cli.background" "worker" "--url" "http://127.0.0.1:8470"
User=root
Environment="PATH=/opt/cuda/bin:/usr/bin"
Restart=always
RestartSec=5
RestartPreventExitStatus=2 4
KillMode=process
Delegate=yes
TimeoutStopSec=90
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
"""


def test_as_root_it_is_a_unit_of_the_system():
    made = plan(ROOT)
    assert (made.path, made.content) == (Path("/etc/systemd/system/gpulayer-worker.service"), SYSTEM_UNIT)
    assert [command.argv for command in made.install] == [
        ("systemctl", "daemon-reload"),
        ("systemctl", "enable", "--now", "gpulayer-worker.service"),
    ]
    assert made.remove == (Command(("systemctl", "disable", "--now", "gpulayer-worker.service"), may_fail=True),)
    assert made.notes == ()


def test_as_another_user_it_is_a_unit_of_that_user_who_is_told_of_lingering():
    made = plan(USER, name="box one")
    assert made.path == Path("/home/ada/.config/systemd/user/gpulayer-worker-box-one.service")
    assert "\nUser=" not in made.content
    assert "network-online" not in made.content
    assert made.content.endswith("WantedBy=default.target\n")
    assert made.install[1].argv == ("systemctl", "--user", "enable", "--now", "gpulayer-worker-box-one.service")
    assert made.notes == ("so that it also runs while you are not logged in: loginctl enable-linger ada",)
    assert made.look[1] == "journalctl --user -u gpulayer-worker-box-one.service -f"


def test_what_systemd_would_read_otherwise_is_escaped():
    made = plan(ROOT, argv=["/bin/echo", 'a "b" \\ c', "100%", "$HOME", "--label", "k=v w"], search_path="/100%/$x")
    assert 'ExecStart="/bin/echo" "a \\"b\\" \\\\ c" "100%%" "$$HOME" "--label" "k=v w"\n' in made.content
    assert 'Environment="PATH=/100%%/$x"\n' in made.content
    with pytest.raises(UsageError):
        plan(ROOT, argv=["/bin/echo", "two\nExecStartPre=/bin/evil"])


def test_systemd_takes_the_units_as_they_are(tmp_path):
    for host in (ROOT, USER):
        made = plan(host, argv=["/bin/echo", "100%", "$x", 'a "b"'])
        (tmp_path / made.name).write_text(made.content)
        assert made.content.count("ExecStart=") == 1
        if shutil.which("systemd-analyze"):  # the texts above hold where it is missing
            argv = ["systemd-analyze", "verify", "--man=no", str(tmp_path / made.name)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
            assert made.name not in done.stdout + done.stderr, done.stderr


def test_on_macos_it_is_an_agent_of_launchd():
    made = plan(MAC, name="n")
    assert made.path == Path("/Users/ada/Library/LaunchAgents/gpulayer-worker-n.plist")
    assert MARKER in made.content
    assert plistlib.loads(made.content.encode()) == {
        "Label": "gpulayer-worker-n",
        "ProgramArguments": ARGV,
        "EnvironmentVariables": {"PATH": "/opt/cuda/bin:/usr/bin"},
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 5,
        "ExitTimeOut": 90,
        "AbandonProcessGroup": True,
        "StandardOutPath": "/srv/worker.log",
        "StandardErrorPath": "/srv/worker.log",
    }
    assert made.install[-1].argv == ("launchctl", "bootstrap", "gui/1000", str(made.path))
    assert made.remove == (Command(("launchctl", "bootout", "gui/1000/gpulayer-worker-n"), may_fail=True),)
    system = plan(replace(MAC, uid=0))
    assert system.path == Path("/Library/LaunchDaemons/gpulayer-worker.plist")
    assert system.install[-1].argv[:3] == ("launchctl", "bootstrap", "system")


def test_where_neither_runs_it_says_what_to_do_instead():
    with pytest.raises(NotSupported) as refused:
        plan(replace(ROOT, is_systemd=False))
    assert "container" in refused.value.message
    assert "gpulayer join" in refused.value.hint


# The act --------------------------------------------------------------------------------------------------------------

RECORDER = """#!/bin/sh
echo "$*" >> {calls}
case "$*" in
  *is-active*) test -e {active} ;;
  *"enable --now"*) : > {active} ;;
  *"disable --now"*) rm -f {active} ;;
esac
"""


class Machine:
    def __init__(self, folder):
        self.calls_file, self.active = folder / "calls", folder / "active"
        self.unit = folder / "config" / "systemd" / "user" / "gpulayer-worker-box.service"
        tool = folder / "bin" / "systemctl"
        tool.parent.mkdir()
        tool.write_text(RECORDER.format(calls=self.calls_file, active=self.active))
        tool.chmod(0o755)

    def calls(self):
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.unlink(missing_ok=True)
        return [line for line in lines if "is-active" not in line]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine on which systemd runs and this user is not root; ``systemctl`` only writes down what it is told."""
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(service_install, "SYSTEMD_RUNS", str(tmp_path))
    monkeypatch.setattr(service_install.os, "getuid", lambda: 1000)
    return made


@pytest.fixture
def up(program, away, tmp_path):
    """A real control plane without a worker: how `join` is told where it is and whom to trust, and a join token."""
    state = tmp_path / "state"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = program(
        *("up", "--detach", "--no-worker", "--port", port),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = started.communicate(timeout=90)
    assert started.returncode == 0, err
    words = shlex.split(out.decode().splitlines()[0])
    assert words[5] == "--fingerprint"
    yield (words[2], *words[5:7]), words[4]
    down = program("down", "--state", str(state), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = down.communicate(timeout=90)
    assert down.returncode == 0, err


def test_join_installs_a_service_that_works_again_changes_nothing_and_can_be_taken_back(
    cli, program, machine, up, tmp_path
):
    where, token = up
    work = tmp_path / "work"
    argv = ("join", *where, "--name", "box", "--work-dir", work, "--install-service")
    said = cli(*argv, "--token", token)
    assert said.code == 0, said.err
    assert "joined as box\n" in said.err
    assert "take it back: gpulayer join --uninstall-service --name box" in said.err
    assert machine.calls() == ["--user daemon-reload", "--user enable --now gpulayer-worker-box.service"]
    assert machine.unit.stat().st_mode & 0o777 == 0o644
    assert not list(machine.unit.parent.glob(".*"))
    text = machine.unit.read_text()
    assert token not in text
    assert f'"--fingerprint" "{where[2]}"' in text
    assert token.encode() not in b"".join(path.read_bytes() for path in work.rglob("*") if path.is_file())
    assert (work / "identity.json").stat().st_mode & 0o777 == 0o600

    (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    words = [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(line.removeprefix("ExecStart="))]
    assert words[0] == sys.executable
    log = open(tmp_path / "worker.log", "wb")  # noqa: SIM115 - as long as the process
    worker = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    log.close()
    try:
        ends = time.monotonic() + 60
        while [one["state"] for one in _workers(cli)] != ["ready"]:
            assert time.monotonic() < ends
            time.sleep(0.05)
        again = cli(*argv)  # while it runs and holds its folder
        assert again.code == 0, again.err
        assert "is installed and runs" in again.err
        assert machine.calls() == []
        changed = cli(*argv, "--label", "k=v")
        assert changed.code == 0, changed.err
        assert "systemctl --user restart gpulayer-worker-box.service" in changed.err
        assert '"--label" "k=v"' in machine.unit.read_text()
        machine.calls()
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0

    removed = cli("join", "--uninstall-service", "--name", "box")
    assert removed.code == 0, removed.err
    assert machine.calls() == ["--user disable --now gpulayer-worker-box.service", "--user daemon-reload"]
    assert not machine.unit.exists()
    assert cli("join", "--uninstall-service", "--name", "box").code == 2


def _workers(cli):
    return json.loads(cli("worker", "list", "--json").out)["workers"]


def test_a_token_that_is_not_good_is_told_now_and_nothing_is_installed(cli, machine, up, tmp_path):
    where, token = up
    said = cli(
        "join", *where, "--name", "box", "--work-dir", tmp_path / "w", "--install-service", "--token", token + "x"
    )
    assert said.code == 4, said.err
    assert not machine.unit.exists()
    assert machine.calls() == []
    said = cli("join", *where, "--name", "box", "--work-dir", tmp_path / "w", "--install-service")
    assert (said.code, "no join token" in said.err) == (2, True)


def test_a_control_plane_that_does_not_answer_is_told_now(cli, machine, tmp_path):
    argv = ("--name", "box", "--work-dir", tmp_path / "w", "--install-service", "--token", make_token(TokenKind.JOIN))
    said = cli("join", "http://127.0.0.1:9", *argv)
    assert said.code == 5, said.err
    assert not machine.unit.exists()


def test_a_file_of_somebody_else_is_left_alone_and_no_token_is_used_for_it(cli, machine, tmp_path):
    machine.unit.parent.mkdir(parents=True)
    machine.unit.write_text("[Service]\nExecStart=/bin/true\n")
    argv = ("--name", "box", "--work-dir", tmp_path / "w", "--install-service", "--token", make_token(TokenKind.JOIN))
    said = cli("join", "http://127.0.0.1:9", *argv)
    assert (said.code, "gpulayer did not write it" in said.err) == (2, True)
    assert cli("join", "--uninstall-service", "--name", "box").code == 2
    assert machine.unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert machine.calls() == []


def test_without_systemd_or_launchd_it_is_refused_before_anything_else(cli, machine, monkeypatch, tmp_path):
    monkeypatch.setattr(service_install, "SYSTEMD_RUNS", str(tmp_path / "nowhere"))
    said = cli("join", "http://127.0.0.1:9", "--install-service", "--token", make_token(TokenKind.JOIN))
    assert said.code == 2
    assert "no systemd or launchd runs here" in said.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "missing argument 'URL…'"),
        (("--work-dir", "/tmp"), "a work folder holds who this worker is, and not where its control plane is"),
        (("http://127.0.0.1:9", "--once", "--install-service"), "--once does not go with"),
        (("http://127.0.0.1:9", "--uninstall-service"), "goes with --name alone"),
    ],
)
def test_what_does_not_go_together_is_a_wrong_use(cli, argv, words):
    said = cli("join", *argv)
    assert (said.code, words in said.err) == (2, True), said.err


def test_a_command_that_fails_is_told_with_what_it_said(cli, machine, tmp_path):
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    made = plan(replace(USER, config=tmp_path / "config"), name="box")
    with pytest.raises(service_install.Conflict) as failed:
        service_install.install_service(made, say=lambda _: None)
    assert failed.value.message == "`systemctl --user daemon-reload` failed: no bus"
