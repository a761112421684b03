"""What ships: against git itself, and the cases S1, S2, S3, S4, S7."""

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from gpulayer.errors import TooLarge, UsageError
from gpulayer.spec.tree import EntryKind
from gpulayer.staging.beneath import shown
from gpulayer.staging.limits import TreeLimits
from gpulayer.staging.scan import scan_source

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
NO_GIT = {"PATH": "/nonexistent"}


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def git(root, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *identity, "-c", "protocol.file.allow=always", *arguments],
        cwd=root,
        env=ENVIRONMENT,
        capture_output=True,
        check=True,
    )
    return done.stdout


def oracle(root):
    """Existing files that git lists."""
    names = git(root, "ls-files", "-co", "--exclude-standard", "-z").split(b"\0")
    return {os.fsdecode(n) for n in names if n and os.path.lexists(os.path.join(root, os.fsdecode(n)))}


def shipped(scan):
    return {"/".join(e.path) for e in scan.entries if e.kind is not EntryKind.DIRECTORY}


def folders(scan):
    return {"/".join(e.path) for e in scan.entries if e.kind is EntryKind.DIRECTORY}


def scan_of(root, **options):
    return scan_source(root, environment=options.pop("environment", ENVIRONMENT), **options)


VARIANTS = {
    "S1 data/* does not reach into src": (
        {".gitignore": "data/*\n"},
        ["data/big.bin", "src/project/data/__init__.py"],
    ),
    "re-inclusion": ({".gitignore": "*.txt\n!keep.txt\n"}, ["a.txt", "keep.txt", "d/keep.txt", "d/b.txt"]),
    "folder-only pattern": ({".gitignore": "build/\n"}, ["build/x", "src/build", "sub/build/y"]),
    "anchored": ({".gitignore": "/out\n"}, ["out/x", "src/out/y"]),
    "anchored by a middle slash": ({".gitignore": "a/b\n"}, ["a/b/x", "c/a/b/y"]),
    "nested file": (
        {".gitignore": "*.log\n", "sub/.gitignore": "!keep.log\n*.tmp\n"},
        ["a.log", "sub/keep.log", "sub/b.log", "sub/c.tmp", "c.tmp"],
    ),
    "no way back below an ignored folder": ({".gitignore": "d/\n!d/keep\n"}, ["d/keep", "d/x"]),
    "way back below an ignored content": ({".gitignore": "d/*\n!d/keep\n"}, ["d/keep", "d/x"]),
    "trailing spaces": ({".gitignore": "a.txt   \nb\\ \nc\\   \n"}, ["a.txt", "b ", "b", "c ", "c"]),
    "escaped hash and bang": ({".gitignore": "\\#name\n\\!bang\n# comment\n"}, ["#name", "!bang", "# comment"]),
    "double star": (
        {".gitignore": "**/cache\nlogs/**\nx/**/y\n"},
        ["cache/a", "p/cache/b", "logs/l/m", "x/y", "x/1/2/y", "x/z"],
    ),
    "character classes": ({".gitignore": "[ab].c\n[!x]?.h\n"}, ["a.c", "b.c", "c.c", "xy.h", "yy.h"]),
    "crlf": ({".gitignore": "a.txt\r\n"}, ["a.txt"]),
    "byte order mark": ({".gitignore": "\ufeffa.txt\n"}, ["a.txt", "b.txt"]),
    "unicode": ({".gitignore": "ä*\n"}, ["äx", "bä", "日本/語"]),
    "malformed lines match nothing": ({".gitignore": "!\n/\n\nok\n"}, ["ok", "a"]),
    "nothing ignored": ({}, ["a", "b/c", "b/d/e"]),
    "everything ignored but itself": ({".gitignore": "*\n!.gitignore\n"}, ["a", "b/c"]),
    "dot files": ({".gitignore": ".env\n"}, [".env", ".config/x", "sub/.env"]),
    "star does not cross a slash": ({".gitignore": "a/*.py\n"}, ["a/x.py", "a/b/y.py"]),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("by", ["git", "pathspec"])
def test_s1_the_shipped_list_equals_git_ls_files(tmp_path, name, by):
    rules, files = VARIANTS[name]
    root, twin = tmp_path / "root", tmp_path / "twin"
    for folder in (root, twin):
        folder.mkdir()
        write(folder, rules)
        write(folder, dict.fromkeys(files, "x"))
    git(twin, "init", "-q")
    if by == "git":
        git(root, "init", "-q")
    assert shipped(scan_of(root)) == oracle(twin)


def test_s1_a_tracked_file_that_matches_a_rule_ships_and_a_deleted_one_does_not(tmp_path):
    write(tmp_path, {"data/tracked.bin": "x", "data/other.bin": "x", "gone": "x", "a": "x"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    write(tmp_path, {".gitignore": "data/\n", "data/new.bin": "x"})
    (tmp_path / "gone").unlink()
    scan = scan_of(tmp_path)
    assert shipped(scan) == oracle(tmp_path) == {"data/tracked.bin", "data/other.bin", "a", ".gitignore"}
    assert scan.commit == git(tmp_path, "rev-parse", "HEAD").decode().strip()
    assert scan.dirty


def test_a_clean_commit_is_not_dirty_and_one_changed_byte_is(tmp_path):
    write(tmp_path, {"a": "x"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    assert not scan_of(tmp_path).dirty
    write(tmp_path, {"a": "yy"})
    assert scan_of(tmp_path).dirty


def test_a_folder_inside_a_repository_ships_by_itself(tmp_path):
    write(tmp_path, {".gitignore": "*.log\n", "app/a.py": "x", "app/a.log": "x", "other/b": "x"})
    git(tmp_path, "init", "-q")
    assert shipped(scan_of(tmp_path / "app")) == {"a.py"}


def test_a_folder_that_its_repository_ignores_ships_by_its_own_rules(tmp_path):
    write(
        tmp_path,
        {".gitignore": "build/\n", "build/x": "x", "build/sub/y": "x", "build/.gitignore": "*.o\n", "build/z.o": ""},
    )
    git(tmp_path, "init", "-q")
    assert shipped(scan_of(tmp_path / "build")) == {"x", "sub/y", ".gitignore"}


def test_submodules_and_nested_clones_ship_by_their_own_listing(tmp_path):
    library, root = tmp_path / "library", tmp_path / "root"
    write(library, {"lib.py": "x", ".gitignore": "*.o\n"})
    git(library, "init", "-q")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "one")
    write(root, {"main.py": "x", "clone/c.py": "x", "clone/.gitignore": "skip\n", "clone/skip": "x"})
    git(root, "init", "-q")
    git(root, "submodule", "add", "-q", str(library), "deps/library")
    write(root, {"deps/library/new.py": "x", "deps/library/new.o": "x"})
    git(root / "clone", "init", "-q")
    git(root / "clone", "add", "-A")
    git(root / "clone", "commit", "-qm", "one")
    assert shipped(scan_of(root)) == {
        ".gitmodules", "main.py", "clone/c.py", "clone/.gitignore",
        "deps/library/lib.py", "deps/library/new.py", "deps/library/.gitignore",
    }  # fmt: skip


def test_a_submodule_that_was_never_checked_out_is_an_empty_folder(tmp_path):
    library, root = tmp_path / "library", tmp_path / "root"
    write(library, {"lib.py": "x"})
    git(library, "init", "-q")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "one")
    write(root, {"main.py": "x"})
    git(root, "init", "-q")
    git(root, "submodule", "add", "-q", str(library), "library")
    shutil.rmtree(root / "library")
    (root / "library").mkdir()
    scan = scan_of(root)
    assert shipped(scan) == {"main.py", ".gitmodules"}
    assert folders(scan) == {"library"}


def test_git_variables_of_the_caller_choose_no_other_repository(tmp_path):
    other, root = tmp_path / "other", tmp_path / "root"
    write(other, {"o": "x"})
    git(other, "init", "-q")
    write(root, {"a": "x", "b.log": "x", ".gitignore": "*.log\n"})
    git(root, "init", "-q")
    environment = ENVIRONMENT | {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other), "GIT_INDEX_FILE": "/nope"}
    assert shipped(scan_of(root, environment=environment)) == {"a", ".gitignore"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to give a folder away")
def test_a_repository_of_another_owner_is_listed_all_the_same(tmp_path):
    write(tmp_path, {"a": "x", "b.log": "x", ".gitignore": "*.log\n"})
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "b.log", "-f")
    for path in (tmp_path, tmp_path / ".git"):
        os.chown(path, 65534, 65534)
    scan = scan_of(tmp_path)
    assert shipped(scan) == {"a", "b.log", ".gitignore"}
    assert scan.dirty, "git would not compare, so nothing vouches for it"


def test_without_git_a_repository_ships_by_its_ignore_files_and_says_so(tmp_path):
    write(tmp_path, {"a": "x", "b.log": "x", ".gitignore": "*.log\n"})
    git(tmp_path, "init", "-q")
    scan = scan_of(tmp_path, environment=NO_GIT)
    assert shipped(scan) == {"a", ".gitignore"}
    assert any("git could not list" in warning for warning in scan.warnings)


WORDS = ["a", "b", "ab", "a.b", "build", "x.log", "#n", "!n", "sp "]
PARTS = ["a", "b", "*", "**", "a*", "*b", "?", "[ab]", "build", "*.log", "\\#n", "\\!n", "[!a]", "sp\\ ", "a.b"]


def any_rule(random):
    parts = [random.choice(PARTS) for _ in range(random.choice([1, 1, 1, 2, 2, 3]))]
    start = random.choice(["", "", "", "!"]) + random.choice(["", "", "/"])
    return start + "/".join(parts) + random.choice(["", "", "/", " "])


@pytest.mark.parametrize("seed", range(20))
def test_s1_any_rules_choose_the_same_files_with_and_without_git(tmp_path, seed):
    random = Random(seed)
    for _ in range(15):
        path = tmp_path.joinpath(*(random.choice(WORDS) for _ in range(random.choice([1, 2, 2, 3]))))
        with suppress(OSError):  # a file where a folder would have to be
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    for folder in [base for base, _, _ in os.walk(tmp_path)]:
        if folder == str(tmp_path) or random.random() < 0.2:
            Path(folder, ".gitignore").write_text(
                "".join(any_rule(random) + "\n" for _ in range(random.choice([1, 2, 4])))
            )
    without = scan_of(tmp_path)
    git(tmp_path, "init", "-q")
    listed = scan_of(tmp_path)
    assert shipped(without) == shipped(listed) == oracle(tmp_path)
    assert folders(without) == folders(listed)


@pytest.mark.parametrize("by", ["git", "pathspec"])
class TestInBothKindsOfFolder:
    def make(self, root, by, files):
        write(root, files)
        if by == "git":
            git(root, "init", "-q")

    def test_s2_what_was_left_out_is_told_with_rule_count_and_largest(self, tmp_path, by):
        self.make(
            tmp_path, by, {".gitignore": "# data\ndata/\n", "data/x.csv": "x" * 100, "data/d/y.csv": "x" * 300, "a": ""}
        )
        scan = scan_of(tmp_path)
        assert len(scan.left_out) == 1
        left = scan.left_out[0]
        assert (left.rule, left.files, left.size_bytes, left.largest) == (
            ".gitignore:2 (data/)",
            2,
            400,
            "data/d/y.csv",
        )
        assert str(left) == "2 files (400 B) by .gitignore:2 (data/), largest data/d/y.csv (300 B)"

    def test_s2_include_takes_back_what_a_rule_left_out(self, tmp_path, by):
        self.make(tmp_path, by, {".gitignore": "data/\n*.log\n", "data/x.csv": "x", "data/d/y.bin": "x", "a.log": "x"})
        assert shipped(scan_of(tmp_path, include=["data/"])) == {".gitignore", "data/x.csv", "data/d/y.bin"}
        assert shipped(scan_of(tmp_path, include=["*.csv"])) == {".gitignore", "data/x.csv"}
        assert shipped(scan_of(tmp_path, include=["data/"], exclude=["*.bin"])) == {".gitignore", "data/x.csv"}

    def test_exclude_wins_and_is_told(self, tmp_path, by):
        self.make(tmp_path, by, {"a.py": "x", "big/b.bin": "xx", "c.bin": "x"})
        scan = scan_of(tmp_path, exclude=["big/", "c.bin"])
        assert shipped(scan) == {"a.py"}
        assert {left.rule for left in scan.left_out} == {"--exclude big/", "--exclude c.bin"}

    def test_gpulayerignore_adds_rules(self, tmp_path, by):
        self.make(
            tmp_path, by, {".gpulayerignore": "*.bin\n", "a.bin": "x", "s/.gpulayerignore": "t\n", "s/t": "", "t": ""}
        )
        assert shipped(scan_of(tmp_path)) == {".gpulayerignore", "s/.gpulayerignore", "t"}

    def test_git_and_earlier_results_never_ship(self, tmp_path, by):
        self.make(tmp_path, by, {"a": "x", "gpulayer_runs/1/out": "x", "sub/gpulayer_runs/2/out": "x", "sub/b": "x"})
        scan = scan_of(tmp_path, include=["gpulayer_runs/", ".git", "*"])
        assert shipped(scan) == {"a", "sub/b"}

    def test_s4_sockets_and_pipes_are_named_once_and_never_opened(self, tmp_path, by):
        self.make(tmp_path, by, {"a": "x"})
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(tmp_path / "run.sock"))
            os.mkfifo(tmp_path / "pipe")
            scan = scan_of(tmp_path)
        assert shipped(scan) == {"a"}
        assert [shown(path) for path in scan.specials] == ["pipe", "run.sock"]
        assert scan.warnings == ("skipped pipe, run.sock: sockets, pipes and devices do not ship",)

    def test_s7_empty_folders_ship_unless_ignored(self, tmp_path, by):
        self.make(tmp_path, by, {".gitignore": "skip/\n", "src/a": "x"})
        for name in ("out", "deep/er/empty", "skip", "src/skip", "src/new"):
            (tmp_path / name).mkdir(parents=True)
        assert folders(scan_of(tmp_path)) == {"out", "deep", "deep/er", "deep/er/empty", "src", "src/new"}

    def test_links_ship_and_those_that_lead_outside_are_named(self, tmp_path, by):
        self.make(tmp_path, by, {"a": "x", "d/b": "x"})
        for name, target in {
            "in": "d/b",
            "d/up": "../a",
            "dangling": "nothing",
            "out": "../x",
            "d/abs": "/etc/passwd",
        }.items():
            (tmp_path / name).symlink_to(target)
        scan = scan_of(tmp_path)
        assert shipped(scan) == {"a", "d/b", "in", "d/up", "dangling"}
        assert scan.warnings == ("skipped d/abs, out: links that lead outside the folder",)

    def test_byte_names_ship(self, tmp_path, by):
        self.make(tmp_path, by, {"a": "x"})
        raw = os.fsencode(tmp_path) + b"/caf\xe9 \n"
        os.close(os.open(raw, os.O_CREAT | os.O_WRONLY))
        assert os.fsdecode(b"caf\xe9 \n") in shipped(scan_of(tmp_path))

    def test_s3_too_many_files_are_refused_with_limit_size_and_largest_folders(self, tmp_path, by):
        self.make(tmp_path, by, {f"data/part{d}/{n}": "x" for d in range(7) for n in range(d + 3)} | {"main.py": "x"})
        with pytest.raises(TooLarge) as caught:
            scan_of(tmp_path, limits=TreeLimits(files=20))
        text = str(caught.value)
        assert "43 files" in text
        assert "limit is 20" in text
        assert text.index("data/part6/") < text.index("data/part5/")
        assert "data/part0/" not in text.partition("largest file")[0]

    def test_s9_too_many_bytes_are_refused_with_the_culprit(self, tmp_path, by):
        self.make(tmp_path, by, {"a": "x"})
        with open(tmp_path / "big.bin", "wb") as file:
            file.truncate(3 * 2**30)
        with pytest.raises(TooLarge, match=r"3\.22 GB .*limit is 1\.07 GB.*largest file: big\.bin \(3\.22 GB\)"):
            scan_of(tmp_path, limits=TreeLimits(size_bytes=2**30))

    def test_a_link_that_replaced_a_folder_hides_what_lay_in_it(self, tmp_path, by):
        self.make(tmp_path, by, {"real/x": "x", "d/x": "x"})
        if by == "git":
            git(tmp_path, "add", "-A")
        shutil.rmtree(tmp_path / "d")
        (tmp_path / "d").symlink_to("real")
        assert shipped(scan_of(tmp_path)) == {"real/x", "d"}


def test_s3_git_itself_does_not_count(tmp_path):
    write(tmp_path, {"a": "x", "b": "x"} | {f".git/objects/{n:02x}/x": "x" for n in range(200)})
    scan = scan_of(tmp_path, limits=TreeLimits(files=2))
    assert (scan.files, scan.size_bytes) == (2, 2)


def test_a_missing_folder_a_file_and_an_endless_nest_are_usage_errors(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere does not exist"):
        scan_of(tmp_path / "nowhere")
    write(tmp_path, {"train.py": "x"})
    with pytest.raises(UsageError, match=r"train\.py is a file, not a folder"):
        scan_of(tmp_path / "train.py")
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    with pytest.raises(TooLarge, match="nest deeper than 3"):
        scan_of(tmp_path, limits=TreeLimits(depth=3), environment=NO_GIT)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="switches its user")
def test_a_folder_that_cannot_be_listed_is_named():
    with tempfile.TemporaryDirectory() as name:  # tmp_path lies below folders that only root may enter
        root = Path(name)
        os.chmod(root, 0o755)
        write(root, {"locked/x": "x"})
        os.chmod(root / "locked", 0o000)
        os.seteuid(65534)
        try:
            with pytest.raises(UsageError, match=r"locked can't be listed"):
                scan_of(root, environment=NO_GIT)
        finally:
            os.seteuid(0)
