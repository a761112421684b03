"""The contract classes can fail: each bad one of ``bad_plugins`` is caught by the test of the contract named there."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

BAD = Path(__file__).with_name("bad_plugins")
KINDS = sorted(file.stem for file in BAD.glob("*s.py"))

# Of a bad one, only the test that must fail is run.
CONFTEST = """
from bad_plugins.caught import CAUGHT

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if CAUGHT[item.cls.__name__] in item.name]
"""


def bad_plugins():
    """By a name that is their own, as the run of ``ends`` imports them: all of them, and what is caught."""
    found = importlib.util.spec_from_file_location("bad_plugins", BAD / "__init__.py")
    sys.modules["bad_plugins"] = importlib.util.module_from_spec(found)
    for kind in KINDS:
        importlib.import_module(f"bad_plugins.{kind}")
    return importlib.import_module("bad_plugins.caught")


BAD_PLUGINS = bad_plugins()
CAUGHT = BAD_PLUGINS.CAUGHT


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """By class, then by test: what a failure says, None of one that passed. One run over all of them."""
    folder = tmp_path_factory.mktemp("bad")
    copy = shutil.copytree(BAD, folder / "bad_plugins", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    report = folder / "report.xml"
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--tb=short",
        "--import-mode=importlib",
        f"--junitxml={report}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", os.devnull, *(copy / f"{kind}.py" for kind in KINDS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.fspath(folder), os.environ.get("PYTHONPATH", "")))},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = {name: {} for name in CAUGHT}
    for case in ET.parse(report).iter("testcase"):
        told = [one.text or "" for one in (*case.iter("failure"), *case.iter("error"))]
        found[case.get("classname").rpartition(".")[2]][case.get("name")] = "\n".join(told) if told else None
    return found


@pytest.mark.parametrize("name", sorted(name for name, test in CAUGHT.items() if test))
def test_a_bad_one_is_caught_by_name(ends, name):
    assert ends[name], f"no test is called like {CAUGHT[name]}"
    assert set(ends[name].values()) != {None}, f"{CAUGHT[name]} passed"


@pytest.mark.parametrize("name", sorted(name for name, test in CAUGHT.items() if not test))
def test_a_good_one_passes_everything(ends, name):
    assert len(ends[name]) > 8
    assert {test: text for test, text in ends[name].items() if text is not None} == {}


@pytest.mark.parametrize("name", BAD_PLUGINS.HANGING)
def test_one_that_hangs_fails_within_its_deadline_whatever_it_is_asked(ends, name):
    unasked = BAD_PLUGINS.HANGING[name]
    asked = {test: text for test, text in ends[name].items() if not any(piece in test for piece in unasked)}
    assert len(asked) > 5
    assert [test for test, text in asked.items() if "no answer within" not in (text or "")] == []


def test_every_contract_has_one_that_hangs():
    # Of what a plugin registers, any may hang: those are the others.
    assert contracts(BAD_PLUGINS.HANGING) == contracts(CAUGHT) - {"PluginContract"}


def contracts(names):
    of_the_kit = [
        base.__name__
        for name in names
        for base in BAD_PLUGINS.CLASSES[name].__mro__
        if base.__module__.startswith("gpulayer.testing.")
    ]
    return {name for name in of_the_kit if name not in ("Contract", "SharedContract")}


def test_a_failure_says_in_words_what_is_wrong(ends):
    assert "it wrote to stdout" in ends["TestProbeThatTalks"]["test_it_prints_nothing"]


def test_no_test_of_a_contract_is_there_without_one_that_it_catches(ends):
    bad = [tests for name, tests in ends.items() if CAUGHT[name] and name not in BAD_PLUGINS.HANGING]
    named = {test.partition("[")[0] for tests in bad for test in tests}
    good = {test.partition("[")[0] for name, tests in ends.items() if not CAUGHT[name] for test in tests}
    assert sorted(good - named) == []
