import json

import pytest


def test_with_nothing_running_nothing_fails_and_nothing_is_started(cli, away):
    said = cli("doctor")
    assert said.code == 0, said.err
    assert b"the next command that needs one starts it" in said.out
    assert said.out.endswith(b"nothing fails\n")
    assert not (away.parent / "state" / "endpoint.json").exists()


def test_a_folder_that_was_named_and_is_not_there_is_an_error_and_no_good_health(cli, tmp_path):
    said = cli("doctor", "--state", str(tmp_path / "typo"))
    assert said.code == 2
    assert f"{tmp_path / 'typo'} holds no control plane" in said.err
    assert b"nothing fails" not in said.out


def test_json_is_one_document_with_a_hint_for_what_fails(cli):
    said = cli("doctor", "http://127.0.0.1:1", "--json")
    assert said.code == 5
    document = json.loads(said.out)
    assert document["ok"] is False
    (finding,) = document["findings"]
    assert (finding["check"], finding["state"]) == ("address", "fail")
    assert finding["hint"]
    assert said.err == ""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("doctor", "http://127.0.0.1:1", "--target", "local"), "another control plane than --target"),
        (("doctor", "--fingerprint", "sha256:" + "0" * 64), "--fingerprint goes with a URL"),
        (("doctor", "http://127.0.0.1:1", "--fingerprint", "sha256:12"), "is not a fingerprint"),
        (("doctor", "http://box.example:8470"), "plain http would show your token"),
    ],
)
def test_what_makes_no_sense_is_refused(cli, argv, words):
    said = cli(*argv)
    assert said.code == 2
    assert words in said.err


def test_a_configured_control_plane_without_a_token_is_not_authorised(cli, monkeypatch):
    monkeypatch.setenv("GPULAYER_URL", "http://127.0.0.1:1")
    said = cli("doctor")
    assert said.code == 4
    assert b"needs a token" in said.out
