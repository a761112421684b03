"""Placement's verdicts as the table people read. The planning of lines is pure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpulayer.cli.console import columns
from gpulayer.cli.records import waiting_text, when
from gpulayer.spec.verdict import PASSING, FieldChange

if TYPE_CHECKING:
    from gpulayer.wire.jobs import ConsideredRecord, JobRecord, VerdictRecord, WaitRecord, WhyReply

__all__ = ["explanation_lines", "rejection_lines", "why_lines"]

_WAITED_FOR: Final[Mapping[str, str]] = {
    "device_unhealthy": "a device is unhealthy",
    "framework_unchecked": "a framework is not checked yet",
}
_LABELS: Final = {
    "no_accelerator": "accelerator",
    "no_cuda_device": "accelerator",
    "too_few_devices": "devices",
    "device_unhealthy": "devices",
    "framework_missing": "framework",
    "framework_version": "framework",
    "framework_unusable": "framework",
    "framework_unchecked": "framework",
    "worker_name": "worker",
    "plugin_rejected": "plugin",
    "unknown_value": "value",
}


def rejection_lines(record: "JobRecord") -> list[str]:
    """Of a rejected job: one line that says what was wanted, then a line a worker and reason."""
    from gpulayer.wire.convert import needed_request  # noqa: PLC0415 - only after a rejection

    wanted = needed_request(record["request"], record.get("options", {})).summary()
    verdicts = record["verdicts"]
    is_busy = any(verdict["verdict"] == "busy" for verdict in verdicts)
    head = f"{_all_busy(verdicts)}: {wanted}" if is_busy else f"no worker fits: {wanted}"
    if not verdicts:
        reason = record["reason"]
        return [head, *([f"  {reason['message']}"] if reason and reason["message"] else [])]
    return [head, *_indented(_rows(verdicts))]


def explanation_lines(
    request: str,
    choice: str | None,
    verdicts: Sequence["VerdictRecord"],
    waits: "WaitRecord | None" = None,
) -> list[str]:
    """Of a dry run: the choice stands first."""
    if choice is not None:
        head = f"{request}: would run on {choice}"
    elif any(verdict["verdict"] == "busy" for verdict in verdicts):
        place = waiting_text(waits) if waits else ""
        head = f"{request}: would wait, {_all_busy(verdicts)}" + (f"; {place}" if place else "")
    elif verdicts:
        head = f"no worker fits: {request}"
    else:
        return [f"{request}: no worker is known", "  gpulayer up starts one here; gpulayer join adds a machine"]
    ordered = sorted(verdicts, key=lambda verdict: verdict["worker"] != choice)
    return [head, *_indented(_rows(ordered))]


def why_lines(why: "WhyReply") -> list[str]:
    """Its state and what it needs, its place while it waits, the verdicts, and each attempt as it was decided."""
    reason = why["reason"]
    said = f" ({reason['message']})" if reason and reason["message"] else ""
    lines = [f"job {why['job']} {why['state']}{said}", f"  needs {why['request']}"]
    if why["waits"] is not None:
        place = waiting_text(why["waits"]) or "nobody is ahead"
        lines.append(f"  in the queue of {why['owner']}, priority {why['priority']}: {place}")
    lines.extend(_indented(_rows(why["verdicts"])))
    if why["others"]:
        counted = ", ".join(f"{count:,} {_label(code)}" for code, count in why["others"].items())
        lines.append(f"  and {sum(why['others'].values()):,} more: {counted}")
    for decision in why["decisions"]:
        lines.append(f"attempt {decision['attempt']}: {decision['why'] or ', '.join(decision['workers'])}")
        if "considered" in decision:
            lines.extend(_considered_lines(decision["considered"]))
    return lines


def _considered_lines(considered: "ConsideredRecord") -> list[str]:
    rows = [["worker", "devices left", "cpus left", "mark", ""]]
    rows += [
        [
            place["worker"],
            str(place["devices_left"]),
            str(place["cpus_left"]),
            f"{place['mark']:.3g}",
            "failed there before" if place["failed_there"] else "",
        ]
        for place in considered["best"]
    ]
    more = considered["fitting"] - len(considered["best"])
    counts = [
        *([f"{more:,} more fitted"] if more > 0 else []),
        *(f"{count:,} {words}" for words, count in _not_chosen(considered) if count),
    ]
    return [*_indented(rows), *([f"  {', '.join(counts)}"] if counts else [])]


def _not_chosen(considered: "ConsideredRecord") -> list[tuple[str, int]]:
    return [
        ("busy", considered["busy"]),
        ("could not run it", considered["ineligible"]),
        ("refused", considered["refused"]),
        ("not there", considered["away"]),
    ]


def _all_busy(verdicts: Sequence["VerdictRecord"]) -> str:
    """Of verdicts of which one at least is busy."""
    codes = {reason["code"] for verdict in verdicts if verdict["verdict"] == "busy" for reason in verdict["reasons"]}
    if not codes or not codes <= PASSING:
        return "all workers that fit are busy"
    return " and ".join(words for code, words in _WAITED_FOR.items() if code in codes)


def _rows(verdicts: Sequence["VerdictRecord"]) -> list[list[str]]:
    rows: list[list[str]] = []
    for verdict in verdicts:
        change = _change(verdict["fits_with"])
        if verdict["verdict"] == "eligible":
            marks = "; ".join(reason["message"] for reason in verdict["reasons"])
            rows.append([verdict["worker"], "fits", marks, ""])
            continue
        reasons = verdict["reasons"] or [{"code": "busy", "message": "", "wanted": "", "has": ""}]
        for number, reason in enumerate(reasons):
            is_busy = verdict["verdict"] == "busy" and reason["code"] not in PASSING
            label = "busy" if is_busy else _label(reason["code"])
            message = reason["message"] or _busy_with(verdict["busy_with"])
            if verdict["until"] and not number:
                message += f", until {when(verdict['until'])} at the latest"
            rows.append(["" if number else verdict["worker"], label, message, "" if number else change])
    return rows


def _label(code: str) -> str:
    return _LABELS.get(code, code.replace("_", " "))


def _busy_with(jobs: Sequence[str]) -> str:
    return f"used by job {', '.join(job[:8] for job in jobs)}" if jobs else ""


def _change(fits_with: "dict[str, str]") -> str:
    flags = [FieldChange(field, value).flag for field, value in fits_with.items()]
    return f"fits {'' if flags[0].startswith('without') else 'with '}{' and '.join(flags)}" if flags else ""


def _indented(rows: list[list[str]]) -> list[str]:
    return ["  " + line for line in columns(rows, gap=4)] if rows else []
