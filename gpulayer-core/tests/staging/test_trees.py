"""Folders to trees and back; trees made by an enemy; files that change while they are read."""

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulayer.errors import (
    BadRequest,
    Conflict,
    DigestMismatch,
    DiskFull,
    GpulayerError,
    NotFound,
    TooLarge,
    UsageError,
)
from gpulayer.ids import Digest
from gpulayer.spec.tree import EMPTY_TREE, Entry, EntryKind, digest_of, encode_tree
from gpulayer.staging import trees as module
from gpulayer.staging.beneath import Beneath
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.limits import TreeLimits
from gpulayer.staging.trees import build_tree, check_tree, load_tree, walk_tree
from gpulayer.staging.workfolder import Baseline, materialise

F, D, L = EntryKind.FILE, EntryKind.DIRECTORY, EntryKind.SYMLINK
X = digest_of(b"x")


def build(root, **options):
    with Beneath(root) as beneath:
        entries = list(beneath.walk())
    return build_tree(root, entries, **options)


def keep(built, blobs):
    blobs.put_many(built.objects.items())
    blobs.put_many((digest, content.path.read_bytes()) for digest, content in built.files.items())


class Enemy:
    """Makes trees as a hostile client would: any JSON, any digest."""

    def __init__(self, root):
        self.blobs = BlobFolder(root, durable=False)
        self.blob(b"x")
        self.blob(b"")

    def blob(self, content):
        digest = digest_of(content)
        self.blobs.put_bytes(digest, content)
        return digest

    def tree(self, *rows, v=1):
        return self.blob(json.dumps({"v": v, "entries": rows}).encode())

    def chain(self, depth, bottom=EMPTY_TREE, name="d", copies=1):
        self.blob(encode_tree(()))
        for _ in range(depth):
            bottom = self.tree(*(["d", f"{name}{n}", 0o755, bottom] for n in range(copies)))
        return bottom


def f(name, mode=0o644, size=1, digest=X):
    return ["f", name, mode, size, digest]


def link(name, target):
    return ["l", name, target]


def below(enemy, *rows):
    return ["d", "d", 0o755, enemy.tree(*rows)]


NAMES = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "../x",
    "a/b",
    "a/../../x",
    "x\0y",
    "\0",
    "x" * 256,
    "\ud800",
    "\udcc3\udca9",
    "x/",
]
LINKS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "./../x",
    "a/../x",
    "a/../../x",
    "x\0",
    "//x",
    "x" * 4096,
    "\ud800",
    "../../../../etc",
]

