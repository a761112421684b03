"""Nothing is written outside its folder or past its limits (PROMISES: security 3).

Tables of trees and packs as an enemy would make them (of work folders: ``test_hostile_jobs.py``). Each is given to
every place that takes such a thing: the control plane's check, a worker's stage-in, the client's bring-home, and
whatever reads packs. Each either refuses it with an error of ours or does no harm: a canary beside the folder is as it
was, down to its times, nothing that was written leads out of its folder, and no limit is passed.
"""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpulayer.errors import GpulayerError
from gpulayer.ids import Digest
from gpulayer.spec.tree import Entry, EntryKind, digest_of, encode_tree
from gpulayer.staging.home import write_home
from gpulayer.staging.trees import check_tree, load_tree
from gpulayer.staging.workfolder import materialise
from gpulayer.wire.packs import FRAME_HEADER, MAX_PACKED_BLOB, frame, read_frames
from tests.arena import EMPTY, LIMITS, Arena, X, a_file


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path.resolve())


# ---- trees ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreeAttack:
    name: str
    make: Callable[[Arena], Digest]
    is_refused: bool | None = True  # None: as the file system has it


_REFUSED_NAMES = {
    "nothing": "", "dot": ".", "dot dot": "..", "absolute": "/etc/passwd", "slash": "/", "slash behind": "a/",
    "slash before": "/a", "climbing": "../canary/file", "climbing behind": "a/../../canary/file", "two": "a/b",
    "two slashes": "a//b", "dot within": "a/./b", "NUL": "\0", "NUL within": "a\0b", "NUL behind": "file\0",
    "NUL and climbing": "a\0/../canary", "high surrogate": "\ud800", "low surrogate below bytes": "\udc7f",
    "a pair, apart": "\ud83d\ude00x\ud83d", "surrogate beyond bytes": "\udd00", "UTF-8 in escapes": "\udcc3\udca9",
    "slash in escapes": "\udc2f", "256 letters": "a" * 256, "256 bytes of é": "é" * 128,
    "a megabyte": "a" * 1_000_000, "255 and a slash": "a" * 255 + "/b", "dot dot slash": "../",
    "dot dot twice": "../..",
}  # fmt: skip


_ODD_NAMES = {
    "drive": "C:", "drive and file": "C:file", "backslash": "a\\b", "climbing by backslash": "..\\..\\canary\\file",
    "UNC": "\\\\host\\share", "device path": "\\\\.\\C:", "stream": "file:stream", "stream of data": "file::$DATA",
    "CON": "CON", "con.txt": "con.txt", "NUL device": "NUL", "AUX": "aux", "PRN": "PRN.tar.gz", "COM1": "COM1",
    "LPT9": "lpt9", "COM superscript": "COM¹", "CONIN$": "CONIN$", "trailing dot": "a.", "trailing dots": "a...",
    "trailing space": "a ", "leading space": " a", "only spaces": "   ", "three dots": "...", "tab": "a\tb",
    "line end": "a\nb", "carriage return": "a\rb", "escape": "\x1b[2J", "bell": "\x07", "backspace": "a\x08b",
    "delete": "\x7f", "C1": "\x9b31m", "title": "\x1b]0;owned\x07", "RTL": "\u202egpj.exe", "LRI": "\u2066a\u2069",
    "zero width": "a\u200bb", "BOM": "\ufeffa", "soft hyphen": "a\xadb", "full-width slash": "a\uff0fb",
    "division slash": "a\u2215b", "one dot leader": "\u2024\u2024", "full-width dots": "\uff0e\uff0e",
    "percent": "%2e%2e%2fcanary", "NFC": "\u00e9", "NFD": "e\u0301", "Hangul": "\u1112\u1161\u11ab",
    "ligature": "\ufb01", "sharp s": "straße", "dotless i": "ı", "Kelvin": "\u212a", "emoji": "👩\u200d👩\u200d👧",
    "byte 0xff": "\udcff", "bytes": "\udc80\udcfe", "overlong slash": "\udcc0\udcaf", "dot file": ".profile",
    "ssh": ".ssh", "git": ".git", "Git": ".GIT", "git by ligature": ".g\u0131t", "git with a joiner": ".g\u200cit",
    "git short": "git~1", "modules": ".gitmodules", "dash": "-rf", "two dashes": "--help", "star": "*",
    "question": "?", "dollar": "$(id)", "backtick": "`id`", "semicolon": "; rm -rf ~", "pipe": "|sh", "quotes": "\"'",
    "tilde": "~", "tilde root": "~root", "255 bytes": "a" * 255, "255 bytes of é": "é" * 127,
    "partial": ".home.0123456789abcdef.partial", "our temporary": ".gpulayer-" + "0" * 32, "runs": "gpulayer_runs",
    "pth": "a.pth", "sitecustomize": "sitecustomize.py", "desktop": "desktop.ini", "autorun": "autorun.inf",
    "log marker": "--- gpulayer: 7 bytes lost ---", "PYTHONPATH": "json.py", "hash": "#a", "proc": "proc",
    "dev": "dev", "very long emoji": "👩" * 63,
}  # fmt: skip


