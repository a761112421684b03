"""Whatever the control plane reads has an upper end: a field without one is memory that a caller decides on."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

import pytest
from annotated_types import Ge, Le, MaxLen
from typing_extensions import TypedDict, get_type_hints, is_typeddict

from gpulayer.server.routes import ROUTES

BODIES = tuple(dict.fromkeys(route.body for route in ROUTES if route.body is not None))


def unbounded(kind: Any, where: str, limits: tuple[Any, ...] = ()) -> Iterator[str]:
    """Where something in this type has no end."""
    if get_origin(kind) in (Required, NotRequired):
        yield from unbounded(get_args(kind)[0], where, limits)
    elif get_origin(kind) is Annotated:
        inner, *found = get_args(kind)
        yield from unbounded(inner, where, (*limits, *found))
    elif is_typeddict(kind):
        for name, field in get_type_hints(kind, include_extras=True).items():
            yield from unbounded(field, f"{where}.{name}")
    elif get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from unbounded(part, where, limits)
    elif get_origin(kind) in (list, dict):
        if not any(isinstance(limit, MaxLen) for limit in limits):
            yield f"{where}: no MaxLen"
        for part in get_args(kind):
            yield from unbounded(part, f"{where}[]")
    elif kind is str:
        if not any(isinstance(limit, MaxLen) for limit in limits):
            yield f"{where}: no MaxLen"
    elif kind in (int, float):
        # 64 bits are what the store has; a larger number would be a fault, not an answer.
        most = [limit.le for limit in limits if isinstance(limit, Le)]
        least = [limit.ge for limit in limits if isinstance(limit, Ge)]
        if not most or not least or max(most) >= 2**63 or min(least) < -(2**63):
            yield f"{where}: no Ge and Le within 64 bits"
    elif kind not in (bool, type(None)) and get_origin(kind) is not Literal:
        yield f"{where}: {kind} is not known to this test"


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_of_every_body_has_an_end(body) -> None:
    assert list(unbounded(body, body.__name__)) == []


def test_a_field_without_an_end_is_found() -> None:
    class Inner(TypedDict):
        text: str
        numbers: Annotated[list[int], MaxLen(3)]

    class Body(TypedDict, total=False):
        inner: Annotated[list[Inner], MaxLen(2)]
        labels: Required[dict[Annotated[str, MaxLen(2)], Any] | None]
        large: Annotated[int, Ge(0), Le(2**64)]
        fine: Annotated[str, MaxLen(1)] | None

    assert list(unbounded(Body, "Body")) == [
        "Body.inner[].text: no MaxLen",
        "Body.inner[].numbers[]: no Ge and Le within 64 bits",
        "Body.labels: no MaxLen",
        "Body.labels[]: typing.Any is not known to this test",
        "Body.large: no Ge and Le within 64 bits",
    ]
