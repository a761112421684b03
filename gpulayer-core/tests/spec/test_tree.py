"""Tree objects: canonical, and closed against all that could leave a folder."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.errors import BadRequest
from gpulayer.ids import Digest
from gpulayer.spec.tree import (
    EMPTY_TREE,
    Entry,
    EntryKind,
    check_name,
    check_symlink,
    decode_tree,
    digest_of,
    encode_tree,
    folded,
)

D = digest_of(b"x")
F, DIR, L = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.SYMLINK


def document(*rows, v=1):
    return json.dumps({"v": v, "entries": rows}).encode()


names = st.one_of(
    st.text(min_size=1, max_size=20).filter(
        lambda t: (
            t not in (".", "..") and "/" not in t and "\0" not in t and not any("\ud800" <= c <= "\udfff" for c in t)
        )
    ),
    st.binary(min_size=1, max_size=20)
    .filter(lambda b: b not in (b".", b"..") and b"/" not in b and b"\0" not in b)
    .map(lambda b: b.decode("utf-8", "surrogateescape")),
)
entries = st.one_of(
    st.builds(
        Entry,
        name=names,
        kind=st.just(F),
        mode=st.integers(0, 0o777),
        size=st.integers(0, 2**63 - 1),
        digest=st.just(D),
    ),
    st.builds(Entry, name=names, kind=st.just(DIR), mode=st.integers(0, 0o777), digest=st.just(D)),
    st.builds(Entry, name=names, kind=st.just(L), mode=st.just(0o777), target=names),
)


@given(st.lists(entries, max_size=10, unique_by=lambda e: e.name), st.randoms())
def test_any_order_gives_one_form_that_reads_back(rows, random):
    content = encode_tree(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert encode_tree(shuffled) == content
    assert encode_tree(decode_tree(content).entries) == content
    assert {entry.name: entry for entry in decode_tree(content).entries} == {entry.name: entry for entry in rows}


def test_the_form_is_fixed():
    content = encode_tree([Entry("b", DIR, 0o755, 0, D), Entry("a", F, 0o644, 1, D), Entry("é", L, target="a")])
    assert content == (
        b'{"v":1,"entries":[["f","a",420,1,"%b"],["d","b",493,"%b"],["l","\\u00e9","a"]]}' % (D.encode(), D.encode())
    )
    assert digest_of(b'{"v":1,"entries":[]}') == EMPTY_TREE


BAD_NAMES = [
    "",
    ".",
    "..",
    "/",
    "a/b",
    "/etc",
    "../x",
    "a\0b",
    "\0",
    "x" * 256,
    "é" * 128,
    "\ud800",
    "a\udfffb\ud800",
    "\udcc3\udca9",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_not_one_component_is_refused_everywhere(name):
    with pytest.raises(BadRequest):
        check_name(name)
    with pytest.raises(BadRequest):
        encode_tree([Entry(name, F, 0o644, 1, D)])
    for row in (["f", name, 420, 1, D], ["d", name, 493, D], ["l", name, "a"]):
        with pytest.raises(BadRequest):
            decode_tree(document(row))


@pytest.mark.parametrize(
    "name", ["a", "...", "..a", "-rf", " ", "\n", "~", "a\\b", "C:", "x" * 255, "é" * 127, "\udce9", "日本"]
)
def test_odd_but_single_components_are_names(name):
    check_name(name)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"v":1}',
        b'{"v":2,"entries":[]}',
        b'{"entries":[]}',
        b'{"v":true,"entries":[]}',
        b'{"v":1.0,"entries":[]}',
        b'{"v":"1","entries":[]}',
        b'{"v":1,"entries":{}}',
        b'{"v":1,"entries":null}',
        document("x"),
        document([]),
        document(None),
        document(["f"]),
        document(["x", "a", 1, 1, D]),
        document(["f", "a", 420, 1]),
        document(["f", "a", 420, 1, D, 1]),
        document(["f", "a", "420", 1, D]),
        document(["f", "a", 420.0, 1, D]),
        document(["f", "a", True, 1, D]),
        document(["f", "a", 420, True, D]),
        document(["d", "a", True, D]),
        document(["f", "a", -1, 1, D]),
        document(["f", "a", 0o1777, 1, D]),
        document(["f", "a", 0o4755, 1, D]),
        document(["f", "a", 420, -1, D]),
        document(["f", "a", 420, 2**63, D]),
        b'{"v":1,"entries":[["f","a",420,' + b"9" * 5000 + b',"' + D.encode() + b'"]]}',
        document(["f", "a", 420, 1, D.upper()]),
        document(["f", "a", 420, 1, "../../x"]),
        document(["f", "a", 420, 1, ""]),
        document(["d", "a", 493, "x"]),
        document(["d", "a", 0o1000, D]),
        document(["f", 1, 420, 1, D]),
        document(["l", "a", 1]),
        document(["l", "a", ""]),
        document(["l", "a", "\ud800"]),
        document(["l", "a", "x" * 4096]),
        document(["l", "a", "/etc"]),
        document(["f", "a", 420, 1, D], ["f", "a", 420, 1, D]),
        document(["f", "a", 420, 1, D], ["l", "a", "b"]),
        document(["f", "b", 420, 1, D], ["f", "a", 420, 1, D]),
        document(["f", "é", 420, 1, D], ["f", "\udcc3\udca9", 420, 1, D]),
    ],
)
def test_a_malformed_object_is_a_bad_request(content):
    with pytest.raises(BadRequest):
        decode_tree(content)


def test_an_unknown_schema_says_which_and_what_to_do():
    with pytest.raises(BadRequest, match=r"schema 7 is unknown here \(this version reads 1\) \(upgrade"):
        decode_tree(document(v=7))


@given(st.binary(max_size=100))
def test_any_bytes_are_a_tree_or_a_bad_request(content):
    try:
        tree = decode_tree(content)
    except BadRequest:
        return
    assert decode_tree(encode_tree(tree.entries)) == tree


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", "b"),
        ("a", "./b"),
        ("d/a", "../b"),
        ("d/e/a", "../../b"),
        ("a", "."),
        ("a", "b//c"),
        ("a", "..b"),
        ("a", "b/..."),
    ],
)
def test_links_that_stay_inside_are_good(path, target):
    check_symlink(tuple(path.split("/")), target)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("a", ".."),
        ("a", "../x"),
        ("d/a", "../../x"),
        ("a", "/"),
        ("a", "/etc/passwd"),
        ("a", ""),
        ("a", "x\0y"),
        ("a", "./.."),
        ("a", "b/../../x"),
        ("d/a", "..//../x"),
        ("a", "\udfff\ud800"),
        ("a", "x" * 4096),
        # Looks as if it stayed inside; with b a link to a shallower folder it does not.
        ("a", "b/../x"),
        ("a", "d/e/up/../x"),
    ],
)
def test_links_that_may_lead_outside_are_refused(path, target):
    with pytest.raises(BadRequest):
        check_symlink(tuple(path.split("/")), target)


def test_names_that_clash_somewhere_fold_to_one():
    assert folded("Straße") == folded("STRASSE")
    assert folded("e\u0301") == folded("É")
    assert folded("a") != folded("b")


def test_an_entry_without_a_digest_is_not_written():
    for entry in (
        Entry("a", F, 0o644, 1),
        Entry("a", DIR, 0o755),
        Entry("a", F, 0o7777, 1, D),
        Entry("a", F, 0, 1, Digest("A" * 64)),
    ):
        with pytest.raises(BadRequest):
            encode_tree([entry])
