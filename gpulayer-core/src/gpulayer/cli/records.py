"""Records as people read them. Pure: text out of records."""

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gpulayer.cli.machine import (
    device_lines,
    drivers_text,
    framework_lines,
    frameworks_from,
    link_lines,
    missing_lines,
    near_lines,
    python_text,
    seen_from,
)
from gpulayer.client.following import FINAL_STATES
from gpulayer.spec.machine import DeviceState
from gpulayer.spec.outcome import signal_text
from gpulayer.spec.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpulayer.wire.jobs import ArrayRecord, AttemptRecord, ElementRecord, JobRecord, OutputRecord, WaitRecord
    from gpulayer.wire.workers import WorkerRecord

__all__ = [
    "AFTER_FAILED",
    "age",
    "array_text",
    "clashes_text",
    "command_text",
    "details_text",
    "devices_text",
    "duration_text",
    "element_row",
    "ending_line",
    "job_fields",
    "notes_on",
    "resources_text",
    "state_text",
    "waiting_text",
    "when",
    "worker_fields",
    "workers_of",
]

AFTER_FAILED: Final = "after_failed"
"""The reason of a job that was to run after a success that did not come."""
_EVIDENCE_LINES: Final = 5


def ending_line(record: "JobRecord", landed: str, *, is_noted: bool = False) -> str:
    """``job 7f3a… succeeded in 2.4 s on laptop; outputs in gpulayer_runs/7f3a…/``, and below it what else was seen.

    is_noted: ``notes_on`` has been said already.
    """
    state = record["state"].replace("_", " ")
    parts = [f"job {record['id']} {state}"]
    code, number = record["exit_code"], record["signal"]
    if "array" in record:
        parts.append(f"({_array_end(record)})")
    elif record["state"] == "failed" and number is not None:
        parts.append(f"(killed by signal {signal_text(number)})")
    elif record["state"] == "failed" and code is not None:
        parts.append(f"(exit code {code})")
    took = duration_text(record["started_at"], record["ended_at"])
    if took:
        parts.append(f"in {took}")
    where = workers_of(record)
    if where:
        parts.append(f"on {where}")
    line = " ".join(parts)
    evidence = record["attempts"][-1]["evidence"] if record["attempts"] and "array" not in record else ""
    if record["reason"] and record["reason"]["code"] == AFTER_FAILED:
        line += f": {record['reason']['message']}"
    is_single = "array" not in record
    if is_single and record["state"] in ("lost", "failed") and record["ended_by"] not in (None, "program", "signal"):
        reason = record["reason"]
        why, evidence = evidence or (reason["message"] if reason else ""), ""
        line += f": {str(record['ended_by']).replace('_', ' ')}" + (f" ({why})" if why else "")
    if landed:
        size = sum(output["size"] for output in record["outputs"])
        count = len(record["outputs"])
        files = f" ({count:,} file{'' if count == 1 else 's'}, {format_bytes(size)})" if count else ""
        line += f"; outputs in {landed}/{files}"
    below = [] if is_noted and notes_on(record) else evidence.splitlines()[:_EVIDENCE_LINES]
    return "\n  ".join([line, *below])


def state_text(record: "JobRecord") -> str:
    """``running``; of an array how many of its elements are done, too: ``running 12/24``."""
    if "array" not in record:
        return record["state"]
    array = record["array"]
    done = sum(number for state, number in array["states"].items() if state in FINAL_STATES)
    return f"{record['state']} {done:,}/{array['count']:,}"


def _array_end(record: "JobRecord") -> str:
    """``5 elements``; ``element 3: exit code 9; 4 of 5 succeeded``."""
    array = record["array"]
    if record["state"] == "succeeded":
        return f"{array['count']:,} element{'' if array['count'] == 1 else 's'}"
    why = (record["reason"] or {"message": ""})["message"].partition("\n")[0]
    done = f"{array['states'].get('succeeded', 0):,} of {array['count']:,} succeeded"
    return f"{why}; {done}" if why and record["state"] not in ("cancelled", "rejected") else done


