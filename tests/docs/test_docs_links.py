"""Every relative link in the documentation leads somewhere, and every page is reachable."""

import re
from pathlib import Path

import pytest

from tests.soak.frame import LATER, PROMISES, found_proofs

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md"), *ROOT.glob("gpulayer-*/README.md")]
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+?)(?:\s*\{\s*#([\w-]+)\s*\})?\s*$", re.MULTILINE)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(page: Path) -> set[str]:
    found = set()
    for title, explicit in HEADING.findall(page.read_text(encoding="utf-8")):
        plain = re.sub(r"[^\w\s-]", "", title.lower()).strip()
        found.add(explicit or re.sub(r"[\s]+", "-", plain))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_two_headings_of_a_page_have_one_anchor(page: Path) -> None:
    """A link to the second leads to the first."""
    explicit = [anchor for _, anchor in HEADING.findall(page.read_text(encoding="utf-8")) if anchor]
    assert sorted(explicit) == sorted(set(explicit))


def test_every_page_stands_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [
        str(page.relative_to(ROOT / "docs"))
        for page in PAGES
        if page.is_relative_to(ROOT / "docs") and f"{page.relative_to(ROOT / 'docs')}\n" not in navigation
    ]
    assert missing == []


def test_the_page_on_reliability_has_every_promise_that_is_proven() -> None:
    """In the order and with the numbers of the soak's table; who reads the page can carry out what it says."""
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.*?) ?\| (.+?) \|$", page, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(PROMISES)
    proven = {proof.promise for proof in found_proofs()} | set(LATER)
    assert set(PROMISES) <= proven
    shared = {proof.promise for proof in found_proofs() if proof.is_shared}
    assert {int(number) for number, *_, proof in rows if "fleets" in proof} == shared | {14}
