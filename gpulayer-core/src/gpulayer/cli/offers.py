"""What stands below the table of ``gpulayer resources``: how devices are linked, and what can't be used and why."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gpulayer.spec.machine import Device
from gpulayer.spec.plain import plain_line
from gpulayer.spec.request import Accelerator
from gpulayer.spec.topology import drawn

if TYPE_CHECKING:
    from gpulayer.wire.workers import DeviceFields, WorkerRecord

__all__ = ["device_text", "grouped", "link_lines", "pending_lines", "said_of", "shown_model", "unusable_lines"]

_NAMED: Final = 8  # of workers with the same links
_MODEL: Final = 40  # characters of a device's name: longer ones would push all else off the screen


def device_text(index: int, kind: str, model: str) -> str:
    """``0 cuda NVIDIA L40S``."""
    return f"{index} {kind} {shown_model(model)}".rstrip()


def shown_model(model: str) -> str:
    """As much of it as a table has room for."""
    return plain_line(model, _MODEL)


def grouped(said: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Numbers of devices by what is said of them."""
    groups: dict[str, list[int]] = {}
    for index, words in said:
        groups.setdefault(words, []).append(index)
    return groups


def said_of(numbers: Sequence[int]) -> str:
    """``device 3``, or ``devices 0-3, 7``."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    text = ", ".join("-".join(map(str, span)) for span in spans)
    return f"devices {text}" if len(set(numbers)) > 1 else f"device {text}"


def link_lines(workers: "Sequence[WorkerRecord]") -> list[str]:
    """One matrix for all workers whose devices are linked alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for worker in workers:
        devices = [_device(fields) for fields in worker["devices"]]
        if any(device.links for device in devices):
            alike.setdefault(tuple(drawn(devices)), []).append(worker["name"])
    lines: list[str] = []
    for matrix, names in alike.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines += ["", f"links of {', '.join(names[:_NAMED])}{more}", *(f"  {line}" for line in matrix)]
    return lines


def unusable_lines(workers: "Sequence[WorkerRecord]") -> list[str]:
    """Devices and kinds of them, and frameworks of what there are devices for; the same words once."""
    said: list[str] = []
    for worker in workers:
        name = worker["name"]
        told: set[tuple[str, str]] = set()
        kinds = list(dict.fromkeys(device["kind"] for device in worker["devices"]))
        for kind in kinds:
            devices = [device for device in worker["devices"] if device["kind"] == kind and device["reason"]]
            told |= {(kind, device["reason"]) for device in devices}
            groups = grouped((device["index"], f"{device['state']}: {device['reason']}") for device in devices)
            for words, numbers in groups.items():
                which = said_of(numbers) if len(kinds) == 1 else f"{kind} {said_of(numbers)}"
                said.append(f"{name}: {which} {'are' if len(numbers) > 1 else 'is'} {words}")
        said += [
            f"{name}: no {kind}: {reason}"
            for kind, reason in worker.get("missing", {}).items()
            if (kind, reason) not in told
        ]
        by_words: dict[tuple[str, str], list[str]] = {}
        for framework in worker["frameworks"]:
            is_known = not (framework["usable"] or framework.get("pending"))
            if is_known and framework["accelerator"] in kinds and framework["reason"]:
                by_words.setdefault((framework["name"], framework["reason"]), []).append(framework["accelerator"])
        said += [f"{name}: {one} on {', '.join(on)}: {reason}" for (one, reason), on in by_words.items()]
        said += _failures(worker)
    return ["", "can't be used", *(f"  {line}" for line in said)] if said else []


def pending_lines(workers: "Sequence[WorkerRecord]") -> list[str]:
    """Frameworks whose checks have not ended, with what they wait for."""
    lines: list[str] = []
    for worker in workers:
        by_words: dict[str, list[str]] = {}
        for framework in worker["frameworks"]:
            if framework.get("pending"):
                names = by_words.setdefault(framework["reason"] or "the checks are under way", [])
                names += [] if framework["name"] in names else [framework["name"]]
        lines += [f"  {worker['name']}: {', '.join(names)}: {words}" for words, names in by_words.items()]
    return ["", "not checked yet", *lines] if lines else []


def _failures(worker: "WorkerRecord") -> list[str]:
    """Of frameworks that compute on some devices of a kind only."""
    there = {device["uuid"]: f"{device['kind']} {device['index']}" for device in worker["devices"]}
    return [
        f"{worker['name']}: {framework['name']} on {there[uuid]}: {reason}"
        for framework in worker["frameworks"]
        for uuid, reason in framework.get("failed_on", {}).items()
        if uuid in there
    ]


def _device(fields: "DeviceFields") -> Device:
    kind = fields["kind"] if fields["kind"] in list(Accelerator) else Accelerator.ANY  # a newer worker's
    return Device(
        fields["uuid"], fields["index"], Accelerator(kind), fields["model"], links=tuple(fields["links"].items())
    )
