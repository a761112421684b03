"""Contexts and the commands that go by them, against scripted control planes."""

import json
import stat

import pytest

PIN = f"sha256:{'00' * 32}"
TOKEN = "glc_" + "a" * 12 + "_secret"


@pytest.fixture
def lab(tls_plane, certify, parts):
    """A control plane of another machine, as it were."""
    plane = tls_plane(certify("lab"))
    you = {"token_id": "a" * 12, "name": "alice", "role": "submitter", "expires_at": "2027-02-28T00:00:00.000Z"}
    plane.on("GET", "/v1/plane", parts.plane(you=you, mode="standing", urls=[plane.url, "https://lab.example:8470"]))
    plane.on("GET", "/v1/workers", {"workers": []})
    return plane


@pytest.fixture
def token(monkeypatch, tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def listed(cli):
    return json.loads(cli("context", "list", "--json").out)


def test_a_context_is_added_with_a_word_on_who_one_is_there(cli, lab, token, tmp_path):
    said = cli("context", "add", "lab", lab.url, "--fingerprint", lab.certificate.pin, "--token-file", token)
    assert (said.code, said.err) == (0, "")
    lines = said.out.decode().splitlines()
    assert lines[0] == f"context lab: {lab.url} (current)"
    assert lines[1].startswith(f"at {lab.url} you are alice (submitter, until 2027-0")
    file = tmp_path / "config" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert listed(cli) == {
        "current": "lab",
        "contexts": [
            {
                "name": "lab",
                "current": True,
                "urls": [lab.url],
                "fingerprints": [lab.certificate.pin],
                "proxy": "",
                "token_id": "a" * 12,
            }
        ],
    }
    assert b"secret" not in cli("context", "list").out + cli("context", "list", "--json").out


def test_commands_go_to_the_current_context_and_to_another_by_its_name(cli, lab, plane, token, monkeypatch):
    plane.on("GET", "/v1/workers", {"workers": []})
    cli("context", "add", "lab", lab.url, "--fingerprint", lab.certificate.pin, "--token-file", token)
    cli("context", "add", "here", plane.url, "--token-file", token, "--no-check")
    for argv, asked in (((), lab), (("--target", "remote"), lab), (("--target", "here"), plane)):
        asked.asked.clear()
        assert cli("worker", "list", *argv).code == 0
        assert len(asked.asked) == 1
    said = cli("worker", "list", "--target", "nowhere")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: there is no context 'nowhere'")
    assert "lab, here" in said.err
    monkeypatch.setenv("GPULAYER_URL", plane.url)
    monkeypatch.setenv("GPULAYER_TOKEN", TOKEN)
    assert cli("worker", "list").code == 0
    assert len(plane.asked) == 2
    said = cli("context", "use", "here")
    assert said.out == b"current context: here\n"
    assert "GPULAYER_URL is set here and comes before" in said.err


def test_another_address_is_one_command_and_keeps_the_rest(cli, lab, token, certify, tls_plane):
    pin = lab.certificate.pin
    cli("context", "add", "lab", "https://gone.example", "--fingerprint", pin, "--token-file", token, "--no-check")
    said = cli("context", "add", "lab", lab.url)
    assert (said.code, said.err) == (0, "")
    assert listed(cli)["contexts"][0]["urls"] == [lab.url]
    assert listed(cli)["contexts"][0]["fingerprints"] == [pin]
    assert cli("context", "add", "lab", "--fingerprint", pin, "--fingerprint", PIN).code == 0
    assert listed(cli)["contexts"][0]["fingerprints"] == [pin, PIN]
    assert cli("context", "add", "lab", "--proxy", "http://proxy.example:3128", "--no-check").code == 0
    assert listed(cli)["contexts"][0]["proxy"] == "http://proxy.example:3128"
    assert cli("context", "add", "lab", "--proxy", "none").code == 0
    assert cli("worker", "list").code == 0


def test_a_new_context_without_a_url_takes_what_up_printed_for_clients(cli, lab, monkeypatch):
    monkeypatch.setenv("GPULAYER_URL", f"https://127.0.0.1:9 {lab.url}")
    monkeypatch.setenv("GPULAYER_TOKEN", TOKEN)
    monkeypatch.setenv("GPULAYER_FINGERPRINT", lab.certificate.pin)
    said = cli("context", "add", "lab")
    assert said.code == 0
    assert f"at {lab.url} you are alice" in said.out.decode()
    assert listed(cli)["contexts"][0]["urls"] == ["https://127.0.0.1:9", lab.url]


@pytest.fixture
def elsewhere(monkeypatch, plane):
    """The environment names another control plane, with its token."""
    monkeypatch.setenv("GPULAYER_URL", plane.url)
    monkeypatch.setenv("GPULAYER_TOKEN", "glc_" + "e" * 12 + "_elsewhere")
    return plane


def test_a_context_that_is_changed_keeps_its_own_token_whatever_the_environment_has(cli, lab, token, elsewhere):
    pin = lab.certificate.pin
    cli("context", "add", "lab", "https://gone.example", "--fingerprint", pin, "--token-file", token, "--no-check")
    for change in ([lab.url], ["--fingerprint", pin, "--fingerprint", PIN], ["--proxy", "none"]):
        said = cli("context", "add", "lab", *change)
        assert (said.code, b"you are alice" in said.out) == (0, True), said.err
    assert listed(cli)["contexts"][0]["token_id"] == "a" * 12
    assert {each.headers["authorization"] for each in lab.asked} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("url", ["", "not a url", "https://other.example"])
def test_a_token_of_the_environment_is_not_shown_to_another_control_plane(cli, lab, elsewhere, monkeypatch, url):
    monkeypatch.setenv("GPULAYER_URL", url)
    said = cli("context", "add", "lab", lab.url, "--fingerprint", lab.certificate.pin)
    assert said.code == 2
    assert "a context needs a client token" in said.err
    assert "GPULAYER_TOKEN is for the control plane of GPULAYER_URL alone" in said.err
    said = cli("context", "add", "lab", elsewhere.url, lab.url, "--fingerprint", lab.certificate.pin)
    assert said.code == 2
    assert (lab.asked, elsewhere.asked, listed(cli)["contexts"]) == ([], [], [])


@pytest.mark.parametrize("is_new", [True, False])
def test_a_token_of_the_environment_is_taken_where_its_url_is_the_one_that_is_meant(
    cli, lab, token, monkeypatch, is_new
):
    pin = lab.certificate.pin
    if not is_new:
        token.write_text("glc_" + "o" * 12 + "_old")
        cli("context", "add", "lab", lab.url, "--fingerprint", pin, "--token-file", token, "--no-check")
    monkeypatch.setenv("GPULAYER_URL", f"https://127.0.0.1:9,{lab.url}/")
    monkeypatch.setenv("GPULAYER_TOKEN", TOKEN)
    said = cli("context", "add", "lab", *([lab.url] if is_new else []), "--fingerprint", pin)
    assert (said.code, b"you are alice" in said.out) == (0, True), said.err
    assert listed(cli)["contexts"][0]["token_id"] == "a" * 12


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--fingerprint", PIN], 5, "is not the pinned one"),
        ([], 5, "is not trusted here"),
        (["--fingerprint", "sha256:abc"], 2, "is not a fingerprint"),
        (["--fingerprint", ""], 2, "--fingerprint is empty"),
        (["--proxy", "proxy:1"], 2, "is not a proxy's address"),
    ],
)
def test_what_can_not_be_trusted_or_read_is_not_written_down(cli, lab, token, argv, code, words):
    said = cli("context", "add", "lab", lab.url, "--token-file", token, *argv)
    assert (said.code, words in said.err) == (code, True), said.err
    assert listed(cli) == {"current": "", "contexts": []}
    assert lab.asked == []


