"""``gpulayer up``: what it prints for others, and what it refuses before anything is started."""

import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import threading
from dataclasses import replace

import pytest

from gpulayer.cli import up
from gpulayer.cli.background import plane_command, tls_setting
from gpulayer.cli.handover import announcement, handover_lines, life_text
from gpulayer.cli.up import _check_same
from gpulayer.client.location import EndpointFound
from gpulayer.errors import Conflict, Forbidden, Unreachable, UsageError
from gpulayer.server.settings import CertificateFiles

PIN = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def endpoint(*, urls=(), pins=(), restart=("plane",), url="http://127.0.0.1:40001"):
    port = int(url.rpartition(":")[2])
    return EndpointFound(
        url, "127.0.0.1", port, "glc_own", 1, "0.1.0", embedded=False, urls=urls, fingerprints=pins, restart=restart
    )


def token(text, role, name="", days=0):
    life_s = days * 86_400 or 900
    return {"token": text, "token_id": "i", "role": role, "name": name, "expires_in_s": life_s}


def lines(found):
    made = announcement(found, token("gle_x", "join"), token("glc_y", "submitter", "client", 90))
    return [text for text, is_pasted in made if is_pasted], "\n".join(text for text, is_pasted in made if not is_pasted)


def test_the_best_address_stands_in_the_lines_and_the_others_below():
    pasted, said = lines(endpoint(urls=("https://10.0.0.5:8470", "https://[fd00::5]:8470"), pins=(PIN,)))
    assert pasted == [
        f"  gpulayer join https://10.0.0.5:8470 --token gle_x --fingerprint {PIN}",
        f"  export GPULAYER_URL=https://10.0.0.5:8470 GPULAYER_TOKEN=glc_y GPULAYER_FINGERPRINT={PIN}",
    ]
    assert "the control plane serves https://10.0.0.5:8470\n" in said
    assert "works once, for 15 min" in said
    assert "; 90 days)" in said
    assert "other addresses of this machine: https://[fd00::5]:8470" in said
    assert "gpulayer token create" in said
    assert "no other machine" not in said


def test_public_urls_all_stand_in_the_lines_and_without_a_pin_a_ca_vouches():
    restart = ("plane", "--public-url", "https://gpu.example.org:443", "--public-url", "https://gpu.example.net:1")
    pasted, said = lines(endpoint(urls=("https://gpu.example.org:443", "https://gpu.example.net:1"), restart=restart))
    assert pasted == [
        "  gpulayer join https://gpu.example.org:443 https://gpu.example.net:1 --token gle_x",
        "  export GPULAYER_URL=https://gpu.example.org:443,https://gpu.example.net:1 GPULAYER_TOKEN=glc_y",
    ]
    assert "other addresses" not in said


@pytest.mark.parametrize("is_public", [False, True])
def test_up_and_token_create_hand_out_the_same_lines(is_public):
    urls = ("https://10.0.0.5:8470", "https://[fd00::5]:8470")
    restart = ("plane", "--public-url", urls[0], "--public-url", urls[1]) if is_public else ("plane",)
    pasted, said = lines(endpoint(urls=urls, pins=(PIN, OTHER), restart=restart))
    plane = {
        "urls": list(urls), "public_urls": list(urls) if is_public else [], "url": "x", "fingerprints": [PIN, OTHER],
    }  # fmt: skip
    join = handover_lines(token("gle_x", "join"), plane, token="gle_x")
    client = handover_lines(token("glc_y", "submitter", "client", 90), plane, token="glc_y")
    assert [join[1], client[1]] == pasted
    assert [urls[1] in line for line in pasted] == [is_public] * 2
    assert (f"reached at {urls[1]}, too" in join[-1], f"other addresses of this machine: {urls[1]}" in said) == (
        (not is_public,) * 2
    )
    assert join[0].endswith(", for 15 min:")
    assert "good for 90 days;" in client[0]


def test_lines_that_nobody_looks_at_hold_no_client_token():
    made = announcement(endpoint(urls=("https://10.0.0.5:8470",), pins=(PIN,)), token("gle_x", "join"), None)
    assert [text.split()[:2] for text, is_pasted in made if is_pasted] == [["gpulayer", "join"]]
    assert "gpulayer token create --role submitter" in "\n".join(text for text, _ in made)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1, "1 s"), (119, "119 s"), (900, "15 min"), (5400, "90 min"), (28_800, "8 hours"), (86_400, "24 hours"),
     (172_799, "47 hours"), (7_776_000, "90 days")],
)  # fmt: skip
def test_a_life_is_told_in_one_unit(seconds, said):
    assert life_text({"expires_in_s": seconds}) == said


