"""``gpulayer token`` and ``gpulayer audit``: against a scripted control plane, and against a real one."""

import json
import os
import pty
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from gpulayer.wire.trail import FIRST_HASH, entry_hash

MADE = "glc_" + "b" * 12 + "_new-secret"
PIN = "sha256:" + "ab" * 32


def reply(role="submitter", **changes):
    token = MADE.replace("glc_", "gle_") if role == "join" else MADE
    record = {"token": token, "token_id": "b" * 12, "role": role, "name": "alice", "expires_in_s": 7_776_000}
    return {**record, **changes}


def record(**changes):
    return {
        "id": "b" * 12,
        "kind": "client",
        "role": "submitter",
        "name": "alice",
        "state": "valid",
        "created_at": "2026-11-30T05:00:00.000Z",
        "expires_at": "2027-02-28T05:00:00.000Z",
        "last_used_at": None,
        "max_uses": None,
        "uses": 0,
        "labels": {},
        "max_devices": None,
        **changes,
    }


def trail(length=5):
    entries, after = [], FIRST_HASH
    for seq in range(1, length + 1):
        fields = {
            "seq": seq,
            "wall_ms": 1_795_000_000_000 + seq,
            "actor": "alice (bbbbbbbbbbbb)",
            "action": "token.create",
            "subject": f"t{seq}",
            "details": '{"name":"bob","role":"reader"}',
        }
        after = entry_hash(after=after, **fields)
        entries.append({**fields, "at": "2026-11-30T05:00:00.000Z", "hash": after})
    return entries


def serve_trail(plane, entries, page=2):
    def answer(asked):
        after = int(asked.query.get("after", 0))
        found = [entry for entry in entries if entry["seq"] > after][:page]
        return {"entries": found, "next": found[-1]["seq"] if found else after}

    plane.on("GET", "/v1/audit", answer)


@pytest.fixture
def reached(plane, parts):
    """A control plane that other machines reach."""
    urls = ["https://10.0.0.5:8470", "https://box.example:8470"]
    plane.on("GET", "/v1/plane", parts.plane(urls=urls, fingerprints=[PIN]))
    return plane


def test_a_new_token_stands_alone_on_stdout_and_what_to_do_with_it_on_stderr(cli, reached, parts):
    reached.on("POST", "/v1/tokens", parts.Answer(201, json=reply()))
    said = cli("token", "create", "--role", "submitter", "--name", "alice", "--expires", "90d", plane=reached)
    assert (said.code, said.out) == (0, f"{MADE}\n".encode())
    assert reached.of("POST", "/v1/tokens")[0].json == {"role": "submitter", "name": "alice", "expires_in_s": 7_776_000}
    lines = [line.strip() for line in said.err.splitlines()]
    export = "export GPULAYER_URL=https://10.0.0.5:8470 GPULAYER_TOKEN=TOKEN GPULAYER_FINGERPRINT=" + PIN
    assert export in lines
    assert f"gpulayer context add NAME https://10.0.0.5:8470 --fingerprint {PIN}" in lines
    assert "the control plane is reached at https://box.example:8470, too" in lines
    assert MADE not in said.err  # stderr ends in logs


def test_a_join_token_comes_with_its_whole_join_line(cli, reached, parts):
    reached.on("POST", "/v1/tokens", parts.Answer(201, json=reply("join", name="rack", expires_in_s=86_400)))
    said = cli(
        *("token", "create", "--role", "join", "--name", "rack", "--uses", "20", "--max-devices", "0"),
        *("--label", "room=4", "--label", "kind=spare"),
        plane=reached,
    )
    assert said.code == 0
    assert reached.of("POST", "/v1/tokens")[0].json == {
        "role": "join", "name": "rack", "max_uses": 20, "labels": {"room": "4", "kind": "spare"}, "max_devices": 0,
    }  # fmt: skip
    lines = said.err.splitlines()
    assert lines[0] == "token bbbbbbbbbbbb (join rack)"
    assert lines[1] == "it adds a worker; it works for 20 workers, for 24 hours:"
    assert lines[2] == f"  gpulayer join https://10.0.0.5:8470 --token TOKEN --fingerprint {PIN}"


