"""Nothing that a job leaves in its folders does harm on its way home (PROMISES: security 3).

A table of work folders as an enemy would leave them. Each goes the whole way: the worker's search for outputs, packs,
the control plane's check and the client's bring-home. It is refused with an error of ours, or does no harm: see
``test_attacks.py``.
"""

import contextlib
import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulayer.errors import TooLarge, UsageError
from gpulayer.staging import trees as trees_module
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.home import write_home
from gpulayer.staging.limits import TreeLimits
from gpulayer.staging.outputs import collect_outputs
from gpulayer.staging.packs import Pack, blobs_of, make_packs, open_content
from gpulayer.staging.trees import check_tree
from gpulayer.staging.workfolder import Baseline, materialise
from gpulayer.wire.packs import MAX_PACKED_BLOB, read_frames
from tests.arena import LIMITS, SECRET, Arena, a_file


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path.resolve())


def _special(make: Callable[[Path], object]) -> Callable[[Arena], None]:
    def leave(arena: Arena) -> None:
        try:
            make(arena.work / "special")
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP):
                raise
            (arena.work / "special").touch()  # not allowed here: then it is no attack here

    return leave


def _swap(arena: Arena, name: str) -> None:
    """The folder of the job itself is a link to somewhere else now."""
    folder: Path = getattr(arena, name)
    shutil.rmtree(folder)
    folder.symlink_to(arena.canary)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


def _sparse(arena: Arena, size: int) -> None:
    with (arena.work / "sparse").open("wb") as file:
        file.truncate(size)


def _nested(arena: Arena, depth: int) -> None:
    here = os.open(arena.work, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("deep", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def _named(text: str | bytes) -> Callable[[Arena], None]:
    def leave(arena: Arena) -> None:
        with open(os.path.join(os.fsencode(arena.work), os.fsencode(text)), "wb") as file:
            file.write(b"content")

    return leave


def _linked(target: str, name: str = "link") -> Callable[[Arena], None]:
    return lambda arena: os.symlink(target.replace("CANARY", str(arena.canary)), arena.work / name)


def _wrote(arena: Arena, name: str, mode: int = 0o644) -> None:
    path = arena.work / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"content")
    path.chmod(mode)


def _git(arena: Arena, name: str) -> None:
    (arena.out / name).mkdir()
    (arena.out / name / "config").write_bytes(b"[core]")


FOLDERS: dict[str, Callable[[Arena], object]] = {
    "a FIFO": _special(os.mkfifo),
    "a socket": _special(_socket),
    "a character device": _special(lambda path: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))),
    "a block device": _special(lambda path: os.mknod(path, 0o666 | stat.S_IFBLK, os.makedev(7, 0))),
    "a hard link to the canary": lambda arena: os.link(arena.canary / "folder" / "inner", arena.work / "hard"),
    "a link to the canary": _linked("CANARY"),
    "a link to its file": _linked("CANARY/file"),
    "a relative link to it": _linked("../canary/file"),
    "a link to a link to it": _linked("../canary/link"),
    "a link to the root": _linked("/"),
    "a link to proc": _linked("/proc/self/root/etc/passwd"),
    "a link to a device": _linked("/dev/zero"),
    "a link to itself": _linked("link"),
    "a dangling link": _linked("nowhere"),
    "a link of 4,000 bytes": _linked("a/" * 2000),
    "a work folder that is a link": lambda arena: _swap(arena, "work"),
    "an output folder that is a link": lambda arena: _swap(arena, "out"),
    "an output folder that is a file": lambda arena: (arena.out.rmdir(), arena.out.touch()),
    "no work folder": lambda arena: arena.work.rmdir(),
    "a file of 1 TB of nothing": lambda arena: _sparse(arena, 2**40),
    "a file of 8 TB of nothing": lambda arena: _sparse(arena, 2**43),
    "a file one byte too large": lambda arena: _sparse(arena, LIMITS.size_bytes + 1),
    "41 files": lambda arena: [_wrote(arena, f"{number:03}") for number in range(41)],
    "folders 60 deep": lambda arena: _nested(arena, 60),
    "folders 900 deep": lambda arena: _nested(arena, 900),
    "a set-user-id program": lambda arena: _wrote(arena, "su", 0o4755),
    "a set-group-id program": lambda arena: _wrote(arena, "sg", 0o2755),
    "a sticky file": lambda arena: _wrote(arena, "sticky", 0o1777),
    "a file that nobody may read": lambda arena: _wrote(arena, "locked", 0),
    "a folder that nobody may enter": lambda arena: (arena.work / "closed").mkdir(0),
    "a sticky folder": lambda arena: (_wrote(arena, "s/a"), (arena.work / "s").chmod(0o7777)),
    "git": lambda arena: _git(arena, ".git"),
    "GIT": lambda arena: _git(arena, ".GIT"),
    "names that differ by case": lambda arena: [_wrote(arena, name) for name in ("A", "a")],
    "names that differ by form": lambda arena: [_wrote(arena, name) for name in ("\u00e9", "e\u0301")],
    "a name of bytes": _named(b"\xff\xfe"),
    "an escape": _named("\x1b[2J\x1b[31mowned"),
    "a line end": _named("a\nERROR: all is lost"),
    "a log marker": _named("--- gpulayer: 7 bytes of this log were lost ---"),
    "a name of dots": _named("..."),
    "a backslash": _named("..\\..\\canary\\file"),
    "a pattern": _named("[!a]*?"),
    "a name of 255 bytes": _named("a" * 255),
    "a temporary of ours": _named(".gpulayer-" + "0" * 32),
    "a partial of ours": _named(".run.0123456789abcdef.partial"),
    "a dash": _named("-rf"),
}


