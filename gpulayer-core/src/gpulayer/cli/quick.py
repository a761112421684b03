"""Typer with its values cast here: text, numbers and lists of text need no schema.

Typer builds a pydantic adapter for each parameter of a command that runs, given or not: 0.3 s for ``submit``, which
may take 0.5 s in all. Only click's own ``process_value`` is taken over, and whatever is not plain goes the usual way,
so that the worst a new typer can do is to be slower again.
"""

from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["QuickCommand", "QuickGroup", "QuickTyper"]

_UNKNOWN: Final = object()


class QuickCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:  # Any: typer's parameter and context classes are private
        return _quickened(super().get_params(ctx))


class QuickGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _quickened(super().get_params(ctx))


class QuickTyper(typer.Typer):
    """A Typer whose commands are quick, with plain help and this program's own errors; completion is a command."""

    def __init__(self, **options: Any) -> None:  # Any: handed on to typer
        super().__init__(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, **options)

    def command(self, name: str | None = None, **options: Any) -> Any:  # Any: typer's decorator
        return super().command(name, **{"cls": QuickCommand, **options})


def cast(annotation: object, value: object, *, is_many: bool) -> object:
    """The value as its parameter wants it, or ``_UNKNOWN`` where typer shall judge. Pure."""
    match value:
        case None:
            return () if is_many else None
        case str() if annotation is str and not is_many:
            return value
        case str() | int() if annotation is int and not is_many and not isinstance(value, bool):
            try:
                return int(value)
            except ValueError:
                return _UNKNOWN
        case tuple() | list() if annotation == list[str] and all(isinstance(item, str) for item in value):
            return list(value)
        case _:
            return _UNKNOWN


def _quickened(parameters: list[Any]) -> list[Any]:
    # Any, here and below: typer's parameter classes are private.
    for parameter in parameters:
        if not isinstance(parameter.process_value, _Processor):
            parameter.process_value = _Processor(parameter, parameter.process_value)
    return parameters


class _Processor:
    """Stands for one parameter's ``process_value``."""

    def __init__(self, parameter: Any, usual: Callable[[Any, Any], Any]) -> None:
        self._parameter = parameter
        self._usual = usual
        self._annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", _UNKNOWN)
        self._is_many = parameter.multiple or parameter.nargs != 1
        self._has_limits = getattr(parameter, "min", None) is not None or getattr(parameter, "max", None) is not None

    def __call__(self, context: Any, value: Any) -> Any:
        is_missing = self._parameter.required and value in (None, (), [])
        if is_missing or (self._has_limits and isinstance(value, str)):
            return self._usual(context, value)
        found = cast(self._annotation, value, is_many=self._is_many)
        if found is _UNKNOWN:
            return self._usual(context, value)
        callback = self._parameter.callback
        return found if callback is None else callback(context, self._parameter, found)