def array_text(array: "ArrayRecord") -> str:
    """``24 elements, 4 at once: 12 succeeded, 4 running, 8 queued``."""
    at_once = f", {array['limit']:,} at once" if array["limit"] else ""
    states = ", ".join(f"{number:,} {state.replace('_', ' ')}" for state, number in array["states"].items())
    return f"{array['count']:,} element{'' if array['count'] == 1 else 's'}{at_once}: {states}"


def element_row(element: "ElementRecord") -> list[str]:
    """For a table."""
    code = element["exit_code"]
    end = "" if element["ended_by"] in (None, "program") else f"{element['ended_by']}".replace("_", " ")
    return [
        str(element["index"]),
        element["state"] + (f" ({end})" if end else ""),
        str(element["attempts"] or ""),
        element["worker"],
        duration_text(element["started_at"], element["ended_at"]),
        "" if code is None else str(code),
    ]


def notes_on(record: "JobRecord") -> list[str]:
    """What is to be said beside the program's own end: outputs that did not come home, why it could not start."""
    if clashes := clashes_text(record.get("clashes", 0)):
        return [clashes]
    if record["ended_by"] not in ("program", "signal") or not record["attempts"] or "array" in record:
        return []
    return record["attempts"][-1]["evidence"].splitlines()


def job_fields(record: "JobRecord") -> list[tuple[str, str]]:
    """Labels and texts in the order shown. An empty text means that the record says nothing of it."""
    said = (record["reason"] or {"message": ""})["message"]
    why, *more = said.split("\n")
    source = record["source"]
    return [
        ("job", record["id"]),
        ("name", record["name"]),
        ("state", "\n".join([record["state"] + (f" ({why})" if why else ""), *more])),
        ("in the queue", waiting_text(waits) if (waits := record.get("waits")) else ""),
        ("element", str(record["index"]) if "index" in record else ""),
        ("array", array_text(record["array"]) if "array" in record else ""),
        ("command", command_text(record["command"])),
        ("needs", _needs(record)),
        ("runs with", _settings(record.get("options", {}))),
        ("secrets", ", ".join(record.get("secrets", []))),
        ("source", _source(record) if source else ""),
        ("tags", ", ".join(f"{key}={value}" for key, value in record["tags"].items())),
        ("priority", str(record["priority"] or "")),
        ("submitted", f"{when(record['submitted_at'])} by {record['submitted_by']['name']}"),
        ("started", when(record["started_at"])),
        ("ended", _ended(record)),
        ("exit code", "" if record["exit_code"] is None else str(record["exit_code"])),
        ("signal", "" if record["signal"] is None else signal_text(record["signal"])),
        ("ended by", (record["ended_by"] or "").replace("_", " ")),
        ("placement", str(record["placement"] or "")),
        ("attempts", "" if "array" in record else "\n".join(_attempt(one, said=said) for one in record["attempts"])),
        ("outputs", "\n".join(_output(output) for output in record["outputs"])),
        ("left out", clashes_text(record.get("clashes", 0))),
        *_last_lines(record),
    ]


def clashes_text(clashes: int) -> str:
    """Of an array's files that others were before; empty for none."""
    if not clashes:
        return ""
    files = "1 file has" if clashes == 1 else f"{clashes:,} files have"
    return f"{files} the name of an earlier element's: gpulayer job result --index I --download has those of one"


def _output(output: "OutputRecord") -> str:
    path = output["path"].replace("\n", "\N{REPLACEMENT CHARACTER}")  # a name must not make a line
    return f"{path}  {format_bytes(output['size'])}"


def _last_lines(record: "JobRecord") -> list[tuple[str, str]]:
    """Of the log of an attempt that failed; nothing while another one runs."""
    attempts = record["attempts"]
    if "array" in record:  # of the one that tells how it ended
        attempts = [one for one in attempts if one.get("index") == record["array"]["first_failed"]]
    last = attempts[-1] if attempts else None
    if last is None:
        return []
    return [
        ("log's end", _shown(last.get("log_tail", ""))),
        ("stderr's end", _shown(last.get("stderr_tail", ""))),
    ]