def _bring_home(arena: Arena, baseline: Baseline | None = None) -> None:
    """The whole way: found by the worker, sent in packs, checked by the control plane, written by the client."""
    built = collect_outputs(arena.work, arena.out, baseline or Baseline({}), limits=LIMITS)
    assert all(warning.isprintable() for warning in built.warnings)
    kept = BlobFolder(arena.root / "blobs", durable=False)
    for parcel in make_packs(blobs_of(built, built.digests())):
        if isinstance(parcel, Pack):
            kept.put_many(read_frames([parcel.body]))
    check_tree(built.digest, kept.read, limits=LIMITS)
    write_home(built.digest, kept, arena.home / "run", limits=LIMITS)


def test_the_table_is_as_long_as_promised() -> None:
    assert len(FOLDERS) >= 40


@pytest.mark.parametrize("name", FOLDERS)
def test_what_a_hostile_job_leaves_comes_home_without_harm(arena, name) -> None:
    FOLDERS[name](arena)
    arena.before = arena.seen()  # a hard link is another name of it, which its times tell
    with contextlib.suppress(TooLarge):
        _bring_home(arena)
    arena.check(arena.home / "run")
    if name != "a hard link to the canary":  # whoever can make one can read the file
        sent = b"".join(path.read_bytes() for path in (arena.root / "blobs").rglob("*") if path.is_file())
        assert SECRET not in sent


def test_a_source_file_that_became_huge_is_refused_before_it_is_read(arena) -> None:
    baseline = materialise(arena.tree(a_file("a")), arena.blobs, arena.work, limits=LIMITS)
    os.truncate(arena.work / "a", 2**43)
    with pytest.raises(TooLarge):
        _bring_home(arena, baseline)


def test_a_file_that_grows_while_it_is_read_is_not_read_for_ever(arena, monkeypatch) -> None:
    (arena.work / "log").write_bytes(b"a" * 1000)
    reads, real = [], os.read

    def read(descriptor: int, count: int) -> bytes:
        with (arena.work / "log").open("ab") as file:
            file.write(b"b" * 1000)
        reads.append(count)
        assert len(reads) < 100
        return real(descriptor, 1000)

    monkeypatch.setattr(trees_module.os, "read", read)
    built = collect_outputs(arena.work, None, Baseline({}), limits=LIMITS)
    monkeypatch.undo()
    assert "changed each of" in built.warnings[0]
    arena.check()


@pytest.mark.parametrize("what", ["link", "fifo", "folder", "nothing", "other"])
def test_an_output_replaced_after_it_was_hashed_sends_nothing_else(arena, what) -> None:
    for name in ("small", "large"):
        (arena.work / name).write_bytes(b"s" if name == "small" else b"l" * (MAX_PACKED_BLOB + 1))
    limits = TreeLimits()
    built = collect_outputs(arena.work, None, Baseline({}), limits=limits)
    for name in ("small", "large"):
        path = arena.work / name
        path.unlink()
        match what:
            case "link":
                path.symlink_to(arena.canary / "file")
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "other":
                path.write_bytes(SECRET)
    sent: list[bytes] = []

    def send() -> None:
        parcels = make_packs(blobs_of(built, built.digests()))
        sent.extend(parcel.body for parcel in parcels if isinstance(parcel, Pack))

    with pytest.raises(UsageError):
        send()
    assert SECRET not in b"".join(sent)
    if what != "other":  # else the receiver finds that it is not what was announced
        for content in built.files.values():
            with pytest.raises(UsageError):
                open_content(content.path)
    arena.check()
