"""The file of contexts: what it says, who may read it, and that nothing of it is ever lost."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpulayer.client.connect import Settings, _relocation
from gpulayer.client.contexts import (
    Context,
    Contexts,
    change_contexts,
    check_name,
    parse_contexts,
    read_contexts,
    render_contexts,
)
from gpulayer.client.location import Configured, Local
from gpulayer.errors import UsageError

PIN = f"sha256:{'ab' * 32}"
LAB = Context(("https://lab.example:8470", "https://10.0.0.7:8470"), "glc_lab0aaaaaaaa_secret", (PIN,))
HOME = Context(("http://127.0.0.1:8470",), "glc_home0aaaaaaa_secret", proxy="http://proxy.example:3128")
BOTH = Contexts("lab", {"lab": LAB, "home": HOME})


def test_what_is_written_is_read_back():
    assert parse_contexts(render_contexts(BOTH), path="f") == BOTH
    assert parse_contexts(render_contexts(Contexts()), path="f") == Contexts()


def test_fields_that_another_version_wrote_are_kept():
    document = json.loads(render_contexts(BOTH))
    document["contexts"]["lab"]["colour"] = "green"
    read = parse_contexts(json.dumps(document).encode(), path="f")
    assert json.loads(render_contexts(read.using("home")))["contexts"]["lab"]["colour"] == "green"


def test_a_token_is_in_no_representation():
    assert "secret" not in repr(BOTH)
    assert LAB.token_id == "lab0aaaaaaaa"


def test_the_first_context_becomes_the_current_one_and_later_ones_do_not():
    one = Contexts().with_context("lab", LAB)
    assert one.current == "lab"
    assert one.with_context("home", HOME).current == "lab"
    assert one.with_context("home", HOME, is_current=True).current == "home"
    assert Contexts().with_context("lab", LAB, is_current=False).current == ""
    assert Contexts("", {"lab": LAB}).with_context("lab", LAB).current == ""


def test_a_removed_current_context_leaves_none_current():
    assert BOTH.without("lab") == Contexts("", {"home": HOME})
    assert BOTH.without("home").current == "lab"
    for act in (BOTH.without, BOTH.using, BOTH.find):
        with pytest.raises(UsageError, match="no context 'x'") as caught:
            act("x")
        assert "lab, home" in caught.value.hint


@pytest.mark.parametrize("name", ["", "local", "remote", "-x", "a b", "a/b", "é", "x" * 65, "a\n"])
def test_a_name_that_could_mean_something_else_is_refused(name):
    with pytest.raises(UsageError, match="can't be the name"):
        check_name(name)
    assert check_name("gpu-box_1.lab") == "gpu-box_1.lab"


def damaged(change):
    document = json.loads(render_contexts(BOTH))
    change(document)
    return json.dumps(document).encode()


DAMAGES = {
    "empty": b"",
    "cut short": render_contexts(BOTH)[:-40],
    "not an object": b"[]",
    "no contexts": b'{"schema": 1, "current": ""}',
    "no such current one": damaged(lambda document: document.update(current="gone")),
    "a context without urls": damaged(lambda document: document["contexts"]["lab"].update(urls=[])),
    "a context without a token": damaged(lambda document: document["contexts"]["lab"].pop("token")),
    "a url that is none": damaged(lambda document: document["contexts"]["lab"].update(urls=["ftp://x"])),
    "a malformed pin": damaged(lambda document: document["contexts"]["lab"].update(fingerprints=[PIN[:-1]])),
    "another schema": damaged(lambda document: document.update(schema=2)),
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_an_error_that_names_it_and_is_left_as_it_is(tmp_path, content):
    path = tmp_path / "contexts.json"
    path.write_bytes(content)
    path.chmod(0o600)
    for act in (read_contexts, lambda path: change_contexts(path, lambda before: before.with_context("new", LAB))):
        with pytest.raises(UsageError, match=str(path)) as caught:
            act(path)
        assert caught.value.hint
        assert "secret" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_file_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "contexts.json"
    path.write_bytes(render_contexts(BOTH))
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"others on this machine may read .* 0{mode:o}") as caught:
            read_contexts(path)
        assert f"chmod 600 {path}" in caught.value.hint
    path.chmod(0o600)
    assert read_contexts(path) == BOTH


def test_the_file_and_its_folder_are_for_their_owner_alone(tmp_path):
    path = tmp_path / "config" / "gpulayer" / "contexts.json"
    before = os.umask(0)
    try:
        change_contexts(path, lambda _: BOTH)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_contexts(path) == BOTH
    assert sorted(one.name for one in path.parent.iterdir()) == ["contexts.json", "contexts.lock"]


def test_a_change_that_fails_leaves_the_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "contexts.json"
    change_contexts(path, lambda _: BOTH)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"can't be written: No space left"):
        change_contexts(path, lambda contexts: contexts.without("lab"))
    assert read_contexts(path) == BOTH
    assert sorted(one.name for one in tmp_path.iterdir()) == ["contexts.json", "contexts.lock"]


def test_a_file_that_is_a_link_stays_one(tmp_path):
    real, path = tmp_path / "dotfiles.json", tmp_path / "contexts.json"
    change_contexts(real, lambda _: BOTH)
    path.symlink_to(real)
    change_contexts(path, lambda contexts: contexts.using("home"))
    assert path.is_symlink()
    assert read_contexts(real).current == "home"


def test_commands_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "contexts.json"
    program = (
        "import sys; from pathlib import Path; from gpulayer.client.contexts import Context, change_contexts\n"
        "for n in range(10):\n"
        "    one = Context(('https://x:1',), 'glc_t')\n"
        "    change_contexts(Path(sys.argv[1]), lambda c: c.with_context(f'{sys.argv[2]}-{n}', one))"
    )
    many = [subprocess.Popen([sys.executable, "-c", program, path, f"c{k}"]) for k in range(4)]
    assert [one.wait() for one in many] == [0] * 4
    assert len(read_contexts(path).named) == 40


def test_a_running_command_finds_where_its_context_has_moved_to(tmp_path):
    path = tmp_path / "contexts.json"
    change_contexts(path, lambda _: BOTH)
    settings = Settings(Configured(LAB.location(), "lab"), {}, "0.1.0", "test", contexts=path)
    relocate = _relocation(settings)
    assert relocate() == LAB.location()
    moved = Context(("https://10.0.0.8:8470",), "glc_new", (PIN,))
    change_contexts(path, lambda contexts: contexts.with_context("lab", moved))
    assert relocate() == moved.location()
    path.write_bytes(b"{")
    assert relocate() is None
    change = Settings(Configured(LAB.location()), {}, "0.1.0", "test", contexts=path)
    assert _relocation(change)() is None  # a URL that was given is not looked up


def test_this_machines_own_control_plane_is_not_told_where_commands_go(tmp_path):
    names = ("GPULAYER_URL", "GPULAYER_TOKEN", "GPULAYER_FINGERPRINT", "GPULAYER_PROXY")
    settings = Settings(Local(tmp_path), {**dict.fromkeys(names, "x"), "PATH": "/bin"}, "0.1.0", "test")
    assert dict(settings.plane(tmp_path).environment) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b" " * (2**20 + 1), "larger than 1,048,576 bytes"),
        (b'{"schema": true, "current": "", "contexts": {}}', "has not the fields"),
        (b'{"schema": 1.0, "current": "", "contexts": {}}', "has not the fields"),
        (b'{"schema": false}', "has not the fields"),
        (b"[]", "has not the fields"),
    ],
    ids=["deep", "large", "true", "float", "false", "list"],
)
def test_a_file_that_is_rubbish_is_an_error_that_names_it(tmp_path, content, why):
    path = tmp_path / "contexts.json"
    path.write_bytes(content)
    path.chmod(0o600)
    for act in (read_contexts, lambda path: change_contexts(path, lambda before: before)):
        with pytest.raises(UsageError, match=why) as caught:
            act(path)
        assert str(path) in caught.value.message
    assert path.read_bytes() == content


def test_what_is_no_file_is_neither_waited_for_nor_read(tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe, 0o600)
    folder.mkdir(mode=0o700)
    for path in (pipe, folder, Path("/dev/zero")):
        with pytest.raises(UsageError, match="it is no regular file"):
            read_contexts(path)
