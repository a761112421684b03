"""docs/explain-examples.md shows what the program prints on a fleet of recorded machines, and all of it is true."""

import pytest

from gpulayer.placement.capacity import allocate, usable_capacity
from gpulayer.placement.change import apply_changes
from gpulayer.placement.eligibility import is_eligible
from gpulayer.placement.explain import explain
from gpulayer.spec.verdict import VerdictKind
from tests.docs.explained import PAGE, commands, fleet, request_of, shown

TEXT = PAGE.read_text(encoding="utf-8")


def test_there_are_ten_requests_each_with_a_verdict_of_every_worker() -> None:
    assert len(commands(TEXT)) == 10


@pytest.mark.parametrize("command", commands(TEXT))
def test_the_page_shows_what_is_printed(command: str) -> None:
    printed = shown(command)
    assert f"$ {command}\n{printed}```\n" in TEXT, "to renew it: python -m tests.docs.explained"
    assert all(f"\n  {view.name} " in printed for view in fleet())


@pytest.mark.parametrize("command", commands(TEXT))
def test_every_verdict_is_true(command: str) -> None:
    """Tried out: what fits is placed, what is busy fits once all is free or mended, what is suggested works."""
    request = request_of(command)
    views = {view.name: view for view in fleet()}
    for verdict in explain(request, fleet()):
        view = views[verdict.worker]
        fits = allocate(request, view.id, view.facts, view.free) is not None
        eligible = is_eligible(request, view.facts, name=view.name)
        assert eligible is (verdict.kind is not VerdictKind.INELIGIBLE)
        if eligible:
            assert fits is (verdict.kind is VerdictKind.ELIGIBLE)
        if verdict.until_ms is not None:
            assert allocate(request, view.id, view.facts, usable_capacity(view.facts)) is not None
        if verdict.fits_with:
            changed = apply_changes(request, verdict.fits_with)
            assert is_eligible(changed, view.facts, name=view.name)