ATTACKS = {
    **{f"file named {name[:12]!r}": (lambda e, name=name: e.tree(f(name))) for name in NAMES},
    **{
        f"folder named {name[:12]!r}": (lambda e, name=name: e.tree(["d", name, 0o755, e.tree(f("x"))]))
        for name in NAMES
    },
    **{f"link named {name[:12]!r}": (lambda e, name=name: e.tree(link(name, "x"))) for name in NAMES},
    **{f"link to {target[:12]!r}": (lambda e, target=target: e.tree(link("l", target))) for target in LINKS},
    **{
        f"deep link to {target[:12]!r}": (lambda e, target=target: e.tree(below(e, link("l", "../" + target))))
        for target in ["..", "../x", "a/../../x", "./../x"]
    },
    "link up two from one below": lambda e: e.tree(below(e, link("up", "../.."))),
    "good link in one place, bad in another": lambda e: e.tree(
        below(e, ["d", "a", 0o755, e.tree(link("l", "../.."))]), ["d", "b", 0o755, e.tree(link("l", "../.."))]
    ),
    "two links that climb together": lambda e: e.tree(
        below(e, ["d", "e", 0o755, e.tree(link("up", "../.."))]), link("out", "d/e/up/../x")
    ),
    "link, then a file of its name": lambda e: e.tree(link("a", "b"), f("a")),
    "file, then a link of its name": lambda e: e.tree(f("a"), link("a", "b")),
    "link, then a folder of its name": lambda e: e.tree(link("a", "b"), ["d", "a", 0o755, e.tree(f("x"))]),
    "folder twice": lambda e: e.tree(["d", "a", 0o755, e.tree(f("x"))], ["d", "a", 0o755, e.tree(f("y"))]),
    "file twice": lambda e: e.tree(f("a"), f("a")),
    "two spellings of one name": lambda e: e.tree(f("é"), f("\udcc3\udca9")),
    "out of order": lambda e: e.tree(f("b"), f("a")),
    "set-uid": lambda e: e.tree(f("a", mode=0o4755)),
    "sticky": lambda e: e.tree(["d", "a", 0o1777, EMPTY_TREE]),
    "negative mode": lambda e: e.tree(f("a", mode=-1)),
    "boolean mode": lambda e: e.tree(f("a", mode=True)),
    "text mode": lambda e: e.tree(f("a", mode="0644")),
    "negative size": lambda e: e.tree(f("a", size=-1)),
    "size 2^63": lambda e: e.tree(f("a", size=2**63)),
    "size says less": lambda e: e.tree(f("a", size=0)),
    "size says more": lambda e: e.tree(f("a", size=2)),
    "empty blob with a size": lambda e: e.tree(f("a", size=5, digest=digest_of(b""))),
    "one blob, two sizes": lambda e: e.tree(f("a", size=1), f("b", size=7)),
    "no such blob": lambda e: e.tree(f("a", digest="0" * 64)),
    "no such folder": lambda e: e.tree(["d", "a", 0o755, "0" * 64]),
    "no such root": lambda e: Digest("0" * 64),
    "root is no digest": lambda e: Digest("../../etc/passwd"),
    "digest is a path": lambda e: e.tree(f("a", digest="../../../etc/passwd")),
    "digest in capitals": lambda e: e.tree(f("a", digest=X.upper())),
    "folder is a file's blob": lambda e: e.tree(["d", "a", 0o755, X]),
    "root is no JSON": lambda e: X,
    "root is a list": lambda e: e.blob(b"[]"),
    "root is deep JSON": lambda e: e.blob(b"[" * 200_000),
    "schema 2": lambda e: e.tree(f("a"), v=2),
    "schema true": lambda e: e.tree(f("a"), v=True),
    "entries is an object": lambda e: e.blob(b'{"v":1,"entries":{}}'),
    "unknown kind": lambda e: e.tree(["s", "sock"]),
    "device": lambda e: e.tree(["b", "sda", 0o600, 8, 0]),
    "hard link": lambda e: e.tree(["h", "a", "/etc/passwd"]),
    "extra field": lambda e: e.tree([*f("a"), 1]),
    "number as a name": lambda e: e.tree(["f", 1, 0o644, 1, X]),
    "five thousand digits": lambda e: e.blob(
        b'{"v":1,"entries":[["f","a",420,' + b"9" * 5000 + b',"' + X.encode() + b'"]]}'
    ),
    "nested 201 deep": lambda e: e.chain(201),
    "nested 1,000 deep": lambda e: e.chain(1_000),
    "a path over PATH_MAX": lambda e: e.chain(60, name="n" * 100),
    "2^100 empty folders": lambda e: e.chain(100, copies=2),
    "10^60 files": lambda e: e.chain(60, e.tree(f("x")), copies=10),
    "a folder bomb of files without bytes": lambda e: e.chain(50, e.tree(f("x", 0o644, 0, digest_of(b""))), copies=4),
    "a million names": lambda e: e.blob(
        b'{"v":1,"entries":[' + b",".join(b'["l","%06d","x"]' % n for n in range(1_000_000)) + b"]}"
    ),
    "100 GB by repetition": lambda e: e.chain(
        1, e.chain(1, e.tree(*(f(f"{n:04}", size=10**8, digest="1" * 64) for n in range(1000))))
    ),
}


def test_the_table_of_attacks_is_long_enough():
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_tree_is_refused_with_a_clear_error_and_nothing_is_written_outside(tmp_path, name):
    enemy = Enemy(tmp_path / "blobs")
    root = ATTACKS[name](enemy)
    cage = tmp_path / "cage"
    work = cage / "a" / "work"
    work.mkdir(parents=True)
    with pytest.raises((BadRequest, TooLarge, NotFound, DigestMismatch)) as caught:
        materialise(root, enemy.blobs, work)
    assert caught.value.message
    assert len(caught.value.message) < 5000
    assert sorted(p.relative_to(cage).as_posix() for p in cage.rglob("*") if work not in p.parents) == ["a", "a/work"]
    assert not any(p.is_symlink() for p in work.rglob("*"))