def test_two_pins_stand_in_both_lines():
    pasted, _ = lines(endpoint(urls=("https://10.0.0.5:1",), pins=(PIN, OTHER)))
    assert pasted[0].endswith(f" --fingerprint {PIN} --fingerprint {OTHER}")
    assert pasted[1].endswith(f" GPULAYER_FINGERPRINT={PIN},{OTHER}")


@pytest.mark.parametrize(
    ("restart", "said"),
    [
        (("plane", "--host", "127.0.0.1"), "no other machine reaches it there"),
        (("plane", "--host", "0.0.0.0"), "say it with --public-url"),
        ((), "say it with --public-url"),
    ],
)
def test_where_no_other_machine_gets_here_that_is_said(restart, said):
    pasted, told = lines(endpoint(url="http://127.0.0.1:8470", restart=restart))
    assert pasted[0] == "  gpulayer join http://127.0.0.1:8470 --token gle_x"
    assert said in told
    assert ("ssh -R 8470:127.0.0.1:8470" in told) == ("127.0.0.1" in restart)


def test_every_pasted_line_is_one_command_for_a_shell():
    pasted, _ = lines(endpoint(urls=("https://[fd00::5]:8470",), pins=(PIN,)))
    for line in pasted:
        assert shlex.join(shlex.split(line)).replace("'", "") == line.strip()


def test_the_arguments_of_a_control_plane_are_a_plan(tmp_path):
    argv = plane_command(
        state=tmp_path, mode="standing", host="::", port=9, tls="/c,/k", public_urls=["https://a:1", "https://b:2"]
    )
    assert argv[-6:] == ["--tls", "/c,/k", "--public-url", "https://a:1", "--public-url", "https://b:2"]
    assert "--tls" not in plane_command(state=tmp_path, mode="standing")


def test_what_tls_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [tls_setting(text) for text in ("auto", "off")] == ["auto", "off"]
    assert tls_setting("c.pem,/k.pem") == CertificateFiles(tmp_path / "c.pem", tmp_path.__class__("/k.pem"))
    for text in ("", "on", "c.pem", "c.pem,", ",k.pem", "AUTO"):
        with pytest.raises(UsageError, match="not a certificate and its key"):
            tls_setting(text)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tls", "maybe"], "--tls maybe: not a certificate and its key"),
        (["--tls", "none.pem,none.key"], "none.pem can't be read: no such file"),
        (["--public-url", "http://gpu.example.org"], "plain http would show your token"),
        (["--public-url", "gpu.example.org"], "is not a control plane's address"),
        (["--keep-events", "59m"], "--keep-events 59m is shorter than 1h"),
        (["--host", "192.0.2.77"], "port 8470 on 192.0.2.77 can't be used: cannot assign requested address"),
        (["--host", "no-such-host.invalid"], "--host no-such-host.invalid: no such address or name"),
    ],
)
def test_what_can_not_be_is_said_before_anything_starts(cli, away, argv, said):
    ended = cli("up", *argv)
    assert ended.code == 2
    assert said in ended.err
    assert not (away.parent / "state").exists()


def test_a_port_in_use_is_of_the_former_one_where_the_folder_was_restored(cli, away):
    state = away.parent / "state"
    state.mkdir(mode=0o700)
    (state / "restored").touch()
    with socket.create_server(("127.0.0.1", 0)) as former:
        port = str(former.getsockname()[1])
        ended = cli("up", "--host", "127.0.0.1", "--port", port)
    assert ended.code == 2
    assert f"port {port} on 127.0.0.1 can't be used" in ended.err
    assert "End that one first" in ended.err
    assert "--port N" not in ended.err


def test_a_background_control_plane_that_another_start_has_ended_is_taken_over_from(tmp_path, monkeypatch, capsys):
    """Two at once: the second finds nobody there any more. One that is there, and can't be asked, stays."""
    ended = endpoint(url="http://127.0.0.1:9")
    monkeypatch.setattr(up, "wait_until_gone", lambda *_, **__: True)
    up._take_over(ended, tmp_path)
    monkeypatch.setattr(up, "wait_until_gone", lambda *_, **__: False)
    with pytest.raises(Unreachable):
        up._take_over(ended, tmp_path)
    assert "taking over" in capsys.readouterr().err


def test_a_port_that_another_start_got_meanwhile_is_no_foreign_one(tmp_path, monkeypatch):
    background, standing = replace(endpoint(), pid=1), replace(endpoint(), pid=2)
    monkeypatch.setattr(up, "find_plane", lambda _: standing)
    assert up._is_another(background, tmp_path)
    assert up._is_another(None, tmp_path)
    assert not up._is_another(standing, tmp_path)
    monkeypatch.setattr(up, "find_plane", lambda _: None)
    assert not up._is_another(background, tmp_path)


