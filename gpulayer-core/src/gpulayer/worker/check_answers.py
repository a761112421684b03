"""What scripts of framework checks say, read and kept. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from gpulayer.plugins.results import instance_of, list_of
from gpulayer.spec.machine import Framework
from gpulayer.spec.request import Accelerator
from gpulayer.worker.findings import MAX_ARCHITECTURES, MAX_DEVICES, checked_text
from gpulayer.worker.survey import last_answer

__all__ = ["Answer", "as_far_as_known", "cut", "framework_of", "read_answer", "row_of", "unusable"]

_REASON_LIMIT: Final = 2_000
_VERSION_LIMIT: Final = 100
_WORD_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """again: on these it is to be asked again soon, but, where they are in waits as well, when a device is free that it
    could not see. is_whole: the script has said all that it wanted to."""

    frameworks: tuple[Framework, ...] = ()
    again: frozenset[Accelerator] = frozenset()
    waits: frozenset[Accelerator] = frozenset()
    is_whole: bool = True


def read_answer(
    name: str,
    accelerators: Sequence[Accelerator],
    out: bytes,
    *,
    seen: Mapping[Accelerator, Sequence[str]] = MappingProxyType({}),
) -> Answer:
    """What a script printed on its last line, as ``CheckScript`` says; what libraries print after it, as they end, is
    passed over. seen: uuids of the devices that it could see, in their order. Raises ValueError for anything else."""
    answer = last_answer(out, having="version")
    version, devices, failed = answer["version"], answer.get("devices", {}), answer.get("failed", {})
    is_whole = not answer.get("so_far", False)
    if version is None:
        return Answer(is_whole=is_whole)
    for key, value in (("devices", devices), ("failed", failed)):
        if not isinstance(value, dict):
            raise ValueError(f"{key} is no object")
    again, architectures = (_texts(answer, key) for key in ("again", "architectures"))
    unknown = {*devices, *again, *failed}.difference(accelerators)
    if unknown:
        raise ValueError(f"it speaks of {min(unknown)[:40]!r}, which it is not registered for")
    version = _text("version", version, limit=_VERSION_LIMIT)
    build = _text("build", answer.get("build", ""), limit=_WORD_LIMIT)
    if not all(isinstance(value, dict) for value in failed.values()):
        raise ValueError("failed has no objects")
    found: list[Framework] = []
    for accelerator in accelerators:
        if not is_whole and accelerator not in devices:
            continue
        reason = _text("a reason", devices.get(accelerator, "its check says nothing of it"), limit=_REASON_LIMIT)
        compiled = () if accelerator is Accelerator.CPU else architectures
        found.append(
            Framework(
                name,
                version,
                accelerator,
                usable=not reason,
                reason=reason,
                build=build,
                architectures=compiled,
                is_pending=bool(reason) and accelerator in again,
                failed_on=_failed_on(failed.get(accelerator, {}), seen.get(accelerator, ())),
            )
        )
    return Answer(tuple(found), frozenset(map(Accelerator, again)), is_whole=is_whole)


def as_far_as_known(name: str, accelerators: Sequence[Accelerator], answer: Answer, failure: str) -> Answer:
    """Of a script that failed. An answer that was meant to be whole is taken back by that; one so far is believed."""
    if answer.is_whole:
        return Answer(unusable(name, accelerators, failure), is_whole=False)
    known = {one.accelerator: one for one in answer.frameworks}
    version = next((one.version for one in answer.frameworks), "")
    build = next((one.build for one in answer.frameworks), "")
    rest = {
        one.accelerator: replace(one, version=version, build=build)
        for one in unusable(name, accelerators, failure)
        if one.accelerator not in known
    }
    return replace(answer, frameworks=tuple({**known, **rest}[accelerator] for accelerator in accelerators))


def unusable(
    name: str, accelerators: Sequence[Accelerator], reason: str, *, is_pending: bool = False
) -> tuple[Framework, ...]:
    """A framework of which nothing is known but that."""
    text = cut(reason, _REASON_LIMIT)
    return tuple(
        Framework(name, "", accelerator, usable=False, reason=text, is_pending=is_pending)
        for accelerator in accelerators
    )


def _failed_on(failed: object, seen: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """By uuid; a number beyond what it could see is nobody's."""
    reasons = instance_of(dict, failed)
    found = {}
    for number, reason in reasons.items():
        text = _text("a reason", reason, limit=_REASON_LIMIT)
        if str(number).isdecimal() and int(number) < len(seen) and text:
            found[seen[int(number)]] = text
    return tuple(sorted(found.items()))


def row_of(one: Framework) -> list[object]:
    """To be kept in a file."""
    accelerator, architectures = str(one.accelerator), list(one.architectures)
    return [
        one.name,
        one.version,
        accelerator,
        one.usable,
        one.reason,
        one.build,
        architectures,
        one.is_pending,
        one.failed_on,
    ]


def framework_of(row: Sequence[object]) -> Framework:
    """Raises TypeError and ValueError for what is none."""
    name, version, accelerator, usable, reason, build, architectures, is_pending, failed_on = row
    return Framework(
        checked_text("name", name),
        checked_text("version", version),
        Accelerator(instance_of(str, accelerator)),
        usable=instance_of(bool, usable),
        reason=checked_text("reason", reason),
        build=checked_text("build", build),
        architectures=tuple(list_of(str, architectures, at_most=MAX_ARCHITECTURES)),
        is_pending=instance_of(bool, is_pending),
        failed_on=tuple((checked_text("uuid", uuid), checked_text("reason", why)) for uuid, why in _pairs(failed_on)),
    )


def _pairs(rows: object) -> list[tuple[object, object]]:
    return [(uuid, why) for uuid, why in list_of(list, rows, at_most=MAX_DEVICES)]


def cut(text: str, limit: int) -> str:
    """To be shown, with a sign where more would follow."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(name: str, value: object, *, limit: int) -> str:
    try:
        return cut(checked_text(name, value), limit)
    except TypeError:
        raise ValueError(f"{name} is no text") from None


def _texts(answer: Mapping[str, object], name: str) -> tuple[str, ...]:
    try:
        found = list_of(str, answer.get(name, []), at_most=MAX_ARCHITECTURES)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is no short list of texts") from None
    return tuple(_text(name, one, limit=_WORD_LIMIT) for one in found)