def test_a_person_at_a_terminal_sees_the_whole_line(program, reached, parts):
    reached.on("POST", "/v1/tokens", parts.Answer(201, json=reply("join")))
    screen, terminal = pty.openpty()
    try:
        making = program("token", "create", "--role", "join", plane=reached, stdout=subprocess.PIPE, stderr=terminal)
        assert making.wait(60) == 0
        token = reply("join")["token"]
        assert making.stdout.read() == f"{token}\n".encode()
        assert f"--token {token} --fingerprint {PIN}" in os.read(screen, 65536).decode().replace("\r\n", "\n")
    finally:
        os.close(screen)
        os.close(terminal)


def test_on_loopback_the_lines_say_that_nobody_else_gets_there(cli, plane, parts):
    plane.on("GET", "/v1/plane", parts.plane(urls=[], fingerprints=[]))
    plane.on("POST", "/v1/tokens", parts.Answer(201, json=reply("join")))
    said = cli("token", "create", "--role", "join", plane=plane)
    assert "  gpulayer join http://127.0.0.1:1 --token TOKEN\n" in said.err
    assert "on the control plane's own machine alone" in said.err
    assert "--fingerprint" not in said.err


def test_json_is_the_whole_answer_and_nothing_beside_it(cli, reached, parts):
    reached.on("POST", "/v1/tokens", parts.Answer(201, json=reply()))
    said = cli("token", "create", "--role", "submitter", "--name", "alice", "--json", plane=reached)
    assert (json.loads(said.out), said.err) == (reply(), "")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "--role is missing"),
        (("--role", "owner"), "--role owner: not a role"),
        (("--role", "reader", "--uses", "2"), "--uses goes with --role join alone"),
        (("--role", "admin", "--label", "a=b"), "--label goes with --role join alone"),
        (("--role", "submitter", "--max-devices", "0"), "--max-devices goes with --role join alone"),
        (("--role", "join", "--label", "x"), "--label x: not of the form KEY=VALUE"),
        (("--role", "join", "--expires", "soon"), "--expires: 'soon' is not a duration"),
        (("--role", "join", "--expires", "500ms"), "--expires 500ms: a token lives for 1s to 3650d"),
        (("--role", "join", "--expires", "3651d"), "--expires 3651d: a token lives for 1s to 3650d"),
        (("--role", "join", "--uses", "0"), "invalid value for '--uses'"),
    ],
)
def test_what_makes_no_token_is_refused_before_anything_is_asked(cli, plane, argv, said):
    found = cli("token", "create", *argv, plane=plane)
    assert (found.code, found.out) == (2, b"")
    assert found.err.startswith(f"error: {said}")
    assert plane.asked == []


def test_the_list_is_plain_columns(cli, plane):
    pool = record(id="c" * 12, kind="join", role="join", name="rack", max_uses=20, uses=3, state="valid")
    local = record(id="d" * 12, role="admin", name="local", expires_at=None, last_used_at="2026-11-30T05:00:00.000Z")
    plane.on("GET", "/v1/tokens", {"tokens": [record(), pool, local], "next": None})
    said = cli("token", "list", plane=plane)
    lines = said.out.decode().splitlines()
    assert lines[0].split() == ["TOKEN", "ROLE", "NAME", "STATE", "CREATED", "EXPIRES", "LAST", "USED", "USES"]
    assert lines[1].split()[:4] == ["b" * 12, "submitter", "alice", "valid"]
    assert lines[1].endswith("never")
    assert lines[2].endswith("3/20")
    assert "never" in lines[3]
    assert lines[3].endswith(" ago")
    used = record(last_used_at=datetime.now(UTC).isoformat())
    plane.on("GET", "/v1/tokens", {"tokens": [used], "next": None})
    assert cli("token", "list", plane=plane).out.decode().splitlines()[1].endswith("  just now")
    plane.on("GET", "/v1/tokens", {"tokens": [record(), pool, local], "next": None})
    assert json.loads(cli("token", "list", "--json", plane=plane).out) == {"tokens": [record(), pool, local]}
    plane.on("GET", "/v1/tokens", {"tokens": [], "next": None})
    assert cli("token", "list", plane=plane).err == "no tokens\n"


