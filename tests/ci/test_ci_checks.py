"""The small programs of .ci/ do what .ci/run relies on."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" file="tests/a/test_b.py" name="test_passes"/>
<testcase classname="tests.a.test_b" file="tests/a/test_b.py" name="test_needs_gpu[1]">
  <skipped type="pytest.skip" message="no GPU here">where</skipped></testcase>
<testcase classname="" name="tests.a.test_c"><skipped type="pytest.skip" message="no module">where</skipped></testcase>
</testsuite></testsuites>"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_skips(tmp_path: Path, status_page: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "report.xml").write_text(REPORT)
    (tmp_path / "status.md").write_text(status_page)
    return subprocess.run(
        [sys.executable, ROOT / ".ci/check_skips.py", tmp_path / "report.xml", tmp_path / "status.md"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_skipped_test_that_the_status_page_hides_fails_the_build(tmp_path: Path) -> None:
    done = check_skips(tmp_path, "# Status\n\n## Skipped tests\n\n| test | why |\n|---|---|\n")
    assert done.returncode == 1
    assert "tests/a/test_b.py::test_needs_gpu[1] (no GPU here)" in done.stderr
    assert "::tests.a.test_c (no module)" in done.stderr


def test_a_listed_skip_passes(tmp_path: Path) -> None:
    page = "## Skipped tests\n\n| test | why |\n|---|---|\n| `tests/a/test_b.py::*` | x |\n| `*tests.a.test_c` | y |\n"
    assert check_skips(tmp_path, page).returncode == 0


def test_patterns_elsewhere_on_the_page_do_not_count(tmp_path: Path) -> None:
    page = "| `*` | a table above |\n\n## Skipped tests\n\nNone.\n\n## Later\n\n| `*` | a table below |\n"
    assert check_skips(tmp_path, page).returncode == 1


def test_the_status_page_has_the_section_that_the_check_reads() -> None:
    assert "\n## Skipped tests\n" in (ROOT / "docs/status.md").read_text(encoding="utf-8")


def second_look(tmp_path: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """After a run of these tests in a folder of their own, as ``make test`` has it."""
    (tmp_path / "test_some.py").write_text(tests)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
    done = subprocess.run([*run, "--junitxml=report.xml"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    command = [sys.executable, ROOT / ".ci/second_look.py", "report.xml"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


UNSTEADY = """
from pathlib import Path
class TestOnce:
    def test_fails(self):
        tried = Path("tried").exists()
        Path("tried").touch()
        assert tried
def test_goes():
    Path("ran").write_text("x" + (Path("ran").read_text() if Path("ran").exists() else ""))
"""


def test_what_fails_among_the_others_and_passes_alone_is_named_and_fails_the_build_all_the_same(tmp_path: Path) -> None:
    done = second_look(tmp_path, UNSTEADY)
    assert (done.returncode, (tmp_path / "ran").read_text()) == (1, "x")  # nothing else ran again
    assert done.stderr.endswith(
        "unsteady: test_some.py::TestOnce::test_fails failed among the others and passed alone\n"
    )


def test_what_fails_twice_or_in_numbers_is_not_called_unsteady(tmp_path: Path) -> None:
    done = second_look(tmp_path, UNSTEADY.replace("assert tried", "assert False"))
    assert (done.returncode, "unsteady" in done.stderr) == (1, False)
    many = "import pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_fails(n, tmp_path): assert False\n"
    done = second_look(tmp_path, many)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("name", "content", "is_fine"),
    [
        ("cli.added.md", "A line.", True),
        ("12.fixed.md", "A line.", True),
        ("cli.md", "A line.", False),
        ("cli.news.md", "A line.", False),
        ("cli.added.rst", "A line.", False),
        ("cli.added.md", " \n", False),
    ],
)
def test_a_changelog_fragment_needs_a_known_type_and_a_text(
    tmp_path: Path, name: str, content: str, is_fine: bool
) -> None:
    (tmp_path / name).write_text(content)
    assert (load("check_changelog").problems(tmp_path, {"added", "fixed"}) == []) is is_fine


def test_find_python_names_one_that_can_make_environments() -> None:
    done = subprocess.run([ROOT / ".ci/find-python"], capture_output=True, text=True, check=True)
    probe = "import sys, venv, ensurepip; print(sys.version_info >= (3, 11))"
    assert subprocess.run([done.stdout.strip(), "-c", probe], capture_output=True, check=True).stdout == b"True\n"