_BAD_TARGETS = {
    "absolute": "/etc/passwd", "root": "/", "two roots": "//", "up": "..", "up and in": "../canary",
    "far up": "../" * 30, "up behind": "a/../../canary", "up behind, short": "a/..", "dot and up": "./..",
    "dots and up": "././../canary", "slashes and up": ".///../canary", "nothing": "", "NUL": "a\0b",
    "NUL alone": "\0", "surrogate": "\ud800", "proc": "/proc/self/root", "proc cwd": "/proc/self/cwd/../canary",
    "dev": "/dev/zero", "4,096 bytes": "a" * 4096, "a megabyte": "a/" * 500_000, "home": "/root",
    "up hidden": "a/b/../../../canary/file",
}  # fmt: skip


_ODD_TARGETS = {
    "dangling": "nowhere", "itself": "link", "a loop": "other", "here": ".", "here, with slash": "./", "tilde": "~/x",
    "drive": "C:\\Windows", "backslashes": "..\\..\\canary", "4,095 bytes": "/".join(["a" * 194] * 21),
    "percent": "%2e%2e", "escape": "\x1b[2J", "byte": "\udcff", "dollar": "$HOME", "stream": "a:b",
    "line end": "a\nb", "full-width dots": "\uff0e\uff0e/canary",
}  # fmt: skip


_MODES: tuple[Any, ...] = (
    -1, 0o1000, 0o2000, 0o4000, 0o4755, 0o6777, 0o7777, 0o10644, 0o40755, 0o100644, 0o120777, 2**31, 2**63, 2**64,
    10**30, 1.0, 420.5, "420", "0o644", None, True, [], {}, float("nan"),
)  # fmt: skip


_SIZES: tuple[Any, ...] = (
    -1, 0, 2, 100_000, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, 1.0, 1.5, "1", None, True, False,
    [], float("inf"),
)  # fmt: skip


_DIGESTS: tuple[Any, ...] = (
    "", "x", "0" * 63, "0" * 65, "0" * 64, "A" * 64, X.upper(), X[:-1] + "\n", X + "\n", " " + X, "../" + X, "/" * 64,
    "." * 64, "..", X[:2] + "/" + X[3:], "٠" * 64, "0x" + X[2:], None, 7, [X], {"d": X}, True,
)  # fmt: skip


_ROWS: tuple[Any, ...] = (
    (), ["f"], ["f", "a"], ["f", "a", 420, 1], ["f", "a", 420, 1, X, X], ["d", "a", 493], ["l", "a"],
    ["l", "a", "b", "c"], ["x", "a", 420, 1, X], ["F", "a", 420, 1, X], ["", "a"], [None], [[]], {}, {"f": "a"}, "f",
    None, 7, True, ["f", 7, 420, 1, X], ["f", None, 420, 1, X], ["f", ["a"], 420, 1, X], ["d", "a", 493, 0, X],
    ["l", "a", 7], ["l", 7, "a"], ["l", "a", None], ["b", "null", 1, 3], ["c", "zero", 1, 5], ["p", "fifo"],
    ["h", "hard", "a"], ["s", "socket"], ["f", "a", 420, 1, X, {"setuid": True}],
)  # fmt: skip