def test_revoking_says_what_was_revoked_and_what_of_that_name_is_still_good(cli, plane):
    gone, other = record(state="revoked"), record(id="c" * 12)
    plane.on("POST", "/v1/tokens/{ref}:revoke", {"tokens": [gone], "next": None})
    plane.on("GET", "/v1/tokens", {"tokens": [other, gone], "next": None})
    said = cli("token", "revoke", "b" * 12, plane=plane)
    assert (said.code, said.out) == (0, b"token bbbbbbbbbbbb (submitter alice) revoked\n")
    assert said.err == "note: alice has other tokens that are good: cccccccccccc; --all revokes all of a name\n"
    plane.on("POST", "/v1/tokens/{ref}:revoke", {"tokens": [gone, record(id="c" * 12, state="revoked")], "next": None})
    plane.on("GET", "/v1/tokens", {"tokens": [gone], "next": None})
    said = cli("token", "revoke", "alice", "--all", plane=plane)
    assert (len(said.out.splitlines()), said.err) == (2, "")
    assert plane.of("POST", "/v1/tokens/alice:revoke")[0].query == {"all": "1"}
    assert json.loads(cli("token", "revoke", "alice", "--json", plane=plane).out)["tokens"][0]["state"] == "revoked"
    chain = [gone, record(id="d" * 12, state="revoked", replaces="b" * 12)]
    plane.on("POST", "/v1/tokens/{ref}:revoke", {"tokens": chain, "next": None})
    said = cli("token", "revoke", "b" * 12, plane=plane)
    assert b"token dddddddddddd (submitter alice) revoked: bbbbbbbbbbbb was rotated into it" in said.out


def test_several_tokens_of_a_name_are_listed(cli, plane, parts):
    error = parts.error(409, "conflict", "2 tokens of alice are good", "say which", {"candidates": ["b  x", "c  y"]})
    plane.on("POST", "/v1/tokens/{ref}:revoke", error)
    said = cli("token", "revoke", "alice", plane=plane)
    assert (said.code, said.out) == (2, b"")
    assert [line.strip() for line in said.err.splitlines()[2:]] == ["b  x", "c  y"]


def test_who_has_no_right_to_it_is_told_so(cli, plane, parts):
    plane.on("GET", "/v1/tokens", parts.error(403, "forbidden", "token x has the role reader; this needs admin", "ask"))
    said = cli("token", "list", plane=plane)
    assert (said.code, said.out) == (4, b"")
    assert said.err == "error: token x has the role reader; this needs admin\n hint: ask\n"


@pytest.fixture
def rotating(plane, parts):
    """A control plane that replaces the token, and then knows the new one."""

    def rotate(_):
        plane.token = MADE
        return parts.Answer(201, json=reply())

    plane.on("POST", "/v1/tokens:rotate", rotate)
    plane.on("GET", "/v1/plane", parts.plane())
    return plane


def test_a_rotated_token_that_came_from_the_environment_is_printed(cli, rotating):
    plane, old = rotating, rotating.token
    said = cli("token", "rotate", plane=plane)
    assert (said.code, said.out) == (0, f"{MADE}\n".encode())
    assert "the old token is good for 10 more minutes" in said.err
    assert MADE not in said.err
    plane.token = old
    assert json.loads(cli("token", "rotate", "--json", plane=plane).out)["token"] == MADE


@pytest.mark.parametrize("is_context", [False, True], ids=["environment", "context"])
def test_a_new_token_is_used_before_the_command_says_done(cli, rotating, contexts, is_context):
    said = cli("token", "rotate", plane=None if is_context else rotating)
    assert (said.code, bool(said.out)) == (0, True)
    assert [(each.path, each.headers["authorization"] == f"Bearer {MADE}") for each in rotating.asked] == [
        ("/v1/tokens:rotate", False),
        ("/v1/plane", True),
    ]