def test_an_object_with_another_digest_is_refused(tmp_path):
    content = encode_tree([Entry("a", F, 0o644, 1, X)])
    with pytest.raises(DigestMismatch, match="the root"):
        load_tree(EMPTY_TREE, lambda digest: content)


def test_a_missing_object_is_named_with_its_folder(tmp_path):
    enemy = Enemy(tmp_path)
    root = enemy.tree(["d", "src", 0o755, enemy.tree(["d", "deep", 0o755, "0" * 64])])
    with pytest.raises(BadRequest, match=rf"no tree object {'0' * 64} \(folder 'src/deep'\)"):
        check_tree(root, enemy.blobs.read)


def test_a_huge_object_is_refused_before_it_is_parsed():
    content = b"[" * 1000
    with pytest.raises(TooLarge, match="the limit is 100 B"):
        load_tree(digest_of(content), lambda digest: content, limits=TreeLimits(object_bytes=100))


def test_totals_count_every_name_and_every_blob_once(tmp_path):
    enemy = Enemy(tmp_path)
    shared = enemy.tree(link("l", "x"), f("x"))
    root = enemy.tree(["d", "a", 0o755, shared], ["d", "b", 0o700, shared], f("c"))
    totals = check_tree(root, enemy.blobs.read)
    assert (totals.files, totals.size_bytes, totals.entries) == (5, 3, 7)
    assert totals.digests == {root, shared, X}
    walked = [("/".join(path), entry.kind) for path, entry in walk_tree(root, enemy.blobs.read)]
    assert walked == [("a", D), ("a/l", L), ("a/x", F), ("b", D), ("b/l", L), ("b/x", F), ("c", F)]


# --- there and back ---------------------------------------------------------------------------------------------

components = st.one_of(
    st.sampled_from(["a", "b", "c", "A", "é", "e\u0301", " ", "-", "a.b"]),
    st.binary(min_size=1, max_size=6).filter(lambda b: b not in (b".", b"..") and b"/" not in b and b"\0" not in b),
).map(os.fsdecode)
nodes = st.recursive(
    st.one_of(
        st.tuples(st.binary(max_size=50), st.integers(0, 0o777).map(lambda mode: mode | 0o400)),
        st.sampled_from(["target", "./a", "a/b"]),
    ),
    lambda inner: st.dictionaries(components, inner, max_size=4),
    max_leaves=12,
)


def plant(root, tree):
    for name, node in tree.items():
        path = os.path.join(root, name)
        if isinstance(node, dict):
            os.mkdir(path)
            plant(path, node)
        elif isinstance(node, str):
            os.symlink(node, path)
        else:
            with open(path, "wb") as file:
                file.write(node[0])
            os.chmod(path, node[1])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(components, nodes, max_size=5), st.sampled_from([0o000, 0o022, 0o077]))
def test_build_materialise_build_gives_the_same_digest_under_any_umask(tree, umask):
    with tempfile.TemporaryDirectory() as folder:
        source, work = Path(folder, "source"), Path(folder, "work")
        source.mkdir()
        work.mkdir()
        plant(source, tree)
        built = build(source)
        blobs = BlobFolder(Path(folder, "blobs"), durable=False)
        keep(built, blobs)
        old = os.umask(umask)
        try:
            baseline = materialise(built.digest, blobs, work)
        finally:
            os.umask(old)
        assert build(work).digest == built.digest
        assert Baseline.from_bytes(baseline.to_bytes()) == baseline
        assert check_tree(built.digest, blobs.read).digests == set(built.digests())