_DOCUMENTS = {
    "nothing": b"", "NUL": b"\0", "no JSON": b"tree", "a list": b"[]", "a number": b"7", "null": b"null",
    "a text": b'"a"', "no version": b'{"entries": []}', "version 0": b'{"v": 0, "entries": []}',
    "version 2": b'{"v": 2, "entries": []}', "version true": b'{"v": true, "entries": []}',
    "version 1.0": b'{"v": 1.0, "entries": []}', "version text": b'{"v": "1", "entries": []}',
    "no entries": b'{"v": 1}', "entries null": b'{"v": 1, "entries": null}',
    "entries object": b'{"v": 1, "entries": {}}', "entries text": b'{"v": 1, "entries": "f"}',
    "cut off": b'{"v": 1, "entries": [["f", "a"', "two": b'{"v": 1, "entries": []}{}',
    "UTF-16": '{"v": 1}'.encode("utf-16"),
    "no UTF-8": b'{"v": 1, "entries": [["f", "\xff", 420, 1, "' + X.encode() + b'"]]}', "deep": b"[" * 50_000,
    "deep within": b'{"v": 1, "entries": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
    "a long number": b'{"v": ' + b"1" * 5_000 + b"}", "NaN": b'{"v": NaN, "entries": []}',
    "too large": b'{"v": 1, "entries": [], "x": "' + b"a" * 200_000 + b'"}',
    "81 entries": json.dumps({"v": 1, "entries": [["f", f"{n:03}", 420, 1, X] for n in range(81)]}).encode(),
    "a million entries": b'{"v": 1, "entries": [' + b"7," * 40_000 + b"7]}",
}  # fmt: skip


def _folder(name: str, digest: Any, mode: Any = 0o755) -> list[Any]:
    return ["d", name, mode, digest]


def _chain(arena: Arena, depth: int) -> Digest:
    tree = arena.tree(a_file())
    for _ in range(depth):
        tree = arena.tree(_folder("d", tree))
    return tree


def _bomb(arena: Arena, width: int, depth: int) -> Digest:
    tree = arena.tree(a_file())
    for _ in range(depth):
        tree = arena.tree(*(_folder(f"{number:03}", tree) for number in range(width)))
    return tree


def _large(arena: Arena, size: int) -> list[Any]:
    return a_file("large", size=size, digest=arena.blob(b"z" * size))


