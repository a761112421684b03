"""What a job made comes home: all of it, nothing else, and never outside its folder."""

import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from gpulayer.errors import BadRequest, Conflict, DigestMismatch, ProtocolError, TooLarge, UsageError
from gpulayer.spec.tree import EMPTY_TREE, EntryKind, digest_of
from gpulayer.staging import home as home_module
from gpulayer.staging.beneath import Beneath
from gpulayer.staging.blobs import BlobFolder
from gpulayer.staging.home import write_home
from gpulayer.staging.limits import TreeLimits
from gpulayer.staging.outputs import OutputPatterns, collect_outputs
from gpulayer.staging.trees import build_tree, load_tree
from gpulayer.staging.workfolder import Baseline, materialise


class Bench:
    """A source, materialised in a work folder, ready for a job."""

    def __init__(self, root):
        self.root = root
        self.source, self.work, self.out = root / "source", root / "work", root / "out"
        for folder in (self.source, self.work, self.out):
            folder.mkdir()
        self.blobs = BlobFolder(root / "blobs", durable=False)
        self.baseline = Baseline({})

    def start(self, files):
        plant(self.source, files)
        with Beneath(self.source) as beneath:
            built = build_tree(self.source, list(beneath.walk()))
        self.keep(built)
        self.baseline = materialise(built.digest, self.blobs, self.work)

    def keep(self, built):
        self.blobs.put_many(built.objects.items())
        self.blobs.put_many((digest, content.path.read_bytes()) for digest, content in built.files.items())

    def collect(self, **options):
        options.setdefault("output_dir", self.out)
        return collect_outputs(self.work, options.pop("output_dir"), self.baseline, **options)

    def names(self, built):
        tree = load_tree(built.digest, lambda digest: built.objects[digest])
        return ["/".join(path) + ("/" if entry.kind is EntryKind.DIRECTORY else "") for path, entry in tree.walk()]


def plant(root, files):
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


SOURCE = {"main.py": "print()", "data/in.csv": "1,2", "old/": "", "run.sh": "#!/bin/sh"}


def test_a_job_that_changes_nothing_has_no_outputs(bench):
    bench.start(SOURCE)
    assert bench.collect().digest == EMPTY_TREE


def test_new_and_changed_files_are_outputs_and_nothing_else_is(bench):
    bench.start(SOURCE)
    plant(bench.work, {"result.txt": "r", "data/in.csv": "3,4", "deep/er/x": "x", "old/y": "y", "empty/": ""})
    built = bench.collect()
    assert bench.names(built) == [
        "data/",
        "data/in.csv",
        "deep/",
        "deep/er/",
        "deep/er/x",
        "empty/",
        "old/",
        "old/y",
        "result.txt",
    ]
    assert (built.source.files, built.source.size_bytes) == (4, 6)
    assert built.files[digest_of(b"r")].path == bench.work / "result.txt"


def test_same_size_written_at_once_is_seen(bench):
    """Within one tick of the clock size and time could be equal; the files' time in the past tells them apart."""
    bench.start({f"{n}": "aa" for n in range(50)})
    for n in range(50):
        with open(bench.work / f"{n}", "r+b") as file:
            file.write(b"bb")
    assert bench.collect().source.files == 50


