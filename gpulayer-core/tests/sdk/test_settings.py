"""What the face reads from outside, once: variables, the file of contexts, arguments."""

import pytest

import gpulayer as gl
from gpulayer import sdk
from gpulayer.client.contexts import Context, change_contexts
from gpulayer.client.location import Configured, Local, Location
from gpulayer.errors import UsageError
from gpulayer.sdk.settings import config_folder, resolve_settings, state_folder

PIN = f"sha256:{'ab' * 32}"
LAB = Context(("https://lab.example:8470",), "glc_lab", (PIN,))


@pytest.fixture
def outside(tmp_path):
    change_contexts(tmp_path / "contexts.json", lambda contexts: contexts.with_context("lab", LAB))
    return {"GPULAYER_CONFIG_DIR": str(tmp_path), "GPULAYER_STATE_DIR": str(tmp_path / "state")}


def test_the_current_context_is_the_default_and_is_remembered_for_looking_it_up_again(outside, tmp_path):
    settings = resolve_settings(environment=outside)
    assert settings.where == Configured(LAB.location(), "lab")
    assert settings.contexts == tmp_path / "contexts.json"
    assert resolve_settings(environment=outside, target="local").where == Local(tmp_path / "state")


def test_what_is_given_comes_before_contexts_whose_file_is_then_not_read(outside, tmp_path):
    (tmp_path / "contexts.json").write_text("{")
    given = {"url": "https://a.example,https://b.example", "token": "glc_a", "fingerprint": PIN}
    expected = Location.of("https://a.example https://b.example", "glc_a", fingerprint=PIN)
    assert resolve_settings(environment=outside, **given).where == Configured(expected)
    with pytest.raises(UsageError, match="is damaged"):
        resolve_settings(environment=outside)


def test_folders_are_the_platforms_unless_they_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert config_folder({}).is_relative_to(tmp_path)
    assert config_folder({}) != state_folder({})
    assert config_folder({"GPULAYER_CONFIG_DIR": "/c"}).as_posix() == "/c"


@pytest.mark.parametrize("kind", [gl.configure, gl.Client, gl.AsyncClient])
def test_every_way_in_takes_a_fingerprint_and_a_context_and_refuses_malformed_ones_at_once(kind, outside, monkeypatch):
    monkeypatch.setattr(sdk, "_default", sdk._Default())
    for name, value in outside.items():
        monkeypatch.setenv(name, value)
    for name in ("GPULAYER_URL", "GPULAYER_TOKEN", "GPULAYER_FINGERPRINT", "GPULAYER_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="is not a fingerprint"):
        kind(url="https://x.example", token="glc_a", fingerprint="sha256:short")
    with pytest.raises(UsageError, match="no context 'other'"):
        kind(target="other")
    made = kind(target="lab")
    if made is not None:
        assert made.settings.where == Configured(LAB.location(), "lab")