@pytest.mark.parametrize("is_context", [False, True], ids=["environment", "context"])
def test_a_new_token_that_another_rotation_has_replaced_is_an_error(cli, rotating, contexts, parts, is_context):
    revoked = parts.error(401, "unauthenticated", "token bbbbbbbbbbbb was revoked", "ask for another")
    rotating.on("GET", "/v1/plane", revoked)
    said = cli("token", "rotate", plane=None if is_context else rotating)
    assert (said.code, said.out) == (4, b"")
    assert said.err.startswith("error: the new token is no good already: token bbbbbbbbbbbb was revoked\n")


def test_a_new_token_that_can_not_be_tried_is_kept_and_that_is_said(cli, rotating, contexts, parts):
    rotating.on("GET", "/v1/plane", parts.error(500, "internal", "a fault"))
    said = cli("token", "rotate")
    assert said.code == 0
    assert contexts.read()["contexts"]["lab"]["token"] == MADE
    assert said.err.startswith("note: the new token could not be tried yet (a fault)")


@pytest.fixture
def contexts(plane, away, monkeypatch):
    """A file of contexts with three of them, two of which have one token; and how to read their tokens."""
    folder = away.parent / "config"
    monkeypatch.setenv("GPULAYER_CONFIG_DIR", str(folder))
    folder.mkdir()
    file = folder / "contexts.json"

    def entry(token):
        return {"urls": [plane.url], "token": token, "fingerprints": [], "proxy": "", "kept": 1}

    named = {"lab": entry(plane.token), "same": entry(plane.token), "other": entry("glc_" + "c" * 12 + "_x")}
    file.write_text(json.dumps({"schema": 1, "current": "lab", "contexts": named}))
    file.chmod(0o600)
    return SimpleNamespace(file=file, read=lambda: json.loads(file.read_text()))


@pytest.mark.parametrize("target", [(), ("--target", "same"), ("--target", "remote")])
def test_a_rotated_token_of_a_context_is_replaced_there_and_not_shown(cli, rotating, contexts, target):
    said = cli("token", "rotate", *target)
    assert (said.code, said.err) == (0, "")
    assert said.out.decode() == f"context lab, same: token {'b' * 12} (submitter alice), for 90 days\n"
    document = contexts.read()
    tokens = {name: one["token"] for name, one in document["contexts"].items()}
    assert tokens == {"lab": MADE, "same": MADE, "other": "glc_" + "c" * 12 + "_x"}
    assert (document["current"], document["contexts"]["lab"]["kept"]) == ("lab", 1)
    assert contexts.file.stat().st_mode & 0o777 == 0o600


def test_json_of_a_rotation_within_a_context_shows_no_token(cli, rotating, contexts):
    document = json.loads(cli("token", "rotate", "--json").out)
    assert (document["token_id"], document["contexts"], "token" in document) == ("b" * 12, ["lab", "same"], False)


def test_a_refused_rotation_leaves_the_contexts_as_they_were(cli, plane, parts, contexts):
    before = contexts.read()
    plane.on("POST", "/v1/tokens:rotate", parts.error(409, "conflict", "token x was rotated already", "use y"))
    said = cli("token", "rotate")
    assert (said.code, said.out) == (2, b"")
    assert contexts.read() == before


def test_a_new_token_that_can_not_be_kept_is_printed_rather_than_lost(cli, plane, parts, contexts, monkeypatch):
    plane.on("POST", "/v1/tokens:rotate", parts.Answer(201, json=reply()))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpulayer.client.contexts._replace", full)
    said = cli("token", "rotate")
    assert (said.code, said.out) == (2, f"{MADE}\n".encode())
    assert "No space left on device" in said.err


