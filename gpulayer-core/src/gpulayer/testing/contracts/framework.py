"""The contract of framework checks, as tests."""

import ast
import json
import subprocess
import sys
from typing import Any, ClassVar

import pytest

from gpulayer.plugins.contracts.framework import CHECK_DEADLINE_S, CheckScript, FrameworkCheck
from gpulayer.spec.request import DEVICE_KINDS, Accelerator
from gpulayer.testing.contracts.contract import Ask, SharedContract, check_plain_name, within

__all__ = ["FrameworkCheckContract"]


class FrameworkCheckContract(SharedContract):
    """``class TestMine(FrameworkCheckContract)`` with a fixture ``check``.

    Its script runs in this Python, too, and must answer whether the framework is there or not.
    """

    deadline_s: ClassVar[float] = 1.0  # ``script`` is pure and quick; what it gives has more

    @pytest.fixture
    def check(self) -> FrameworkCheck:
        raise NotImplementedError("a fixture `check` gives the framework check to be tested")

    @pytest.fixture
    def ask(self, check: FrameworkCheck) -> Ask:
        return check.script

    def test_it_is_a_framework_check_with_a_plain_name(self, check: FrameworkCheck) -> None:
        assert isinstance(check, FrameworkCheck), "a framework check has a name, accelerators and a method script"
        check_plain_name(check.name)

    def test_it_says_which_accelerators_it_knows(self, check: FrameworkCheck) -> None:
        assert isinstance(check.accelerators, tuple)
        assert check.accelerators, "it can say something about none"
        assert set(check.accelerators) <= {*DEVICE_KINDS, Accelerator.CPU}, "any is for requests alone"

    def test_it_gives_the_same_script_each_time(self, ask: Ask) -> None:
        script = within(self.deadline_s, ask)
        assert isinstance(script, CheckScript), f"script gave a {type(script).__name__}"
        assert within(self.deadline_s, ask) == script, "another script at the second call"

    def test_it_names_whole_modules(self, ask: Ask) -> None:
        modules = within(self.deadline_s, ask).modules
        assert isinstance(modules, tuple)
        assert all(isinstance(one, str) and one.isidentifier() for one in modules), "a module is named as torch is"

    def test_its_script_is_for_python_3_9(self, ask: Ask) -> None:
        ast.parse(within(self.deadline_s, ask).source, feature_version=(3, 9))

    def test_where_the_framework_is_missing_the_script_says_so(self, ask: Ask) -> None:
        # -S: without site-packages nothing is installed
        found = _printed(within(self.deadline_s, ask), "-I", "-S")
        assert found.get("version", "") is None, "version is null where it is not installed"

    def test_in_this_python_the_script_says_what_there_is(self, check: FrameworkCheck, ask: Ask) -> None:
        found = _printed(within(self.deadline_s, ask))
        if found["version"] is None:
            return
        assert isinstance(found["version"], str)
        known = {str(one) for one in check.accelerators}
        for accelerator, reason in found["devices"].items():
            assert accelerator in known, f"it never said that it knows {accelerator}"
            assert isinstance(reason, str), "empty text where it computed, else the reason"
        assert not found.get("so_far"), "its last answer is whole"
        assert isinstance(found.get("build", ""), str)
        assert all(isinstance(one, str) for one in found.get("architectures", []))
        failed = {accelerator for accelerator, reason in found["devices"].items() if reason}
        assert set(found.get("again", [])) <= failed, "only what failed is asked again"
        for accelerator, reasons in found.get("failed", {}).items():
            assert accelerator in known, f"it never said that it knows {accelerator}"
            assert all(number.isdecimal() and reason for number, reason in reasons.items())


def _printed(script: CheckScript, *flags: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *flags, "-c", script.source],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHECK_DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"the script failed:\n{done.stderr}"
    lines = done.stdout.splitlines()
    assert lines, "the script printed nothing"
    found = json.loads(lines[-1])
    assert isinstance(found, dict), "the last line is one JSON object"
    return found
