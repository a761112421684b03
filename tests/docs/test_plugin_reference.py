"""The page of all contracts is as the code, and whole as it lies in the repository."""

import importlib.util
import re

import pytest

import gpulayer.plugins
import gpulayer.testing
from tests.docs.test_docs_links import ROOT


@pytest.fixture(scope="module")
def rendered() -> str:
    spec = importlib.util.spec_from_file_location("plugin_reference", ROOT / ".ci" / "plugin_reference.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text: str = script.render()
    return text


def test_the_page_is_what_the_code_says_now(rendered: str) -> None:
    page = (ROOT / "docs" / "plugins" / "reference.md").read_text(encoding="utf-8")
    assert page == rendered, "python .ci/plugin_reference.py writes it again"


def test_everything_that_a_plugin_may_import_has_its_entry(rendered: str) -> None:
    entries = set(re.findall(r"^### (\w+)$", rendered, re.MULTILINE))
    assert {*gpulayer.plugins.__all__, *gpulayer.testing.__all__} - entries == set()


def test_an_entry_has_the_fields_with_types_and_what_they_are(rendered: str) -> None:
    findings = rendered.split("### Findings\n")[1].split("\n### ", maxsplit=1)[0]
    assert "    resources: tuple[tuple[str, int], ...] = ()\n" in findings
    assert "A part of the facts of a machine" in findings