def test_same_size_with_its_time_put_back_is_seen(bench):
    bench.start({"a": "aa"})
    before = os.stat(bench.work / "a")
    (bench.work / "a").write_text("bb")
    os.utime(bench.work / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert bench.names(bench.collect()) == ["a"]


def test_touched_rewritten_and_replaced_files_with_equal_content_are_no_outputs(bench):
    bench.start({"touched": "a", "rewritten": "b", "replaced": "c", "mode": "d"})
    os.utime(bench.work / "touched")
    (bench.work / "rewritten").write_text("b")
    (bench.work / "new").write_text("c")
    (bench.work / "new").rename(bench.work / "replaced")
    (bench.work / "mode").chmod(0o600)
    assert bench.collect().digest == EMPTY_TREE


def test_unchanged_files_are_not_read(bench, monkeypatch):
    bench.start({f"{n}": f"{n}" for n in range(20)})
    (bench.work / "new").write_text("x")
    opened = []
    real = Beneath.open_file
    monkeypatch.setattr(Beneath, "open_file", lambda self, path: (opened.append(path), real(self, path))[1])
    bench.collect()
    assert opened == [("new",)]


def test_a_baseline_survives_a_restart_of_the_worker(bench):
    bench.start({**SOURCE, os.fsdecode(b"caf\xe9"): "x"})
    bench.baseline = Baseline.from_bytes(bench.baseline.to_bytes())
    plant(bench.work, {"result.txt": "r"})
    assert bench.names(bench.collect()) == ["result.txt"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"v":2,"entries":[]}', b'{"v":1,"entries":[1]}'])
def test_a_baseline_that_cannot_be_read_says_so(content):
    with pytest.raises(ProtocolError, match="baseline"):
        Baseline.from_bytes(content)


def test_caches_and_environments_are_no_outputs_unless_a_pattern_names_them(bench):
    bench.start(SOURCE)
    plant(
        bench.work,
        {
            "__pycache__/a.pyc": "x",
            "pkg/__pycache__/b.pyc": "x",
            "pkg/c.pyc": "x",
            ".venv/bin/python": "x",
            ".git/config": "x",
            ".pytest_cache/v": "x",
            ".mypy_cache/m": "x",
            ".ruff_cache/r": "x",
            "node_modules/n/i.js": "x",
            ".ipynb_checkpoints/n": "x",
            "gpulayer_runs/1/x": "x",
            "pkg/keep.txt": "x",
        },
    )
    assert bench.names(bench.collect()) == ["pkg/", "pkg/keep.txt"]
    assert bench.names(bench.collect(patterns=[".venv/**"])) == [".venv/", ".venv/bin/", ".venv/bin/python"]


PATTERNS = [
    ("*.png", ["a.png"]),
    ("**/*.png", ["a.png", "d/", "d/b.png", "d/e/", "d/e/c.png"]),
    ("d", ["d/", "d/b.png", "d/e/", "d/e/c.png", "d/e/x.txt"]),
    ("d/", ["d/", "d/b.png", "d/e/", "d/e/c.png", "d/e/x.txt"]),
    ("./d/*", ["d/", "d/b.png", "d/e/", "d/e/c.png", "d/e/x.txt"]),
    ("d/*.png", ["d/", "d/b.png"]),
    ("d/**/c.png", ["d/", "d/e/", "d/e/c.png"]),
    ("[ab].p?g", ["a.png"]),
    ("[!a].png", []),
    ("**", ["a.png", "d/", "d/b.png", "d/e/", "d/e/c.png", "d/e/x.txt", "z/"]),
    ("z", ["z/"]),
    ("nothing", []),
    ("[", []),
    ("a.png.*", []),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_patterns_choose_among_the_outputs(bench, pattern, expected):
    bench.start(SOURCE)
    plant(bench.work, {"a.png": "1", "d/b.png": "2", "d/e/c.png": "3", "d/e/x.txt": "4", "z/": ""})
    assert bench.names(bench.collect(patterns=[pattern])) == expected


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../x", "a\0b", "[z-a]"])
def test_patterns_that_leave_the_folder_or_make_no_sense_are_usage_errors(pattern):
    with pytest.raises(UsageError, match="--output"):
        OutputPatterns([pattern])


@pytest.mark.parametrize("inside", [True, False])
def test_the_output_folder_comes_whole_and_wins(bench, inside):
    bench.start(SOURCE)
    if inside:
        bench.out = bench.work / "outputs"
    plant(bench.work, {"both.txt": "work", "only.txt": "w", "f": "file", "d/x": "x"})
    plant(bench.out, {"both.txt": "out", "f/in": "i", "d": "file", "main.py": "changed", "keep.pyc": "k", "e/": ""})
    built = bench.collect(patterns=[] if not inside else ["*.txt", "f", "d"])
    assert bench.names(built) == ["both.txt", "d", "e/", "f/", "f/in", "keep.pyc", "main.py", "only.txt"]
    bench.keep(built)
    home = bench.root / "home"
    write_home(built.digest, bench.blobs, home)
    assert (home / "both.txt").read_text() == "out"
    assert (home / "d").read_text() == "file"


def test_links_inside_come_along_and_those_that_lead_outside_or_nowhere_are_named(bench):
    bench.start({"old": "x", "link": "x"})
    (bench.work / "link").unlink()
    plant(bench.work, {"ckpt/1": "x"})
    for name, target in {
        "latest": "ckpt/1",
        "ckpt/self": "../ckpt",
        "link": "old",
        "out": "../../etc",
        "abs": "/etc/passwd",
        "dangling": "nowhere",
        "loop": "loop",
    }.items():
        (bench.work / name).symlink_to(target)
    built = bench.collect()
    assert bench.names(built) == ["ckpt/", "ckpt/1", "ckpt/self", "latest", "link"]
    assert built.warnings == ("skipped abs, dangling, loop, out: links that lead outside or nowhere",)


def test_s4_sockets_and_pipes_are_named_and_never_opened(bench):
    bench.start(SOURCE)
    os.mkfifo(bench.work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(bench.work / "run.sock"))
    built = bench.collect()
    assert built.digest == EMPTY_TREE
    assert built.warnings == ("skipped pipe, run.sock: sockets, pipes and devices are no outputs",)


def test_a_folder_swapped_for_a_link_is_not_looked_into(bench):
    secret = bench.root / "secret"
    plant(secret, {"token": "s"})
    bench.start(SOURCE)
    shutil.rmtree(bench.work / "data")
    (bench.work / "data").symlink_to(secret)
    (bench.work / "fine").symlink_to(secret / "token")
    built = bench.collect()
    assert digest_of(b"s") not in built.files
    assert bench.names(built) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="switches its user")
def test_what_cannot_be_read_is_named_and_the_rest_comes():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        bench = Bench(Path(name))
        bench.start(SOURCE)
        plant(bench.work, {"locked/x": "x", "secret.txt": "x", "ok.txt": "x"})
        (bench.work / "locked").chmod(0)
        (bench.work / "secret.txt").chmod(0)
        os.seteuid(65534)
        try:
            built = bench.collect()
        finally:
            os.seteuid(0)
    assert bench.names(built) == ["locked/", "ok.txt"]
    assert len(built.warnings) == 2
    assert built.warnings[0] == "skipped folder locked: Permission denied"
    assert built.warnings[1].startswith("skipped secret.txt can't be read: Permission denied")


def test_outputs_over_the_limit_are_refused_unread_with_the_culprit(bench, monkeypatch):
    bench.start(SOURCE)
    plant(bench.work, {"small": "x"})
    with open(bench.work / "huge.bin", "wb") as file:
        file.truncate(200 * 10**9)
    monkeypatch.setattr(Beneath, "open_file", lambda self, path: pytest.fail("was read"))
    with pytest.raises(TooLarge, match=r"200 GB.*limit is 10\.7 GB.*huge\.bin \(200 GB\)"):
        bench.collect()
    with pytest.raises(TooLarge, match=r"2 files.*limit is 1 files"):
        bench.collect(limits=TreeLimits(files=1, size_bytes=10**12))


def test_folders_that_nest_without_end_are_cut_off_and_named(bench):
    bench.start(SOURCE)
    deep = bench.work / "/".join("d" * 12)
    plant(deep, {"x": "x"})
    built = bench.collect(limits=TreeLimits(depth=10))
    assert bench.names(built)[-1] == "d/" * 10
    assert built.warnings == ("skipped what lies below d/d/d/…: folders nest too deep",)


def test_no_output_folder_is_no_outputs(bench):
    bench.start(SOURCE)
    assert bench.collect(output_dir=None).digest == EMPTY_TREE
    assert bench.collect(output_dir=bench.root / "never-made").digest == EMPTY_TREE


# --- home -------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(bench):
    """An output tree of several kinds, and where it goes."""
    plant(bench.work, {"a.txt": "a", "d/b.txt": "b", "d/empty/": "", "run.sh": "r"})
    (bench.work / "run.sh").chmod(0o755)
    (bench.work / "a.txt").chmod(0o666)
    (bench.work / "d" / "link").symlink_to("../a.txt")
    built = bench.collect()
    bench.keep(built)
    return bench, built.digest, bench.root / "project" / "gpulayer_runs" / "7f3a"


def content(folder):
    return {
        p.relative_to(folder).as_posix(): (os.readlink(p) if p.is_symlink() else p.read_text() if p.is_file() else None)
        for p in sorted(folder.rglob("*"))
    }


WHOLE = {"a.txt": "a", "d": None, "d/b.txt": "b", "d/empty": None, "d/link": "../a.txt", "run.sh": "r"}


def test_outputs_arrive_whole_and_their_folder_ignores_itself(made):
    bench, digest, destination = made
    landed = write_home(digest, bench.blobs, destination)
    assert content(destination) == WHOLE
    assert (landed.files, landed.kept, landed.size_bytes, landed.warnings) == (4, 0, 3, ())
    assert stat.S_IMODE((destination / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((destination / "a.txt").stat().st_mode) == 0o644, "nobody else may write what came home"
    assert sorted(p.name for p in destination.parent.iterdir()) == [".gitignore", "7f3a"]
    listing = "git init -q && git ls-files -co --exclude-standard"
    environment = {"PATH": os.environ["PATH"]}
    assert subprocess.check_output(["sh", "-c", listing], cwd=destination.parents[1], env=environment) == b""


def test_an_own_gitignore_and_other_folders_are_left_alone(made):
    bench, digest, destination = made
    destination.parent.mkdir(parents=True)
    (destination.parent / ".gitignore").write_text("mine\n")
    write_home(digest, bench.blobs, destination)
    assert (destination.parent / ".gitignore").read_text() == "mine\n"
    write_home(digest, bench.blobs, bench.root / "elsewhere" / "out")
    assert sorted(p.name for p in (bench.root / "elsewhere").iterdir()) == ["out"]


def test_a_second_download_keeps_what_is_equal_and_mends_what_is_not(made):
    bench, digest, destination = made
    write_home(digest, bench.blobs, destination)
    inode = (destination / "d/b.txt").stat().st_ino
    (destination / "a.txt").write_text("spoilt")
    (destination / "run.sh").unlink()
    (destination / "mine.txt").write_text("mine")
    landed = write_home(digest, bench.blobs, destination)
    assert content(destination) == WHOLE | {"mine.txt": "mine"}
    assert (landed.files, landed.kept) == (2, 2)
    assert (destination / "d/b.txt").stat().st_ino == inode


def test_a_download_that_breaks_shows_nothing_and_the_next_one_goes_on(made, monkeypatch):
    bench, digest, destination = made
    reads = []

    class Breaking:
        read = staticmethod(bench.blobs.read)

        @staticmethod
        def chunks(blob):
            reads.append(blob)
            if len(reads) == 2:
                yield b""
                raise ConnectionError("cut")
            yield from bench.blobs.chunks(blob)

    with pytest.raises(ConnectionError, match="cut"):
        write_home(digest, Breaking, destination)
    assert not destination.exists()
    partial = next(p for p in destination.parent.iterdir() if p.name.endswith(".partial"))
    (partial / (".gpulayer-" + "0" * 32)).write_text("left by a killed one")
    landed = write_home(digest, bench.blobs, destination)
    assert content(destination) == WHOLE
    assert landed.kept == 1
    assert sorted(p.name for p in destination.parent.iterdir()) == [".gitignore", "7f3a"]


def test_false_content_never_gets_a_name(made):
    bench, digest, destination = made

    class Lying:
        read = staticmethod(bench.blobs.read)

        @staticmethod
        def chunks(blob):
            yield b"z"

    with pytest.raises(DigestMismatch, match=r"a\.txt"):
        write_home(digest, Lying, destination)
    assert not any(p.is_file() for p in destination.parent.rglob("*") if p.name != ".gitignore")


def test_two_downloads_at_once_both_succeed(made):
    bench, digest, destination = made
    errors = []
    start = threading.Barrier(4)

    def download():
        try:
            start.wait(10)
            write_home(digest, bench.blobs, destination)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=download) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert content(destination) == WHOLE
    assert sorted(p.name for p in destination.parent.iterdir()) == [".gitignore", "7f3a"]


@pytest.mark.parametrize("where", ["7f3a", "7f3a/d", "7f3a/a.txt", "7f3a/d/b.txt"])
def test_links_that_stand_in_the_destination_are_never_written_through(made, where):
    bench, digest, destination = made
    outside = bench.root / "outside"
    plant(outside, {"b.txt": "precious", "a.txt": "precious"})
    link = destination.parent / where
    link.parent.mkdir(parents=True)
    link.symlink_to(outside if "." not in link.name else outside / link.name)
    if "." in link.name:
        write_home(digest, bench.blobs, destination)
        assert content(destination) == WHOLE, "the link itself is replaced"
    else:
        with pytest.raises(Conflict, match=link.name):
            write_home(digest, bench.blobs, destination)
    assert content(outside) == {"b.txt": "precious", "a.txt": "precious"}


def test_a_folder_where_a_file_should_go_is_left_as_it_is(made):
    bench, digest, destination = made
    plant(destination, {"a.txt/mine": "m"})
    with pytest.raises(Conflict, match=r"a\.txt"):
        write_home(digest, bench.blobs, destination)
    assert (destination / "a.txt/mine").read_text() == "m"


def test_a_git_folder_made_elsewhere_does_not_come_home(bench):
    bench.out.joinpath("sub").mkdir()
    plant(bench.out, {"sub/.git/config": "[core] fsmonitor = evil", "sub/.GIT/hooks/x": "evil", "sub/ok": "x"})
    built = bench.collect()
    bench.keep(built)
    landed = write_home(built.digest, bench.blobs, bench.root / "home")
    assert content(bench.root / "home") == {"sub": None, "sub/ok": "x"}
    assert landed.warnings == ("left out sub/.GIT, sub/.git: a job's .git does not come home",)


def test_a_missing_object_is_refused_before_anything_is_made(bench):
    with pytest.raises(BadRequest, match="no tree object"):
        write_home(digest_of(b"no"), bench.blobs, bench.root / "p" / "gpulayer_runs" / "1")
    assert not (bench.root / "p").exists()


def test_names_that_are_one_on_this_file_system_do_not_overwrite_each_other(bench, monkeypatch):
    """A stand-in for a file system that ignores case: every name is looked up and written in lower case."""
    plant(bench.out, {"readme": "1", "README": "2"})
    built = bench.collect()
    bench.keep(built)
    real_look, real_replace = home_module.look, os.replace
    monkeypatch.setattr(home_module, "look", lambda parent, path: real_look(parent, (*path[:-1], path[-1].lower())))
    monkeypatch.setattr(os, "replace", lambda a, b, **fds: real_replace(a, b.lower(), **fds))
    with pytest.raises(Conflict, match="README and readme are one name"):
        write_home(built.digest, bench.blobs, bench.root / "home")
