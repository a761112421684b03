"""The examples of README and docs are run as they stand, with the real program, from an empty home.

A fenced ``console`` or ``python`` block below the comment ``<!-- run -->`` is run; any other must say in a comment
``<!-- not run: why -->``. One of any language below ``<!-- file: PATH -->`` is written there when its turn comes.
The blocks of one page run in order in one folder, with a copy of ``examples/`` in it. A page that installs something
does so into a Python environment of its own.
In a ``console`` block lines that start with ``$`` are given to bash, and what follows one is its stdout, in which
``…`` stands for anything; where nothing follows, stdout is not looked at.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/plugins/*/README.md")])
BLOCK = re.compile(
    r"(?:^<!-- (run|file: [\w./-]+|not run: [^>]+) -->\n)?^```(console|python|toml)\n(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PROGRAMS = {"gpulayer": "gpulayer.cli", "pip": "pip._internal.cli.main", "pytest": "pytest"}
DEADLINE_S = 60


@dataclass(frozen=True, slots=True)
class Block:
    mark: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """Where it is to be written; empty for the others."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else ""


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def steps(console: str) -> Iterator[tuple[str, list[str]]]:
    """(command, expected lines of stdout) of a console block."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        command, *expected = part.rstrip("\n").split("\n")
        yield command, expected


def on_a_free_port(command: str) -> str:
    """Somebody may have a control plane of their own here already."""
    return command.replace("up --detach", "up --detach --port 0") if "--port" not in command else command


def is_as_shown(expected: list[str], stdout: str) -> bool:
    """``…`` alone on a line stands for any number of lines, within a line for anything on it."""
    lines = [r"(?:[^\n]*\n)*" if line == "…" else re.escape(line).replace("…", r"[^\n]*") + r"\n" for line in expected]
    return re.fullmatch("".join(lines), stdout if stdout.endswith("\n") or not stdout else stdout + "\n") is not None


@dataclass(frozen=True, slots=True)
class Place:
    folder: Path
    env: dict[str, str]

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def write(self, block: Block) -> None:
        file = self.folder / block.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")

    def with_own_python(self) -> "Place":
        """It sees what this Python has; what is installed into it is seen by nobody else. pip asks no index."""
        folder = self.folder.parent / "venv"
        venv.create(folder, symlinks=True)
        python = folder / "bin" / "python"
        theirs = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        seen = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (theirs / "seen.pth").write_text(seen, encoding="utf-8")
        for name, module in PROGRAMS.items():
            script = folder / "programs" / name
            script.parent.mkdir(exist_ok=True)
            script.write_text(f"import sys\nfrom {module} import main\nsys.exit(main())\n", encoding="utf-8")
            python.with_name(name).write_text(f'#!/bin/sh\nexec "{python}" -P "{script}" "$@"\n', encoding="utf-8")
            python.with_name(name).chmod(0o755)
        pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        path = f"{python.parent}{os.pathsep}{self.env['PATH']}"
        return Place(self.folder, {**self.env, **pip, "PATH": path, "VIRTUAL_ENV": str(folder)})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty home with the examples in the working folder; what was started there is ended afterwards."""
    folder, home = tmp_path / "work", tmp_path / "home"
    home.mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    own = ("GPULAYER_", "COV_", "PYTEST_", "PYTHON")  # of whoever runs the tests
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**kept, "PATH": path, "HOME": str(home), "GPULAYER_STATE_DIR": str(tmp_path / "state")}
    made = Place(folder, env)
    try:
        yield made
    finally:
        made.run(["gpulayer", "down"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_is_run_or_says_why_not(page: Path) -> None:
    assert [block.text for block in blocks(page) if not block.mark and block.language != "toml"] == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.mark == "run" for block in blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_examples_of_a_page_do_what_it_shows(page: Path, place: Place) -> None:
    if any("pip install" in block.text for block in blocks(page) if block.mark == "run"):
        place = place.with_own_python()
    for block in blocks(page):
        if block.file:
            place.write(block)
        if block.mark != "run":
            continue
        if block.language == "python":
            done = place.run([sys.executable, "-c", block.text])
            assert done.returncode == 0, f"{block.text}\n{done.stderr}"
            continue
        for command, expected in steps(block.text):
            done = place.run(["bash", "-c", on_a_free_port(command)])
            story = f"$ {command}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == 0, story
            if expected:
                assert is_as_shown(expected, done.stdout), story


@pytest.mark.parametrize(
    ("expected", "stdout", "fits"),
    [
        (["hello"], "hello\n", True),
        (["hello"], "hello\nworld\n", False),
        (["… words, …"], "64264 words, 3127 different\n  4585  the\n", False),
        (["… words, …", "…"], "64264 words, 3127 different\n  4585  the\n", True),
        (["…", "exit code 3"], "exit code 3\n", True),
        (["…", "exit code 3"], "no worker fits: …\n  a  b\nexit code 3\n", True),
        (["…"], "", True),
        (["a.b"], "axb", False),
    ],
)
def test_dots_stand_for_anything_and_nothing_else_does(expected: list[str], stdout: str, *, fits: bool) -> None:
    assert is_as_shown(expected, stdout) is fits


def test_a_console_block_is_split_at_its_prompts() -> None:
    text = "$ echo $HOME | cat\n…\n$ true\n"
    assert list(steps(text)) == [("echo $HOME | cat", ["…"]), ("true", [])]
