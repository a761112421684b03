"""`gpulayer join`: whom it trusts, which worker it is, and what it says when something is wrong."""

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from gpulayer.cli import join
from gpulayer.cli.join import worker_folder
from gpulayer.net import parse_pins, parse_urls
from gpulayer.server.tokens import TokenKind, make_token

OLD, NEW = parse_pins([f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"])
URLS = parse_urls("https://10.0.0.5:8470 https://box.example:8470")


def test_a_worker_is_found_by_its_name_before_anything_else(tmp_path):
    assert worker_folder(tmp_path, "a b", (OLD,), URLS) == tmp_path / "a-b"


def test_without_a_name_the_fingerprint_says_which_worker_it_is_wherever_the_control_plane_moves(tmp_path):
    first = worker_folder(tmp_path, "", (OLD,), URLS)
    assert first == worker_folder(tmp_path, "", (OLD,), parse_urls("https://192.168.1.7:9"))
    assert first != worker_folder(tmp_path, "", (NEW,), URLS)


def test_the_fingerprint_that_replaces_another_leads_to_the_same_worker(tmp_path):
    folder = worker_folder(tmp_path, "", (OLD,), URLS)
    folder.mkdir()
    assert worker_folder(tmp_path, "", (NEW, OLD), URLS) == folder
    assert worker_folder(tmp_path, "", (NEW, OLD), URLS) == folder
    assert worker_folder(tmp_path, "", (NEW,), URLS) == folder


def test_a_worker_of_before_is_found_in_the_folder_of_its_url(tmp_path):
    (tmp_path / "https-box.example-8470").mkdir()
    assert worker_folder(tmp_path, "", (OLD,), URLS).name == "https-box.example-8470"
    assert worker_folder(tmp_path, "", (), URLS).name == "https-box.example-8470"
    assert worker_folder(tmp_path, "", (), URLS[:1]).name == "https-10.0.0.5-8470"


def test_what_is_wrong_with_the_arguments_is_said_before_anything_is_sent(cli, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (tmp_path / "client").write_text(make_token(TokenKind.CLIENT))
        good = make_token(TokenKind.JOIN)
        cases = [
            (("--token", make_token(TokenKind.CLIENT)), 2, "that is a client token (glc_…)"),
            (("--token", make_token(TokenKind.WORKER)), 2, "that is a worker token"),
            (("--token-file", tmp_path / "client"), 2, "that is a client token"),
            (("--token-file", tmp_path / "none"), 2, "does not exist"),
            (("--token", good[:-3]), 4, "it was perhaps cut off"),
            (("--token", good, "--fingerprint", "sha256:12"), 2, "is not a fingerprint"),
            (("--token", good, "--proxy", "socks5://x:1"), 2, "is not a proxy's address"),
            (("--token", good, "--label", "nothing"), 2, "--label"),
        ]
        for argv, code, words in cases:
            said = cli("join", url, *argv)
            assert (said.code, words in said.err) == (code, True), said.err
            assert good not in said.err
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert cli("join", "http://10.0.0.5:8470", "--token", good).code == 2


def test_a_token_may_come_from_stdin(monkeypatch, tmp_path):
    good = make_token(TokenKind.JOIN)
    (tmp_path / "in").write_text(good + "\n")
    with open(tmp_path / "in") as stdin:
        monkeypatch.setattr(join.sys, "stdin", stdin)
        assert join._join_token("-") == good


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A real control plane with TLS and without a worker: run(*argv) a command of its user; how to join it."""
    folder = tmp_path_factory.mktemp("join")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
    environment = {**kept, "HOME": str(folder), "GPULAYER_STATE_DIR": str(folder / "state")}

    def start(*argv, **variables):
        return subprocess.Popen(
            [join.sys.executable, "-P", "-m", "gpulayer.cli", *map(str, argv)],
            env={**environment, **variables},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(*argv):
        process = start(*argv)
        out, err = process.communicate(timeout=90)
        return process.returncode, out.decode(), err.decode()

    code, out, err = run("up", "--detach", "--no-worker", "--port", "0")
    assert code == 0, err
    words = shlex.split(out.splitlines()[0])
    try:
        yield Up(folder, start, run, url=words[2], token=words[4], pin=words[6])
    finally:
        code, _, err = run("down")
        assert code == 0, err


class Up:
    def __init__(self, folder, start, run, *, url, token, pin):
        self.folder, self.start, self.run = folder, start, run
        self.url, self.token, self.pin = url, token, pin

    def new_token(self):
        code, out, err = self.run("token", "create", "--role", "join", "--json")
        assert code == 0, err
        return json.loads(out)["token"]

    def ended(self, *argv, **variables):
        process = self.start("join", *argv, **variables)
        _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()


def said(process, words, timeout=60):
    """Lines of stderr up to the one that holds the words."""
    lines, ends = [], time.monotonic() + timeout
    while time.monotonic() < ends:
        line = process.stderr.readline().decode()
        lines.append(line)
        if words in line:
            return "".join(lines)
        assert line, lines
    raise AssertionError(lines)


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_worker_joins_with_the_fingerprint_and_comes_back_by_another_address_without_a_token(up):
    first = up.start("join", up.url, "--token", up.token, "--fingerprint", up.pin)
    said(first, f"joined {up.url} as ")
    stop(first)
    port = up.url.rsplit(":", 1)[1]
    again = up.start("join", f"https://localhost:{port}", "--fingerprint", up.pin)
    said(again, f"joined https://localhost:{port} as ")
    code, out, err = up.run("worker", "list", "--json")
    assert code == 0, err
    (worker,) = json.loads(out)["workers"]
    assert "127.0.0.1" not in worker["addresses"]
    shown = up.run("worker", "show", worker["name"])[1]
    assert all(address in shown for address in worker["addresses"])
    stop(again)


NETWORK = Path(__file__).parents[3] / "docs" / "network.md"


def test_a_worker_goes_through_a_new_certificate_as_the_documentation_says(up, certify, tmp_path):
    old, new = certify("old"), certify("new")
    state = {"GPULAYER_STATE_DIR": str(tmp_path / "state")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{probe.getsockname()[1]}"
    steps = NETWORK.read_text()

    def did(*argv):
        process = up.start(*argv, **state)
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        return out.decode()

    def serve(certificate):
        tls = ("--tls", f"{certificate.pem},{certificate.pem}")
        return did("up", "--detach", "--no-worker", "--port", url.rpartition(":")[2], *tls)

    def joined(step, *, token=()):
        """Joined by a command of the documentation."""
        assert f"`gpulayer join {step}`" in steps or token
        words = step.replace("https://10.0.0.7:8470", url).replace("sha256:OLD", old.pin).replace("sha256:NEW", new.pin)
        process = up.start("join", *words.split(), *token, **state)
        started.append(process)
        said(process, f"joined {url} as ")
        return process

    def workers():
        return [each["id"] for each in json.loads(did("worker", "list", "--json"))["workers"]]

    started, serving = [], False
    try:
        token = shlex.split(serve(old).splitlines()[0])[4]
        serving = True
        stop(joined("https://10.0.0.7:8470 --fingerprint sha256:OLD", token=("--token", token)))
        before = workers()
        worker = joined("https://10.0.0.7:8470 --fingerprint sha256:OLD --fingerprint sha256:NEW")
        did("down")
        serving = False
        serve(new)
        serving = True
        did("submit", "--quiet", "--", "true")  # there is no other worker
        stop(worker)
        stop(joined("https://10.0.0.7:8470 --fingerprint sha256:NEW"))
        assert workers() == before
        assert len(before) == 1
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=60)
        if serving:
            did("down")


def test_a_server_that_is_not_the_pinned_one_or_has_no_pin_ends_the_first_join(up):
    wrong = f"sha256:{'0' * 64}"
    code, err = up.ended(up.url, "--token", up.new_token(), "--name", "wrong", "--fingerprint", wrong)
    assert (code, "is not the pinned one" in err, up.pin in err) == (5, True, True), err
    code, err = up.ended(up.url, "--token", up.new_token(), "--name", "none")
    assert (code, "is not trusted here" in err, "--fingerprint" in err) == (5, True, True), err


def test_a_token_that_is_used_revoked_or_foreign_says_what_to_do_and_is_not_kept(up):
    used = up.new_token()
    first = up.start("join", up.url, "--token", used, "--name", "first", "--fingerprint", up.pin)
    said(first, "joined")
    stop(first)
    for name, token in (("second", used), ("third", make_token(TokenKind.JOIN))):
        code, err = up.ended(up.url, "--token", token, "--name", name, "--fingerprint", up.pin)
        assert (code, " hint: " in err, token in err) == (4, True, False), err
        folder = up.folder / "state" / "joined" / name
        assert not (folder / "join-token").exists()
        code, err = up.ended(up.url, "--name", name, "--fingerprint", up.pin)
        assert (code, "was given no join token" in err) == (2, True), err


def test_a_control_plane_that_is_not_there_is_named_soon_and_waited_for(up):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{probe.getsockname()[1]}"
        process = up.start("join", url, "--token", up.new_token(), "--name", "away", "--fingerprint", up.pin)
        said(process, f"waiting for the control plane: the control plane at {url} can't be reached")
        assert process.poll() is None
        stop(process)


def test_no_token_stays_in_the_command_line_or_the_environment_of_a_joined_worker(up):
    token = up.new_token()
    canaries = {"AWS_SECRET_ACCESS_KEY": "canary-aws", "GPULAYER_TOKEN": "glc_canary"}
    process = up.start("join", up.url, "--token", token, "--name", "quiet", "--fingerprint", up.pin, **canaries)
    said(process, "joined")
    for file in ("cmdline", "environ"):
        content = Path(f"/proc/{process.pid}/{file}").read_bytes()
        assert not any(secret.encode() in content for secret in (token, "canary-aws", "glc_canary"))
    stop(process)
