"""docs/machines.md and docs/machine-examples.md show what the program prints on recorded machines."""

import pytest

from tests.docs.machine_shapes import PAGE, PAGE_OF_WORKERS, SHAPES, names, shown, shown_together


def test_every_machine_is_on_the_page() -> None:
    assert sorted(names(PAGE.read_text(encoding="utf-8"))) == sorted(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_the_page_shows_what_is_printed(name: str) -> None:
    said = "to renew it: python -m tests.docs.machine_shapes"
    assert f"\n{shown(SHAPES[name])}\n```\n" in PAGE.read_text(encoding="utf-8"), said


def test_the_page_shows_what_is_printed_of_workers() -> None:
    text = PAGE_OF_WORKERS.read_text(encoding="utf-8")
    assert f"$ gpulayer resources\n{shown_together()}\n```\n" in text, "python -m tests.docs.machine_shapes"