_SHAPES: tuple[TreeAttack, ...] = (
    TreeAttack("one name twice", lambda a: a.tree(a_file("a"), a_file("a"))),
    TreeAttack("one name as file and folder", lambda a: a.tree(a_file("a"), _folder("a", a.tree()))),
    TreeAttack("one name as link and folder", lambda a: a.tree(["l", "a", "b"], _folder("a", a.tree(a_file("x"))))),
    TreeAttack("one name as folder and link", lambda a: a.tree(_folder("a", a.tree(a_file("x"))), ["l", "a", "b"])),
    TreeAttack("out of order", lambda a: a.tree(a_file("b"), a_file("a"))),
    TreeAttack("out of order by bytes", lambda a: a.tree(a_file("é"), a_file("z"))),
    TreeAttack("in order of a locale", lambda a: a.tree(a_file("a"), a_file("B"))),
    TreeAttack("no such object", lambda a: a.tree(_folder("a", "1" * 64))),
    TreeAttack("no such root", lambda a: Digest("1" * 64)),
    TreeAttack("no such content", lambda a: a.tree(a_file(digest="1" * 64)), None),
    TreeAttack("a folder that is a file", lambda a: a.tree(_folder("a", X))),
    TreeAttack("a folder that is empty bytes", lambda a: a.tree(_folder("a", EMPTY))),
    TreeAttack("a file that is a folder", lambda a: a.tree(a_file(digest=a.tree(a_file()))), None),
    TreeAttack("empty, with a digest of something", lambda a: a.tree(a_file(size=0))),
    TreeAttack("something, with the digest of nothing", lambda a: a.tree(a_file(digest=EMPTY))),
    TreeAttack("two sizes of one content", lambda a: a.tree(a_file("a"), a_file("b", size=2))),
    TreeAttack("two sizes in two folders", lambda a: a.tree(a_file("a"), _folder("b", a.tree(a_file("b", size=7))))),
    TreeAttack("13 deep", lambda a: _chain(a, 13)),
    TreeAttack("12 deep", lambda a: _chain(a, 12), False),
    TreeAttack("500 deep", lambda a: _chain(a, 500)),
    TreeAttack("2 to the 11th files", lambda a: _bomb(a, 2, 11)),
    TreeAttack("7 to the 10th files", lambda a: _bomb(a, 7, 10)),
    TreeAttack("80 to the 9th folders", lambda a: _bomb(a, 80, 9)),
    TreeAttack("41 files", lambda a: a.tree(*(a_file(f"{n:03}") for n in range(41)))),
    TreeAttack("41 links", lambda a: a.tree(a_file("a"), *(["l", f"b{n:03}", "a"] for n in range(41)))),
    TreeAttack("81 empty folders", lambda a: a.tree(*(_folder(f"{n:03}", a.tree()) for n in range(81)))),
    TreeAttack("a large file", lambda a: a.tree(_large(a, 200_001))),
    TreeAttack(
        "one file three times",
        lambda a: a.tree(*([*_large(a, 70_000)[:1], f"l{n}", *_large(a, 70_000)[2:]] for n in range(3))),
    ),
    TreeAttack(
        "paths of 1,001 bytes",
        lambda a: a.tree(
            _folder("a" * 250, a.tree(_folder("b" * 250, a.tree(_folder("c" * 250, a.tree(a_file("d" * 250)))))))
        ),
    ),
    TreeAttack("a file through a link", lambda a: a.tree(["l", "a", "../canary"], a_file("a/file"))),
    TreeAttack(
        "a folder behind a link of its name",
        lambda a: a.tree(["l", "a", "b"], _folder("b", a.tree(["l", "c", "../../canary"]))),
    ),
    TreeAttack(
        "up by way of a link",
        lambda a: a.tree(_folder("a", a.tree(_folder("b", a.tree(["l", "up", "../.."])))), ["l", "o", "a/b/up/../x"]),
    ),
    TreeAttack(
        "links that climb together",
        lambda a: a.tree(_folder("a", a.tree(["l", "u", ".."])), ["l", "b", "a/u/../canary"]),
    ),
    TreeAttack(
        "links to links upward",
        lambda a: a.tree(_folder("a", a.tree(["l", "u", ".."])), ["l", "b", "a/u"], ["l", "c", "b/a/u"]),
        False,
    ),
    TreeAttack("a chain of 30 links", lambda a: a.tree(*(["l", f"a{n:02}", f"a{n + 1:02}"] for n in range(30))), False),
    TreeAttack(
        "a link that one folder may have, and another not",
        lambda a: a.tree(_folder("x", a.tree(_folder("y", (t := a.tree(["l", "u", "../../z"]))))), _folder("y", t)),
    ),
    TreeAttack("case clash", lambda a: a.tree(a_file("A"), a_file("a")), False),
    TreeAttack(
        "case clash of folders",
        lambda a: a.tree(_folder("A", a.tree(a_file("x"))), _folder("a", a.tree(a_file("y")))),
        False,
    ),
    TreeAttack(
        "case clash of a link and a folder",
        lambda a: a.tree(["l", "A", "b"], _folder("a", a.tree(a_file("y")))),
        False,
    ),
    TreeAttack("NFC and NFD", lambda a: a.tree(a_file("e\u0301"), a_file("\u00e9")), False),
    TreeAttack(
        "a link in NFC, a folder in NFD",
        lambda a: a.tree(_folder("e\u0301", a.tree(a_file("f"))), ["l", "\u00e9", "x"]),
        False,
    ),
    TreeAttack("a file without rights", lambda a: a.tree(a_file(mode=0)), False),
    TreeAttack("a folder without rights", lambda a: a.tree(_folder("a", a.tree(a_file()), 0)), False),
    TreeAttack("all rights for all", lambda a: a.tree(_folder("a", a.tree(a_file(mode=0o777)), 0o777)), False),
    TreeAttack(
        "git inside",
        lambda a: a.tree(_folder(".git", a.tree(_folder("hooks", a.tree(a_file("pre-commit", 0o755)))))),
        False,
    ),
    TreeAttack("git as a link", lambda a: a.tree(["l", ".git", "x"], _folder("x", a.tree(a_file("config")))), False),
    TreeAttack("unknown fields", lambda a: a.tree(a_file(), symlinks={"a": "/etc"}, mode=0o4755), False),
)