def test_s7_modes_and_empty_folders_survive_a_narrow_umask(tmp_path):
    source, work = tmp_path / "source", tmp_path / "work"
    (source / "out").mkdir(parents=True)
    work.mkdir()
    (source / "run.sh").write_text("#!/bin/sh\nexec test -d out\n")
    (source / "plain.txt").write_text("x")
    (source / "run.sh").chmod(0o755)
    (source / "plain.txt").chmod(0o600)
    (source / "out").chmod(0o555)
    blobs = BlobFolder(tmp_path / "blobs")
    built = build(source)
    keep(built, blobs)
    old = os.umask(0o077)
    try:
        materialise(built.digest, blobs, work)
    finally:
        os.umask(old)
    assert (work / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (work / "plain.txt").stat().st_mode & 0o777 == 0o600
    assert (work / "out").stat().st_mode & 0o777 == 0o755, "a folder stays usable by its owner"
    assert subprocess.run(["./run.sh"], cwd=work, check=False).returncode == 0


def test_equal_folders_have_equal_digests_whatever_their_times_and_threads(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "d").mkdir(parents=True)
        for n in range(20):
            (tmp_path / name / "d" / f"{n}").write_bytes(bytes([n]) * n)
    os.utime(tmp_path / "two/d/1", (1, 1))
    one = build(tmp_path / "one", commit="abc", dirty=True)
    assert one.digest == build(tmp_path / "two", threads=4).digest
    assert (one.source.files, one.source.size_bytes, one.source.commit, one.source.dirty) == (20, 190, "abc", True)


def test_an_empty_folder_is_the_empty_tree(tmp_path):
    assert build(tmp_path).digest == EMPTY_TREE


def test_large_content_is_copied_verified_or_not(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    content = os.urandom(3 * 2**20 + 7)
    (source / "model.bin").write_bytes(content)
    blobs = BlobFolder(tmp_path / "blobs", durable=False)
    built = build(source)
    keep(built, blobs)
    for verify in (True, False):
        work = tmp_path / f"work-{verify}"
        work.mkdir()
        materialise(built.digest, blobs, work, verify=verify)
        assert (work / "model.bin").read_bytes() == content


@pytest.mark.parametrize("size", [10, 3 * 2**20])
def test_a_damaged_blob_is_never_used_and_is_named_with_its_file(tmp_path, size):
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    (source / "model.bin").write_bytes(b"m" * size)
    blobs = BlobFolder(tmp_path / "blobs", durable=False)
    built = build(source)
    keep(built, blobs)
    digest = digest_of(b"m" * size)
    blobs.path(digest).write_bytes(b"M" * size)
    with pytest.raises(DigestMismatch, match=r"model\.bin"):
        materialise(built.digest, blobs, work)
    assert blobs.missing([digest]) == [digest]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    enemy = Enemy(tmp_path / "blobs")
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine").write_text("x")
    with pytest.raises(Conflict, match="not empty"):
        materialise(enemy.tree(f("a")), enemy.blobs, work)


def test_a_full_disk_while_a_work_folder_is_written_is_said_so(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("can't mount a small disk here")
    try:
        enemy = Enemy(tmp_path / "blobs")
        big = enemy.blob(os.urandom(2**20))
        (disk / "work").mkdir()
        with pytest.raises(DiskFull, match=r"big\.bin"):
            materialise(enemy.tree(f("big.bin", size=2**20, digest=big)), enemy.blobs, disk / "work")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_two_names_that_are_one_on_the_workers_file_system_are_both_named(tmp_path, monkeypatch):
    """A stand-in for a file system that ignores case: what is created gets a name in lower case."""
    enemy = Enemy(tmp_path / "blobs")
    work = tmp_path / "work"
    work.mkdir()
    real = os.open

    def open_lower(name, flags, *arguments, dir_fd=None):
        created = flags & os.O_CREAT and dir_fd is not None
        return real(name.lower() if created else name, flags, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_lower)
    with pytest.raises(Conflict, match=r"d/README and d/readme are one name"):
        materialise(enemy.tree(below(enemy, f("README"), f("readme"))), enemy.blobs, work)


# --- files that change ------------------------------------------------------------------------------------------


def test_a_file_that_grows_while_it_is_read_is_read_again_until_it_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"a")
    reads = []
    real = os.read

    def read(descriptor, count):
        content = real(descriptor, count)
        if content and len(reads) < 2:
            with open(path, "ab") as file:
                file.write(b"more")
        reads.append(content)
        return content

    monkeypatch.setattr(module.os, "read", read)
    built = build(tmp_path)
    monkeypatch.undo()
    assert digest_of(path.read_bytes()) in built.files


def test_a_file_that_changes_each_time_is_named(tmp_path, monkeypatch):
    path = tmp_path / "busy.log"
    path.write_bytes(b"a")
    real = os.read

    def read(descriptor, count):
        with open(path, "ab") as file:
            file.write(b"x")
        return real(descriptor, min(count, 1))  # never reaches the end of what grows

    monkeypatch.setattr(
        module.os, "read", lambda descriptor, count: read(descriptor, count) if path.stat().st_size < 50 else b""
    )
    with pytest.raises(UsageError, match=r"busy\.log changed each of 5 times"):
        build(tmp_path)


def test_replaced_files_give_one_state_or_the_other(tmp_path):
    old, new = b"o" * 300_000, b"n" * 300_000
    path = tmp_path / "source" / "f"
    path.parent.mkdir()
    path.write_bytes(old)
    stop = threading.Event()

    def swap():
        turn = 0
        while not stop.is_set():
            turn += 1
            (tmp_path / "next").write_bytes(new if turn % 2 else old)
            os.replace(tmp_path / "next", path)

    refusals = []
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(50):
            try:
                built = build(path.parent)
            except UsageError as error:
                refusals.append(error.message)
            else:
                assert set(built.files) <= {digest_of(old), digest_of(new)}
    finally:
        stop.set()
        thread.join()
    assert all("f changed" in message or "f vanished" in message for message in refusals)


def test_a_file_that_became_a_link_or_a_pipe_after_the_scan_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "a").write_text("x")
    with Beneath(source) as beneath:
        entries = list(beneath.walk())
    (source / "d" / "a").unlink()
    (source / "d" / "a").symlink_to(secret)
    with pytest.raises(UsageError, match="d/a"):
        build_tree(source, entries)
    (source / "d" / "a").unlink()
    os.mkfifo(source / "d" / "a")
    with pytest.raises(UsageError, match="d/a was replaced by something that is no file"):
        build_tree(source, entries)
    (source / "d").rename(tmp_path / "moved")
    (source / "d").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="d/a"):
        build_tree(source, entries)