def _shown(log: str) -> str:
    """What a program wrote, without driving the terminal: control characters are shown as Python writes them."""
    lines = (line.expandtabs() for line in log.split("\n"))
    return "\n".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines)


def worker_fields(record: "WorkerRecord") -> list[tuple[str, str]]:
    """Labels and texts in the order shown. An empty text means that the record says nothing of it."""
    place = [f"{key.replace('_', ' ')} {value}" for key, value in record["locality"].items() if value]
    seen = seen_from(record)
    devices = [one.device for one in seen]
    missing = record.get("missing", {})
    return [
        ("worker", record["name"]),
        ("id", record["id"]),
        ("state", record["state"]),
        ("last seen", when(record["last_seen_at"])),
        ("refused", record.get("refused", "")),
        ("platform", record["platform"]),
        ("version", record["version"]),
        ("place", ", ".join(place)),
        ("addresses", ", ".join(record.get("addresses", ()))),
        ("labels", ", ".join(f"{key}={value}" for key, value in record["labels"].items())),
        ("processor", record.get("cpu_model", "")),
        ("cpus", f"{record['cpus_free']} of {record['cpus']} free"),
        ("memory", format_bytes(record["memory_bytes"])),
        ("resources", resources_text(record)),
        ("disk", format_bytes(record["disk_bytes"]) if record["disk_bytes"] is not None else ""),
        ("can also", ", ".join(name.replace(":", " ", 1) for name in record.get("capabilities", ()))),
        ("holds jobs to", ", ".join(record.get("enforces", ())) or "no limits"),
        ("drivers", drivers_text(devices)),
        ("devices", "\n".join(device_lines(seen, has_uuids=True)) or "none"),
        ("missing", "\n".join(missing_lines(missing.items(), seen))),
        ("nearest", "\n".join(near_lines(devices))),
        ("links", "\n".join(link_lines(devices))),
        ("jobs' python", python_text(record.get("python", ""), record.get("python_version", ""))),
        ("frameworks", "\n".join(framework_lines(frameworks_from(record["frameworks"]), devices, missing))),
        ("attempts", str(len(record["leases"]) or "")),
    ]


def devices_text(record: "WorkerRecord") -> str:
    """``2 × NVIDIA H100 80 GB``; equal devices together."""
    groups: dict[str, int] = {}
    for one in seen_from(record):
        total = one.device.memory_bytes
        memory = "" if total is None else f" {format_bytes(total)}"
        state = "" if one.state_now == DeviceState.USABLE else f" ({one.state_now})"
        text = f"{one.device.model or one.kind}{memory}{state}"
        groups[text] = groups.get(text, 0) + 1
    return ", ".join(f"{count} × {text}" for text, count in groups.items())


def resources_text(record: "WorkerRecord") -> str:
    """``licence 1 of 2 free``: what it counts by name. Empty where that is nothing."""
    there, free = record.get("resources", {}), record.get("resources_free", {})
    return ", ".join(f"{name} {free.get(name, 0)} of {count} free" for name, count in there.items())


def workers_of(record: "JobRecord") -> str:
    """Where the latest attempt ran."""
    if not record["attempts"]:
        return ""
    return ", ".join(dict.fromkeys(node["worker"] for node in record["attempts"][-1]["nodes"]))


def command_text(command: list[str], *, limit: int = 0) -> str:
    """Quoted for a shell, on one line. limit: characters at most, the last of them ``…``; 0 for no limit."""
    import shlex  # noqa: PLC0415 - listings only

    text = " ".join(shlex.join(command).split())
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def details_text(details: "Mapping[str, object]") -> str:
    """An event's details on one line: what is empty is left out, and of a text the first line stands for it."""
    shown = ((key.replace("_", " "), _plain(value)) for key, value in details.items())
    return ", ".join(f"{key} {text}" for key, text in shown if text)


def duration_text(started: str | None, ended: str | None) -> str:
    """Between two ISO times; empty while either is not known, and never negative."""
    if started is None or ended is None:
        return ""
    took = datetime.fromisoformat(ended) - datetime.fromisoformat(started)
    return format_duration(max(0, int(took.total_seconds() * 1000)))


