"""The form of every JSON reply as plain data, so that a client can check one without importing the wire schemas.

Importing those takes a fifth of the time of a short command; a test holds the two equal. A field of another type is
found at once. A field that is missing is told when it is asked for: a control plane of an older patch release may lack
one that this command does not need.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from gpulayer.errors import ProtocolError

__all__ = ["FORMS", "Fields", "Form", "misfit"]

# A type (``object``: anything), the name of a row below, ``[each]``, ``{"*": each}``, or ``(form, None)`` where there
# may be null in its place.
Form: TypeAlias = Any  # Any: typing has no name for a value of this little language


class Fields(dict[str, Any]):  # Any: JSON
    """A JSON object of an answer. Raises ProtocolError, not KeyError, for a field that is not there."""

    def __missing__(self, name: str) -> Any:
        raise ProtocolError(
            f"the answer has no field {name!r}: it is not one that this version knows",
            hint="use a client and a control plane of the same minor series",
        )


def misfit(value: object, form: Form, at: str = "") -> str | None:
    """Where ``value`` first differs from ``form``, for people; None where it does not. Fields that nobody knows are
    let be."""
    match form:
        case str():
            return (
                _misfit_of_object(value, FORMS[form], at) if isinstance(value, dict) else f"{at or 'it'} is no object"
            )
        case [each]:
            if not isinstance(value, list):
                return f"{at} is no list"
            return next((found for item in value if (found := misfit(item, each, at)) is not None), None)
        case {"*": each}:
            if not isinstance(value, dict):
                return f"{at} is no object"
            return next((found for item in value.values() if (found := misfit(item, each, at)) is not None), None)
        case _:
            return None if _is_of(value, form) else f"{at} is no {form.__name__}"


def _misfit_of_object(value: Mapping[str, object], fields: Mapping[str, Form], at: str) -> str | None:
    for name, form in fields.items():
        if name not in value:
            continue
        one = value[name]
        if isinstance(form, tuple):
            if one is None:
                continue
            form = form[0]  # noqa: PLW2901 - what it is where it is not null
        found = misfit(one, form, f"{at}.{name}" if at else name)
        if found is not None:
            return found
    return None


def _is_of(value: object, kind: type) -> bool:
    if kind is object:
        return True
    if isinstance(value, bool):  # which Python takes for a number
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


FORMS: Final[Mapping[str, Mapping[str, Form]]] = {
    "jobs.ArrayRecord": {
        "count": int,
        "limit": (int, None),
        "states": {"*": int},
        "first_failed": (int, None),
    },
    "jobs.AttemptNodeRecord": {"worker": str, "devices": [str], "exit_code": (int, None), "signal": (int, None)},
    "jobs.AttemptRecord": {
        "number": int,
        "epoch": int,
        "state": str,
        "nodes": ["jobs.AttemptNodeRecord"],
        "started_at": (str, None),
        "ended_at": (str, None),
        "ended_by": (str, None),
        "blame": (str, None),
        "evidence": str,
        "log_tail": str,
        "stderr_tail": str,
        "index": int,
    },
    "jobs.BatchReply": {"ids": [str], "warnings": ["jobs.ProblemRecord"]},
    "jobs.ElementPage": {"elements": ["jobs.ElementRecord"], "next": (int, None)},
    "jobs.ElementRecord": {
        "index": int,
        "state": str,
        "attempts": int,
        "worker": str,
        "started_at": (str, None),
        "ended_at": (str, None),
        "exit_code": (int, None),
        "signal": (int, None),
        "ended_by": (str, None),
        "output_tree": (str, None),
    },
    "jobs.EventPage": {"events": ["jobs.EventRecord"], "next": int},
    "jobs.EventRecord": {"seq": int, "at": str, "event": str, "details": {"*": object}},
    "jobs.ExplainReply": {
        "request": str,
        "choice": (str, None),
        "verdicts": ["jobs.VerdictRecord"],
        "waits": ("jobs.WaitRecord", None),
    },
    "jobs.JobPage": {"jobs": ["jobs.JobRecord"], "next": (str, None)},
    "jobs.JobRecord": {
        "id": str,
        "name": str,
        "kind": str,
        "state": str,
        "reason": ("jobs.ReasonRecord", None),
        "command": [str],
        "request": "jobs.RequestFields",
        "options": {"*": object},
        "source": ("jobs.SourceFields", None),
        "tags": {"*": str},
        "priority": int,
        "submitted_by": "jobs.SubmitterRecord",
        "submitted_at": str,
        "started_at": (str, None),
        "ended_at": (str, None),
        "attempts": ["jobs.AttemptRecord"],
        "exit_code": (int, None),
        "signal": (int, None),
        "ended_by": (str, None),
        "outputs": ["jobs.OutputRecord"],
        "output_tree": (str, None),
        "placement": (str, None),
        "split_streams": bool,
        "secrets": [str],
        "verdicts": ["jobs.VerdictRecord"],
        "warnings": ["jobs.ProblemRecord"],
        "waits": "jobs.WaitRecord",
        "array": "jobs.ArrayRecord",
        "index": int,
        "clashes": int,
    },
    "jobs.OutputRecord": {"path": str, "size": int, "digest": str},
    "jobs.OutputsReply": {"tree": (str, None), "outputs": ["jobs.OutputRecord"]},
    "jobs.ProblemRecord": {"plugin": str, "severity": str, "field": str, "message": str, "hint": str},
    "jobs.ReasonRecord": {"code": str, "message": str},
    "jobs.RequestFields": {
        "accelerators": [str],
        "devices": int,
        "device_models": [str],
        "device_memory_bytes": int,
        "compute_capability": str,
        "frameworks": [str],
        "cpus": int,
        "memory_bytes": int,
        "disk_bytes": int,
        "labels": {"*": str},
        "worker": str,
        "zone": str,
        "region": str,
        "network_group": str,
        "resources": {"*": int},
        "capabilities": [str],
    },
    "jobs.SourceFields": {"digest": str, "files": int, "size_bytes": int, "commit": str, "dirty": bool},
    "jobs.SubmitterRecord": {"token_id": str, "name": str, "client": str},
    "jobs.VerdictReasonRecord": {"code": str, "message": str, "wanted": str, "has": str},
    "jobs.VerdictRecord": {
        "worker": str,
        "verdict": str,
        "reasons": ["jobs.VerdictReasonRecord"],
        "busy_with": [str],
        "until": (str, None),
        "fits_with": {"*": str},
        "score": (float, None),
    },
    "jobs.PlaceRecord": {
        "worker": str,
        "failed_there": bool,
        "preference": int,
        "mark": float,
        "devices_left": int,
        "cpus_left": int,
    },
    "jobs.ConsideredRecord": {
        "fitting": int,
        "busy": int,
        "ineligible": int,
        "refused": int,
        "away": int,
        "best": ["jobs.PlaceRecord"],
    },
    "jobs.DecisionRecord": {
        "attempt": int,
        "epoch": int,
        "workers": [str],
        "why": str,
        "considered": "jobs.ConsideredRecord",
    },
    "jobs.WhyReply": {
        "job": str,
        "state": str,
        "reason": ("jobs.ReasonRecord", None),
        "request": str,
        "priority": int,
        "owner": str,
        "waits": ("jobs.WaitRecord", None),
        "verdicts": ["jobs.VerdictRecord"],
        "others": {"*": int},
        "decisions": ["jobs.DecisionRecord"],
    },
    "jobs.SharesRecord": {"owner": str, "share": float, "owner_ahead": str, "share_ahead": float},
    "jobs.WaitRecord": {
        "ahead": int,
        "first_ahead": (str, None),
        "starts_by": (str, None),
        "by_share": "jobs.SharesRecord",
    },
    "plane.CallerRecord": {"token_id": str, "name": str, "role": str, "expires_at": (str, None)},
    "plane.MissingReply": {"missing": [str]},
    "plane.PackReply": {"stored": int},
    "plane.PlaneRecord": {
        "version": str,
        "incarnation": str,
        "mode": str,
        "url": str,
        "pid": int,
        "state_dir": str,
        "started_at": str,
        "now": str,
        "read_only": bool,
        "urls": [str],
        "public_urls": [str],
        "fingerprints": [str],
        "disk_free_bytes": (int, None),
        "you": "plane.CallerRecord",
        "workers": {"*": int},
        "jobs": {"*": int},
        "starting": str,
    },
    "plugins.PluginFaultFields": {"at": (str, None), "hook": str, "message": str},
    "plugins.PluginPage": {"plugins": ["plugins.PluginRecord"], "next": (str, None)},
    "plugins.PluginRecord": {
        "where": str,
        "name": str,
        "distribution": str,
        "version": str,
        "api": str,
        "is_builtin": bool,
        "status": str,
        "error": str,
        "hint": str,
        "hooks": [str],
        "provides": [str],
        "faults": int,
        "last_faults": ["plugins.PluginFaultFields"],
    },
    "tokens.AuditPage": {"entries": ["tokens.AuditRecord"], "next": int},
    "tokens.AuditRecord": {
        "seq": int,
        "at": str,
        "wall_ms": int,
        "actor": str,
        "action": str,
        "subject": str,
        "details": str,
        "hash": str,
    },
    "tokens.TokenPage": {"tokens": ["tokens.TokenRecord"], "next": (str, None)},
    "tokens.TokenRecord": {
        "id": str,
        "kind": str,
        "role": str,
        "name": str,
        "state": str,
        "created_at": str,
        "expires_at": (str, None),
        "last_used_at": (str, None),
        "max_uses": (int, None),
        "uses": int,
        "labels": {"*": str},
        "max_devices": (int, None),
        "replaces": (str, None),
    },
    "tokens.TokenReply": {"token": str, "token_id": str, "role": str, "name": str, "expires_in_s": int},
    "workers.DeviceFields": {
        "uuid": str,
        "index": int,
        "kind": str,
        "model": str,
        "memory_bytes": (int, None),
        "memory_free_bytes": (int, None),
        "compute_capability": str,
        "state": str,
        "reason": str,
        "links": {"*": str},
        "memory_taken_bytes": int,
        "pci_address": str,
        "driver": str,
        "runtime": str,
        "parent": str,
        "is_memory_shared": bool,
        "compute_mode": str,
        "ecc": bool,
        "numa_node": int,
        "cores": str,
        "temperature_c": int,
        "use_percent": int,
    },
    "workers.FrameworkFields": {
        "name": str,
        "version": str,
        "accelerator": str,
        "usable": bool,
        "reason": str,
        "build": str,
        "architectures": [str],
        "pending": bool,
        "failed_on": {"*": str},
    },
    "workers.LocalityFields": {"zone": str, "region": str, "network_group": str},
    "workers.WorkerPage": {"workers": ["workers.WorkerRecord"], "next": (str, None)},
    "workers.WorkerRecord": {
        "id": str,
        "name": str,
        "state": str,
        "last_seen_at": (str, None),
        "version": str,
        "platform": str,
        "labels": {"*": str},
        "locality": "workers.LocalityFields",
        "cpus": int,
        "cpus_free": int,
        "memory_bytes": int,
        "disk_bytes": (int, None),
        "devices": ["workers.DeviceFields"],
        "frameworks": ["workers.FrameworkFields"],
        "enforces": [str],
        "addresses": [str],
        "resources": {"*": int},
        "resources_free": {"*": int},
        "capabilities": [str],
        "leases": [int],
        "device_jobs": {"*": str},
        "refused": str,
        "cpu_model": str,
        "missing": {"*": str},
        "python": str,
        "python_version": str,
    },
}