def _tree_attacks() -> list[TreeAttack]:
    found = list(_SHAPES)

    def add(kind: str, name: str, make: Callable[[Arena], Digest], is_refused: bool | None = True) -> None:
        found.append(TreeAttack(f"{kind}: {name}", make, is_refused))

    for names, is_refused in ((_REFUSED_NAMES, True), (_ODD_NAMES, False)):
        for name, text in names.items():
            add("file named", name, lambda a, t=text: a.tree(a_file(t)), is_refused)
            add("folder named", name, lambda a, t=text: a.tree(_folder(t, a.tree(a_file()))), is_refused)
            add("link named", name, lambda a, t=text: a.tree(["l", t, "zz"]), is_refused)
    for targets, is_refused in ((_BAD_TARGETS, True), (_ODD_TARGETS, False)):
        for name, text in targets.items():
            add("link to", name, lambda a, t=text: a.tree(["l", "link", t]), is_refused)
            add(
                "link below to",
                name,
                lambda a, t=text: a.tree(_folder("d", a.tree(["l", "link", t.replace("..", "../..", 1)]))),
                is_refused,
            )
    for mode in _MODES:
        add("file of mode", repr(mode), lambda a, m=mode: a.tree(a_file(mode=m)))
        add("folder of mode", repr(mode), lambda a, m=mode: a.tree(_folder("a", a.tree(), m)))
    for size in _SIZES:
        add("file of size", repr(size), lambda a, s=size: a.tree(a_file(size=s)), None)
    for digest in _DIGESTS:
        add("file with digest", repr(digest), lambda a, d=digest: a.tree(a_file(digest=d)), None)
        add("folder with digest", repr(digest), lambda a, d=digest: a.tree(_folder("a", d)))
    for row in _ROWS:
        add("entry", repr(row)[:40], lambda a, r=row: a.tree(r))
    for name, content in _DOCUMENTS.items():
        add("object", name, lambda a, c=content: a.blob(c))
    return found


TREES = _tree_attacks()


def _takes(arena: Arena, root: Digest) -> list[str]:
    """Give the tree to each place that takes one. Those that did not refuse it."""

    def check() -> None:
        totals = check_tree(root, arena.blobs.read, limits=LIMITS)
        if arena.blobs.missing(totals.digests):
            raise GpulayerError("as submission.check_uploaded: not all here")

    def stage() -> None:
        materialise(root, arena.blobs, arena.work, limits=LIMITS)

    def bring_home() -> None:
        write_home(root, arena.blobs, arena.home / "run", limits=LIMITS)

    taken: list[str] = []
    for place in (check, stage, bring_home):
        try:
            place()
        except GpulayerError:
            continue
        taken.append(place.__name__)
    return taken


