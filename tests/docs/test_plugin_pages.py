"""The pages on plugins are complete, have the code's figures, and their examples keep the contracts they are of."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import gpulayer
import gpulayer.plugins
import gpulayer.testing
from gpulayer.clock import SystemClock
from gpulayer.plugins import guard, marks
from gpulayer.plugins.contracts.context import Where
from gpulayer.plugins.contracts.scorer import MAX_LIFETIME_S
from gpulayer.plugins.discovery import GROUP
from gpulayer.plugins.hooks import API_VERSION, DEPRECATED, REGISTER_DEADLINE_S
from gpulayer.plugins.host import load_plugins
from gpulayer.plugins.inspection import DEFAULT_PRIORITY, HOOKS
from gpulayer.plugins.record import PluginStatus
from gpulayer.plugins.registering import KINDS, MOST_THINGS
from gpulayer.plugins.settings import OPTION_PREFIX, PLUGINS_VARIABLE, STRICT_VARIABLE, PluginSettings
from gpulayer.server import scorers
from gpulayer.testing.distribution import COMMANDS, install_plugin
from tests.docs.test_docs_examples import Block, blocks

FOLDER: Final = Path(__file__).parents[2] / "docs" / "plugins"
PAGES: Final = {page.name: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md"))}
INDEX: Final = PAGES["index.md"]
EXAMPLES: Final[Mapping[str, list[Block]]] = {
    page: [block for block in blocks(FOLDER / page) if block.file and "/" not in block.file] for page in PAGES
}
"""Modules and their tests. Packages in a folder of their own are run by the commands below them."""

CONTRACTS: Final = {
    **{kind.hook: import_module(kind.contract.__module__) for kind in KINDS},
    "gpulayer_check_job": import_module("gpulayer.plugins.contracts.problem"),
    "gpulayer_on_event": import_module("gpulayer.plugins.contracts.event"),
}
ROWS: Final = {
    cells[0].split("`")[1]: cells
    for line in INDEX.splitlines()
    if line.startswith("| [`gpulayer_") and len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 6
}
UNITS: Final = {"s": 1, "min": 60, "h": 3600}


def deadlines(module: object) -> dict[str, float]:
    return {name: value for name, value in vars(module).items() if name.endswith(("DEADLINE_S", "SILENCE_S"))}


def test_every_hook_has_its_row_and_its_page() -> None:
    assert set(ROWS) == set(HOOKS)
    for hook, (cell, *_) in ROWS.items():
        page = re.findall(r"\(([\w-]+\.md)", cell)[0]
        assert f"{hook}(" in PAGES[page], f"{page} does not say how {hook} is called"


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_a_row_has_the_deadlines_of_the_code(hook: str) -> None:
    said = [float(figure) * UNITS[unit] for figure, unit in re.findall(r"(\d+) (s|min|h)\b", ROWS[hook][4])]
    assert sorted(said) == sorted(deadlines(CONTRACTS[hook]).values())


def test_every_deadline_is_named_with_its_value_and_no_other() -> None:
    known = {"MAX_LIFETIME_S": MAX_LIFETIME_S, "REGISTER_DEADLINE_S": REGISTER_DEADLINE_S}
    for module in CONTRACTS.values():
        known |= deadlines(module)
    named = [found for text in PAGES.values() for found in re.findall(r"`([A-Z_]+_S)`(?: \(([\d,]+) s)?", text)]
    assert {name for name, figure in named if figure} == set(known) - {"REGISTER_DEADLINE_S"}
    for name, figure in named:
        assert not figure or float(figure.replace(",", "")) == known[name], name


@pytest.mark.parametrize(
    "sentence",
    [
        f"A hook that registers may take {REGISTER_DEADLINE_S:g} s and give up to {MOST_THINGS} objects.",
        f'it was written for, `"{API_VERSION}"`',
        f"smaller comes first; {DEFAULT_PRIORITY} without it",
        f"an entry point of the group `{GROUP}`",
        "fails three times in a row" * (guard._BREAKS_AT == 3),
        f"{guard._REST_FIRST_MS // 1000} s first, up to {guard._REST_LAST_MS // 60_000} min",
        "one of eight that this method of this object has" * (guard._SLOTS == 8),
        "After three starts in a row" * (marks.STRIKES == 3),
    ],
)
def test_the_index_has_the_figures_of_the_code(sentence: str) -> None:
    assert sentence
    assert sentence in INDEX


def test_a_scorer_is_told_how_big_a_batch_may_be() -> None:
    assert f"the whole batch, which may have {scorers._BATCH_PAIRS:,} pairs" in PAGES["scorers.md"]


@pytest.mark.parametrize("face", [gpulayer.plugins, gpulayer.testing], ids=lambda face: face.__name__)
def test_everything_that_a_plugin_may_import_is_on_a_page(face: object) -> None:
    everything = "\n".join(PAGES.values())
    assert [name for name in face.__all__ if not re.search(rf"\b{name}\b", everything)] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [PLUGINS_VARIABLE, STRICT_VARIABLE, f"{OPTION_PREFIX}<NAME>_<OPTION>"])
def test_every_variable_has_its_row(name: str) -> None:
    assert f"\n| `{name}` |" in INDEX


def test_every_status_is_explained_where_the_index_links_to() -> None:
    assert "(../cli.md#plugins)" in INDEX
    commands = (FOLDER.parent / "cli.md").read_text(encoding="utf-8")
    assert [status for status in PluginStatus if f"\n| `{status}` |" not in commands] == []


def test_commands_are_found_by_the_group_that_their_page_says() -> None:
    assert f'[project.entry-points."{COMMANDS}"]' in PAGES["commands.md"]


def test_the_examples_keep_their_contracts(tmp_path: Path) -> None:
    for shown in EXAMPLES.values():
        for block in shown:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPULAYER_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", f"--basetemp={tmp_path}.d"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_are_plugins_of_the_hooks_that_their_pages_are_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    pages = {}
    for page, shown in EXAMPLES.items():
        for block in shown:
            name = block.file.removeprefix("gpulayer_").removesuffix(".py")
            if block.file.startswith("gpulayer_") and block.language == "python":
                install_plugin(tmp_path, name, block.text)
                pages[name] = page
    settings = PluginSettings(allowed=frozenset(pages))
    before = set(sys.modules)
    host = load_plugins(Where.CHECK, settings, clock=SystemClock(), version=gpulayer.__version__)
    try:
        records = [record for record in host.records() if not record.is_builtin and record.name in pages]
        assert {record.name: record.error for record in records} == dict.fromkeys(pages, "")
        for record in records:
            page = PAGES[pages[record.name]]
            assert record.hooks
            assert [hook for hook in record.hooks if f"{hook}(" not in page] == []
        shown_hooks = {hook for record in records for hook in record.hooks}
        assert shown_hooks == set(HOOKS)
    finally:
        host.close()
        for name in set(sys.modules) - before:
            if name.startswith("gpulayer_"):
                del sys.modules[name]


def test_the_page_on_compatibility_lists_the_hooks_that_are_deprecated() -> None:
    page = PAGES["compatibility.md"]
    assert set(DEPRECATED) <= set(HOOKS)
    assert all(f"`{hook}`" in page for hook in DEPRECATED)
    assert ("No hook is deprecated now." in page) is (not DEPRECATED)