def test_a_token_that_the_server_does_not_know_is_not_written_down(cli, lab, token):
    lab.token = "another"
    said = cli("context", "add", "lab", lab.url, "--fingerprint", lab.certificate.pin, "--token-file", token)
    assert said.code == 4
    assert listed(cli)["contexts"] == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["lab"], "a new context needs a URL"),
        (["local", "https://x"], "can't be the name"),
        (["lab", "http://box.example:1"], "plain http would show your token"),
        (["lab", "https://x"], "a context needs a client token"),
        (["lab", "https://x", "--token-file", "gone"], "--token-file gone can't be read"),
        (["lab", "https://x", "--token-file", "joining"], "that token is for workers"),
    ],
)
def test_a_mistake_is_told_before_anything_is_sent(cli, away, argv, words):
    (away / "joining").write_text("gle_x")
    said = cli("context", "add", *argv)
    assert (said.code, words in said.err) == (2, True), said.err


def test_a_token_comes_from_standard_input(program, lab, away):
    argv = ["context", "add", "lab", lab.url, "--fingerprint", lab.certificate.pin, "--token-file", "-"]
    process = program(*argv, stdin=-1, stdout=-1, stderr=-1)
    out, err = process.communicate(TOKEN.encode() + b"\n", timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert b"you are alice" in out


def test_a_removed_context_is_forgotten_with_its_token(cli, lab, token, tmp_path):
    cli("context", "add", "lab", lab.url, "--fingerprint", lab.certificate.pin, "--token-file", token)
    said = cli("context", "remove", "lab")
    assert said.out == b"context lab removed\n"
    assert "no context is current now" in said.err
    assert b"secret" not in (tmp_path / "config" / "contexts.json").read_bytes()
    assert cli("context", "remove", "lab").code == 2


def test_a_damaged_file_of_contexts_is_named_and_hinders_only_who_needs_it(cli, plane, parts, tmp_path):
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "contexts.json"
    file.write_text("{")
    file.chmod(0o600)
    said = cli("worker", "list")
    assert said.code == 2
    assert said.err.startswith(f"error: the file of contexts {file} is damaged")
    assert cli("status", "--target", "local").code == 0
    plane.on("GET", "/v1/workers", {"workers": []})
    assert cli("worker", "list", plane=plane).code == 0
    assert file.read_text() == "{"


def test_status_tells_which_context_which_address_whom_it_trusts_and_who_one_is(cli, lab, token):
    gone = "https://127.0.0.1:9"
    cli("context", "add", "lab", gone, lab.url, "--fingerprint", lab.certificate.pin, "--token-file", token)
    told = dict(line.split("  ", 1) for line in cli("status").out.decode().splitlines() if line[0] != " ")
    told = {name.strip(): value.strip() for name, value in told.items()}
    assert told["control plane"] == lab.url
    assert told["context"] == "lab"
    assert told["trusted by"] == "the pinned fingerprint"
    assert told["you are"] == f"alice (submitter, token {'a' * 12})"
    assert told["token is good"].startswith("until 2027-0")
    assert told["others reach it"] == "https://lab.example:8470"
    document = json.loads(cli("status", "--json").out)
    assert (document["context"], document["address"], document["trust"]) == ("lab", lab.url, "pin")
    assert document["you"]["name"] == "alice"


def test_a_shell_completes_targets_and_names(cli, plane, token, monkeypatch):
    cli("context", "add", "lab", plane.url, "--token-file", token, "--no-check")
    monkeypatch.setenv("_GPULAYER_COMPLETE", "complete_bash")
    for words, expected in (("gpulayer context use l", "lab"), ("gpulayer job list --target l", "local\nlab")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert cli().out.decode().split() == expected.split()


@pytest.mark.parametrize(
    "argv",
    [
        ("context", "add", "lab", "https://user:hunter2@box:8470"),
        ("context", "add", "https://user:hunter2@box:8470", "https://box"),
        ("context", "use", "https://user:hunter2@box:8470"),
        ("--target", "https://user:hunter2@box:8470", "status"),
        ("status", "--target", "https://user:hunter2@box:8470"),
        ("doctor", "https://user:hunter2@box:8470"),
        ("up", "--public-url", "https://user:hunter2@box:8470"),
        ("join", "https://user:hunter2@box:8470", "--token", "gle_x"),
    ],
)
def test_a_password_in_an_address_is_not_printed(cli, monkeypatch, argv):
    monkeypatch.setenv("GPULAYER_TOKEN", "glc_" + "a" * 12 + "_secret")
    said = cli(*argv)
    assert said.code == 2
    assert "hunter2" not in said.err + said.out.decode()


def test_neither_is_that_of_the_variables(cli, monkeypatch):
    monkeypatch.setenv("GPULAYER_TOKEN", "glc_" + "a" * 12 + "_secret")
    for name in ("GPULAYER_URL", "GPULAYER_PROXY"):
        monkeypatch.setenv("GPULAYER_URL", "https://box:8470")
        monkeypatch.setenv(name, "https://user:hunter2@box:8470")
        said = cli("status")
        assert (said.code, "hunter2" in said.err + said.out.decode()) == (2, False), name