def _make_removable(folder: Path) -> None:
    for base, folders, _ in os.walk(os.fsencode(folder)):
        for name in folders:
            path = os.path.join(base, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


@pytest.mark.parametrize("attack", TREES, ids=lambda attack: ascii(attack.name)[1:-1][:60])
def test_a_hostile_tree_is_refused_everywhere_or_does_no_harm(arena, attack) -> None:
    taken = _takes(arena, attack.make(arena))
    _make_removable(arena.work)
    arena.check(arena.work, arena.home / "run")
    if attack.is_refused:
        assert taken == []
    elif attack.is_refused is False:
        assert "check" in taken


def test_the_tables_are_as_long_as_promised() -> None:
    assert len(TREES) + len(PACKS) >= 250


@pytest.mark.parametrize(
    "attack", [each for each in TREES if each.is_refused is False], ids=lambda each: ascii(each.name)[1:-1][:60]
)
def test_what_stands_at_home_already_is_no_way_out(arena, attack) -> None:
    """Every name of the tree is a link to the canary where it comes home: none is followed."""
    root = attack.make(arena)
    run = arena.home / "run"
    run.mkdir()
    for path, entry in load_tree(root, arena.blobs.read, limits=LIMITS).walk():
        if len(path) == 1:
            target = arena.canary / ("folder" if entry.kind is EntryKind.DIRECTORY else "file")
            os.symlink(target, os.path.join(run, path[0]))
    with contextlib.suppress(GpulayerError):
        write_home(root, arena.blobs, run, limits=LIMITS)
    assert arena.seen() == arena.before


# ---- packs ----------------------------------------------------------------------------------------------------------


def _framed(content: bytes, *, digest: bytes | None = None, length: int | None = None) -> bytes:
    return (
        (bytes.fromhex(digest_of(content)) if digest is None else digest)
        + (len(content) if length is None else length).to_bytes(8, "big")
        + content
    )


_GOOD = _framed(b"good")


PACKS: dict[str, tuple[bytes, bool]] = {
    "nothing": (b"", False), "one": (_GOOD, False), "twice the same": (_GOOD * 2, False),
    "a thousand times the same": (_GOOD * 1000, False), "an empty blob": (_framed(b""), False),
    "one byte": (b"\0", True), "half a head": (_GOOD[:20], True), "a head alone": (_GOOD[:FRAME_HEADER], True),
    "cut off": (_GOOD[:-1], True), "one byte more": (_GOOD + b"\0", True),
    "a head more": (_GOOD + _GOOD[:FRAME_HEADER], True), "a false digest": (_framed(b"evil", digest=bytes(32)), True),
    "the digest of another": (_framed(b"evil", digest=bytes.fromhex(X)), True),
    "a false one after a good one": (_GOOD + _framed(b"evil", digest=bytes(32)), True),
    "a good one after a false one": (_framed(b"evil", digest=bytes(32)) + _GOOD, True),
    "longer than it says": (_framed(b"good", length=3), True),
    "shorter than it says": (_framed(b"good", length=5), True),
    "says nothing, has something": (_framed(b"good", length=0), True),
    "says 1 MiB and a byte": (_framed(b"good", length=MAX_PACKED_BLOB + 1), True),
    "has 1 MiB and a byte": (_framed(b"g" * (MAX_PACKED_BLOB + 1)), True),
    "has 1 MiB": (_framed(b"g" * MAX_PACKED_BLOB), False),
    "says 2 to the 31st": (_framed(b"good", length=2**31), True),
    "says 2 to the 63rd": (_framed(b"good", length=2**63), True),
    "says 2 to the 64th less one": (_framed(b"good", length=2**64 - 1), True),
    "little-endian": (_GOOD[:32] + (4).to_bytes(8, "little") + b"good", True), "text": (b"PK\x03\x04" * 100, True),
    "a tar": (b"../../canary/file".ljust(512, b"\0") * 3, True),
    "swallows the next": (_framed(b"good", length=4 + len(_GOOD)) + _GOOD, True),
}  # fmt: skip


@pytest.mark.parametrize("piece", [1, 7, 41, 65_536])
@pytest.mark.parametrize(("body", "is_refused"), PACKS.values(), ids=PACKS.keys())
def test_a_hostile_pack_keeps_nothing_that_is_not_what_it_says(arena, body, is_refused, piece) -> None:
    if piece < 100 and len(body) > 10_000:
        body, is_refused = body[:10_000], True  # in small pieces the start of it tells as much
    before = set(arena.blobs.digests())
    pieces = (body[start : start + piece] for start in range(0, len(body), piece))
    try:
        arena.blobs.put_many(read_frames(pieces))
    except GpulayerError:
        was_refused = True
    else:
        was_refused = False
    assert was_refused == is_refused
    for digest in set(arena.blobs.digests()) - before:
        assert digest_of(arena.blobs.path(digest).read_bytes()) == digest
    assert list((arena.root / "blobs" / "tmp").iterdir()) == []
    arena.check()


# ---- made by chance -------------------------------------------------------------------------------------------------


@dataclass
class _Maker:
    """Composes attacks: what is hostile by itself, side by side and in each other."""

    arena: Arena
    chance: random.Random
    made: list[Digest] = field(default_factory=list)

    def tree(self, depth: int = 0) -> Digest:
        rows = [self.row(depth) for _ in range(self.chance.choice((0, 1, 1, 2, 3, 5, 9)))]
        if self.chance.random() < 0.9:  # as it should be, so that what is in it is looked at
            unique = {row[1]: row for row in rows if isinstance(row, list) and len(row) > 1 and isinstance(row[1], str)}
            rows = sorted(unique.values(), key=lambda row: row[1].encode("utf-8", "surrogatepass"))
        digest = self.arena.tree(*rows)
        self.made.append(digest)
        return digest

    def row(self, depth: int) -> Any:
        pick, is_bad = self.chance.random(), self.chance.random() < 0.05
        names = _REFUSED_NAMES if is_bad and pick < 0.5 else _ODD_NAMES
        name = self.chance.choice(("a", "b", "d", "A", self.chance.choice(list(names.values()))))
        if pick < 0.03:
            return self.chance.choice(_ROWS)
        if pick < 0.4:
            mode = self.chance.choice(_MODES) if is_bad else self.chance.choice((0, 0o644, 0o755, 0o777))
            content = self.chance.choice((b"", b"x", b"y" * 3_000, b"z" * 70_000))
            size = self.chance.choice(_SIZES) if is_bad else len(content)
            return a_file(name, mode, size, self.chance.choice(_DIGESTS) if is_bad else self.arena.blob(content))
        if pick < 0.75:
            ups = "../" * self.chance.choice((0, 0, 0, 1, 1, 2, depth, depth + 1))
            below = "/".join(self.chance.choices(("a", "b", "d", "A", ".", "", "link"), k=self.chance.randrange(4)))
            odd = self.chance.choice((*_BAD_TARGETS.values(), *_ODD_TARGETS.values()))
            return ["l", name, odd if is_bad else ups + below or "."]
        if depth > 14 or (self.made and self.chance.random() < 0.3):
            return _folder(name, self.chance.choice(self.made) if self.made else X)
        return _folder(name, self.tree(depth + 1))


def _compose(root: Path, seeds: range) -> int:
    """Returns how many were taken by some place."""
    taken = 0
    for seed in seeds:
        folder = root / str(seed)
        folder.mkdir()
        arena = Arena(folder)
        try:
            tree = _Maker(arena, random.Random(seed)).tree()
            places = _takes(arena, tree)
            _make_removable(arena.work)
            arena.check(arena.work, arena.home / "run")
            if places:
                _bring_home_again(arena, tree)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        taken += bool(places)
        shutil.rmtree(folder)
    return taken


def _bring_home_again(arena: Arena, tree: Digest) -> None:
    """Once more, into what is there now and what somebody changed since: links for folders, folders for files."""
    run = arena.home / "run"
    if run.is_dir():
        for path in sorted(run.iterdir())[:2]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
                path.symlink_to(arena.canary / "folder")
            else:
                path.unlink()
                path.symlink_to(arena.canary / "file")
    with contextlib.suppress(GpulayerError):
        write_home(tree, arena.blobs, run, limits=LIMITS)
    assert arena.seen() == arena.before


def test_300_composed_attacks_do_no_harm(tmp_path) -> None:
    taken = _compose(tmp_path.resolve(), range(300))
    assert 20 < taken < 280, "the maker makes nearly nothing but nonsense, or nothing hostile"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_20000_composed_attacks_do_no_harm(tmp_path, pytestconfig, scaled) -> None:
    start, composed = 1_000_000 * pytestconfig.getoption("--seed"), scaled(20_000)
    assert _compose(tmp_path.resolve(), range(start, start + composed)) > composed // 20


def test_the_tables_use_the_form_that_trees_have() -> None:
    """Were the form to change, everything above would be refused for that alone."""
    entry = Entry("a", EntryKind.FILE, 0o644, 1, X)
    assert json.loads(encode_tree([entry])) == {"v": 1, "entries": [a_file()]}
    assert frame(digest_of(b"good"), b"good") == _GOOD