def test_a_client_token_that_nobody_used_goes_with_the_next_one(program, away):
    def run(*argv, **environment):
        process = program(*argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
        out, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        return out.decode()

    def tokens():
        listed = json.loads(run("token", "list", "--json"))["tokens"]
        return {each["id"]: each["state"] for each in listed if each["name"] == "client"}

    def printed(out):
        return out.split("GPULAYER_TOKEN=glc_")[1][:12]

    start = ("up", "--detach", "--no-worker", "--port", "0", "--public-url", "https://gpu.example.org")
    try:
        first = printed(run(*start))
        second = printed(run("up", "--detach"))
        assert tokens() == {first: "revoked", second: "valid"}
        (away.parent / "state" / "printed-token").write_text("damaged")
        third = printed(run("up", "--detach"))
        assert tokens() == {first: "revoked", second: "valid", third: "valid"}
    finally:
        run("down")


def test_up_in_the_foreground_shows_a_client_token_to_somebody_at_a_terminal_alone(program, away):
    """A unit's journal would keep it for all to read; a join token is used up by then."""

    def stopped(process):
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=90)

    start = ("up", "--no-worker", "--host", "127.0.0.1", "--port", "0")
    logged = program(*start, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1)
    words = logged.stdout.readline().split()
    assert words[:2] == [b"gpulayer", b"join"]
    told = b""
    while b"gpulayer token create --role submitter" not in told:
        told += logged.stderr.readline()
    out, err = stopped(logged)
    assert b"glc_" not in out + err + told
    screen, terminal = pty.openpty()
    try:
        watched = program(*start, stdin=subprocess.DEVNULL, stdout=terminal, stderr=-1)
        shown = b""
        while b"GPULAYER_TOKEN=glc_" not in shown:
            shown += os.read(screen, 65536)
        stopped(watched)
    finally:
        os.close(screen)
        os.close(terminal)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            Unreachable("no control plane answers", hint="see x"),
            "error: no control plane answers\n hint: see",
        ),
        (Forbidden("only an admin makes tokens"), "error: only an admin makes tokens\n"),
    ],
)
def test_what_hinders_the_announcement_is_a_line_and_no_traceback(away, monkeypatch, capsys, error, said):
    def refuse(*_):
        raise error

    here = replace(endpoint(), pid=os.getpid())
    monkeypatch.setattr(up, "find_plane", lambda _: here)
    monkeypatch.setattr(up.Transport, "send", refuse)
    announcing = threading.Thread(target=up._announce_when_up, args=(away,))
    announcing.start()  # an exception in a thread is a warning, and warnings are errors here
    announcing.join()
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert "the control plane goes on" in told


def test_a_folder_that_can_not_be_written_hinders_no_announcement(plane, parts, away, capsys):
    plane.on("POST", "/v1/tokens", [parts.Answer(201, json=token(text, "x")) for text in ("gle_x", "glc_y")])
    up._announce(replace(endpoint(), port=plane.port, token=plane.token), away / "gone", has_client=True)
    told = capsys.readouterr()
    assert "GPULAYER_TOKEN=glc_y" in told.out
    assert "printed-token can't be written (No such file or directory)" in told.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": 9000}, "--port"),
        ({"port": 8470, "tls": "/c.pem,/k.pem"}, "--tls"),
        ({"host": "127.0.0.1", "port": 8470}, "--host"),
        ({"port": 8470, "has_worker": False}, "--no-worker"),
        ({"port": 8470, "public_urls": ["https://a.example"]}, "--public-url"),
        ({"port": 8470, "keep_logs_ms": 5}, "--keep-logs"),
    ],
)
def test_options_that_a_running_control_plane_was_not_started_with_are_refused(tmp_path, given, said):
    """A script that moves the plane, or gives it another certificate, must not be told that all is well."""
    usual = {"state": tmp_path, "mode": "standing", "host": "0.0.0.0", "keep_logs_ms": 30 * 86_400_000}
    running = endpoint(restart=tuple(plane_command(**{**usual, "port": 8470})))
    with pytest.raises(Conflict, match=f"with another {said}"):
        _check_same(running, plane_command(**{**usual, **given}))


@pytest.mark.parametrize("port", [8470, 9000, 0])
def test_the_options_of_a_running_control_plane_and_none_are_good(tmp_path, port):
    usual = {"state": tmp_path, "mode": "standing", "host": "0.0.0.0", "keep_logs_ms": 30 * 86_400_000}
    running = endpoint(restart=tuple(plane_command(**{**usual, "port": 9000, "has_worker": False})))
    wanted = plane_command(**{**usual, "port": port, "has_worker": port != 9000})
    _check_same(running, wanted)