# --- generated enemies ------------------------------------------------------------------------------------------

hostile_names = st.one_of(st.sampled_from([*NAMES, "a", "b", "c"]), st.text(max_size=5))
rows = st.one_of(
    st.tuples(
        st.just("f"),
        hostile_names,
        st.integers(-1, 0o2000),
        st.integers(-1, 3),
        st.sampled_from([X, digest_of(b""), "0" * 64]),
    ),
    st.tuples(st.just("l"), hostile_names, st.one_of(st.sampled_from([*LINKS, "a", "b", "../a"]), st.text(max_size=8))),
    st.tuples(st.just("d"), hostile_names, st.just(0o755), st.integers(0, 3)),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(rows, max_size=4), min_size=1, max_size=4))
def test_generated_trees_never_write_outside(objects):
    with tempfile.TemporaryDirectory() as folder:
        enemy = Enemy(Path(folder, "blobs"))
        made = [EMPTY_TREE]
        enemy.blob(encode_tree(()))
        for rows_of_one in objects:
            fixed = [[*row[:3], made[row[3] % len(made)]] if row[0] == "d" else list(row) for row in rows_of_one]
            fixed.sort(key=lambda row: row[1].encode("utf-8", "surrogatepass"))
            made.append(enemy.tree(*fixed))
        work = Path(folder, "cage", "work")
        work.mkdir(parents=True)
        try:
            materialise(made[-1], enemy.blobs, work)
        except GpulayerError:
            pass
        assert os.listdir(work.parent) == ["work"]
        real = os.path.realpath(work)
        for base, folders, files in os.walk(work):
            for name in (*folders, *files):
                assert os.path.realpath(os.path.join(base, name)).startswith(real), "a link that leads outside"