def test_the_trail_is_listed_over_all_its_pages(cli, plane):
    entries = trail()
    serve_trail(plane, entries)
    said = cli("audit", plane=plane)
    lines = said.out.decode().splitlines()
    assert lines[0].split() == ["N", "AT", "WHO", "WHAT", "TO", "DETAILS"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert lines[1].endswith("alice (bbbbbbbbbbbb)  token.create  t1  name bob, role reader")
    assert json.loads(cli("audit", "--after", "3", "--json", plane=plane).out) == {"entries": entries[3:]}
    assert cli("audit", "--after", "5", plane=plane).err == "no entries\n"


def test_a_trail_from_elsewhere_does_not_drive_the_terminal(cli, plane):
    (entry,) = trail(1)
    serve_trail(plane, [{**entry, "actor": "\x1b[2J", "subject": "a\nb", "details": '{"x": "\\u001b]0;x\\u0007"}'}])
    said = cli("audit", plane=plane)
    assert said.code == 0
    assert b"\x1b" not in said.out
    assert len(said.out.splitlines()) == 2


def test_a_whole_trail_is_verified_and_its_newest_hash_printed_to_keep(cli, plane):
    entries = trail()
    serve_trail(plane, entries)
    said = cli("audit", "--verify", plane=plane)
    assert (said.code, said.out.decode()) == (0, f"5:{entries[-1]['hash']}\n")
    assert said.err.startswith("good: 5 entries; keep that line elsewhere")
    document = json.loads(cli("audit", "--verify", "--json", plane=plane).out)
    assert document == {"good": True, "seq": 5, "hash": entries[-1]["hash"], "first_bad": None}
    kept = f"3:{entries[2]['hash']}"
    assert cli("audit", "--verify", "--kept", kept, plane=plane).code == 0
    serve_trail(plane, [])
    assert cli("audit", "--verify", plane=plane).out.decode() == f"0:{FIRST_HASH}\n"


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_a_broken_trail_exits_with_1_and_names_the_first_bad_entry(cli, plane, page):
    entries = trail()
    changed = [*entries[:2], {**entries[2], "subject": "t9"}, *entries[3:]]
    for broken, bad in ((changed, 3), ([*entries[:1], *entries[2:]], 3), ([entries[1], entries[0], *entries[2:]], 2)):
        plane.asked.clear()
        # In the order in which a control plane that lies would give them.
        pages = [{"entries": broken[at : at + page], "next": at + page} for at in range(0, len(broken), page)]
        plane.on("GET", "/v1/audit", [*pages, {"entries": [], "next": 99}])
        said = cli("audit", "--verify", plane=plane)
        assert said.code == 1
        assert said.out.decode().startswith(f"broken: entry {bad} (token.create by alice (bbbbbbbbbbbb), 2026-")
    serve_trail(plane, changed, page)
    document = json.loads(cli("audit", "--verify", "--json", plane=plane).out)
    assert document == {"good": False, "seq": 2, "hash": entries[1]["hash"], "first_bad": 3}


def test_a_trail_that_was_cut_is_found_by_what_was_kept(cli, plane):
    entries = trail()
    kept = f"5:{entries[-1]['hash']}"
    serve_trail(plane, entries[:3])
    assert cli("audit", "--verify", plane=plane).code == 0
    said = cli("audit", "--verify", "--kept", kept, plane=plane)
    assert (said.code, said.out) == (1, b"broken: entry 5 is not the one whose hash was kept\n")
    serve_trail(plane, entries)
    assert cli("audit", "--verify", "--kept", f"5:{'0' * 64}", plane=plane).code == 1


@pytest.mark.parametrize(
    "argv", [("--kept", "1:2"), ("--verify", "--after", "1"), *(("--verify", "--kept", bad) for bad in ("x", "1:2"))]
)
def test_what_makes_no_sense_to_audit_is_refused(cli, plane, argv):
    assert cli("audit", *argv, plane=plane).code == 2
    assert plane.asked == []


def test_a_control_plane_that_repeats_a_page_for_ever_is_left(cli, plane):
    plane.on("GET", "/v1/audit", {"entries": trail(2), "next": 0})
    assert len(json.loads(cli("audit", "--json", plane=plane).out)["entries"]) == 2


def test_contexts_that_have_the_token_of_the_environment_get_the_new_one_too(cli, rotating, contexts):
    """It was pasted into both: a context must not be left with a token that ends in ten minutes."""
    other = contexts.read()["contexts"]["other"]["token"]
    said = cli("token", "rotate", plane=rotating)
    assert (said.code, said.out) == (0, f"{MADE}\n".encode())
    assert {name: one["token"] for name, one in contexts.read()["contexts"].items()} == {
        "lab": MADE, "same": MADE, "other": other,
    }  # fmt: skip
    assert "context lab, same had the old token too" in said.err