def waiting_text(waits: "WaitRecord") -> str:
    """``2 jobs are ahead, 7f3a… first``, or until when it waits at the latest, in the reader's own time zone."""
    if waits["ahead"]:
        are = "1 job is" if waits["ahead"] == 1 else f"{waits['ahead']:,} jobs are"
        return f"{are} ahead ({'' if waits['ahead'] == 1 else 'first: '}{waits['first_ahead']}{_shares_text(waits)})"
    return f"starts at {when(waits['starts_by'])} at the latest" if waits["starts_by"] else ""


def _shares_text(waits: "WaitRecord") -> str:
    """Why somebody else is first who may have come later."""
    shares = waits.get("by_share")
    if shares is None:
        return ""
    theirs, own = (f"{shares[name]:.0%}" for name in ("share_ahead", "share"))
    return f" of {shares['owner_ahead']}, who uses {theirs} of the fleet, {shares['owner']} {own}"


def when(time: str | None) -> str:
    """In the reader's own time zone, to the second."""
    return "" if time is None else datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(time: str | None, now: datetime) -> str:
    """Whole seconds before ``now``, as text; empty for None. A time in the future counts as now."""
    if time is None:
        return ""
    return format_duration(max(0, int((now - datetime.fromisoformat(time)).total_seconds()) * 1000)) + " ago"


def _ended(record: "JobRecord") -> str:
    if record["ended_at"] is None:
        return ""
    took = duration_text(record["started_at"], record["ended_at"])
    return when(record["ended_at"]) + (f" (after {took})" if took else "")


def _source(record: "JobRecord") -> str:
    source = record["source"]
    if source is None:
        return ""
    commit = source.get("commit", "")
    state = f", commit {commit[:12]}" + (" with changes" if source.get("dirty") else "") if commit else ""
    return f"{source['files']:,} files, {format_bytes(source['size_bytes'])}{state}"


def _attempt(attempt: "AttemptRecord", *, said: str) -> str:
    """said: of the job as a whole; what its attempt says of that, too, is not said twice."""
    where = ", ".join(
        node["worker"] + (f" [{', '.join(node['devices'])}]" if node["devices"] else "") for node in attempt["nodes"]
    )
    took = duration_text(attempt["started_at"], attempt["ended_at"])
    end = (attempt["ended_by"] or "").replace("_", " ")
    if attempt["blame"]:
        end += f" (blame: {attempt['blame']})"
    evidence = "" if attempt["evidence"] in said else attempt["evidence"].replace("\n", "; ")
    parts = [f"{attempt['number']}: {attempt['state']}", where, took, end, evidence]
    return "  ".join(part for part in parts if part)


def _plain(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case dict():
            inner = ((key, _plain(item)) for key, item in value.items())
            return " ".join(f"{key}={text}" for key, text in inner if text)
        case list() | tuple():
            return " ".join(filter(None, map(_plain, value)))
        case _:
            return next((line for line in str(value).splitlines() if line.strip()), "")


def _needs(record: "JobRecord") -> str:
    """Empty where what it runs with, the line below, is all that it needs of a worker."""
    options = record.get("options", {})
    is_told_below = any(options.get(name) for name in ("launcher", "environment", "inputs"))
    return _settings(record["request"]) or ("" if is_told_below else "nothing in particular")


def _settings(fields: "Mapping[str, object]") -> str:
    """``cpus 1, memory 1 GB, timeout 5 m``."""
    return ", ".join(f"{re.sub('_(bytes|ms)$', '', key)} {_value(key, value)}" for key, value in fields.items())


def _value(key: str, value: object) -> str:
    match value:
        case int() if key.endswith("_bytes"):
            return format_bytes(value)
        case int() if key.endswith("_ms"):
            return format_duration(value)
        case True:
            return "yes"
        case list():
            return ",".join(map(str, value))
        case dict():
            return ",".join(f"{key}={item}" for key, item in value.items())
        case _:
            return str(value)
