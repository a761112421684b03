"""Domain types to wire schemas and back: the one place where either is turned into the other.

``*_from_wire`` raises BadRequest that names the field; shapes and ranges were checked by the server's edge, what
is checked here is meaning (an unknown accelerator, a specifier that does not parse, ``cpu`` with devices).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpulayer.clock import iso_utc
from gpulayer.errors import BadRequest, Blame, NotSupported, UsageError
from gpulayer.ids import Digest, Epoch, JobId, is_digest
from gpulayer.spec.after import After, parse_after
from gpulayer.spec.array import ARRAY_COUNT, ARRAY_INDEX
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.capabilities import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_LAUNCHER,
    EVERYBODYS,
    check_capability,
    check_inputs,
    check_resource,
)
from gpulayer.spec.environment import check_environment
from gpulayer.spec.globs import Glob
from gpulayer.spec.job import (
    DEFAULT_GRACE_MS,
    DEFAULT_KEEP_FOR_MS,
    DEFAULT_RETRIES,
    Array,
    JobKind,
    JobSpec,
    RetryOn,
    Shape,
    Single,
)
from gpulayer.spec.limits import DEFAULT_LOG_BYTES, Limits
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import DEVICE_KINDS, Accelerator, Request
from gpulayer.spec.secrets import check_grant, check_secrets
from gpulayer.spec.tree import SourceRef
from gpulayer.spec.verdict import Verdict
from gpulayer.wire import SCHEMA_VERSION
from gpulayer.wire.choice import choice
from gpulayer.wire.frameworks import check_range, framework_needs
from gpulayer.wire.jobs import JobSubmission, RequestFields, SourceFields, VerdictRecord
from gpulayer.wire.workers import AssignCommand, LimitsFields, OutcomeFields

__all__ = [
    "SpecReader",
    "assignment_from_wire",
    "assignment_to_wire",
    "check_schema",
    "limits_to_wire",
    "needed_request",
    "outcome_from_wire",
    "outcome_to_wire",
    "placed_request",
    "request_from_wire",
    "request_to_wire",
    "source_to_wire",
    "spec_from_wire",
    "spec_to_wire",
    "verdict_to_wire",
]

_ANYWHERE: Final = Request()


def check_schema(schema: int, what: str) -> None:
    """Raises BadRequest for a schema version that this program does not read."""
    if schema != SCHEMA_VERSION:
        raise BadRequest(
            f"{what}: schema version {schema!r} is unknown here; this control plane reads version {SCHEMA_VERSION}",
            hint="use a client and a control plane of the same minor series",
        )


def request_to_wire(request: Request) -> RequestFields:
    """Only what differs from the defaults, so that an older reader meets no field it need not know."""
    fields: RequestFields = {}
    if request.accelerators != (Accelerator.ANY,):
        fields["accelerators"] = [str(kind) for kind in request.accelerators]
    if request.devices:
        fields["devices"] = request.devices
    if request.device_models:
        fields["device_models"] = list(request.device_models)
    if request.device_memory_bytes:
        fields["device_memory_bytes"] = request.device_memory_bytes
    if request.compute_capability:
        fields["compute_capability"] = request.compute_capability
    if request.frameworks:
        fields["frameworks"] = [str(need) for need in request.frameworks]
    if request.cpus != 1:
        fields["cpus"] = request.cpus
    if request.memory_bytes:
        fields["memory_bytes"] = request.memory_bytes
    if request.disk_bytes:
        fields["disk_bytes"] = request.disk_bytes
    if request.labels:
        fields["labels"] = dict(request.labels)
    if request.worker:
        fields["worker"] = request.worker
    if request.zone:
        fields["zone"] = request.zone
    if request.region:
        fields["region"] = request.region
    if request.network_group:
        fields["network_group"] = request.network_group
    if request.resources:
        fields["resources"] = dict(request.resources)
    if request.capabilities:
        fields["capabilities"] = list(request.capabilities)
    return fields


def request_from_wire(fields: RequestFields) -> Request:
    """Naming an accelerator or what a device has, without a number of devices, asks for one; ``cpu`` and ``any`` alone
    ask for none."""
    if not fields:
        return _ANYWHERE  # most of a batch of tiny jobs
    accelerators = tuple(
        choice(Accelerator, text, "request.accelerators") for text in fields.get("accelerators", [Accelerator.ANY])
    )
    named = [kind for kind in accelerators if kind in DEVICE_KINDS]
    needs_device = fields.get("device_memory_bytes") or fields.get("device_models") or fields.get("compute_capability")
    preferred = accelerators[0] if accelerators else Accelerator.ANY
    asks_for_one = preferred in DEVICE_KINDS or (preferred is not Accelerator.CPU and bool(needs_device))
    devices = fields.get("devices", int(asks_for_one))
    if devices and Accelerator.CPU in accelerators and not named:
        what = f"{devices} device{'' if devices == 1 else 's'}"
        raise BadRequest(
            f"request.devices: accelerator cpu has no devices, but {what} wanted", hint="ask for cores with --cpus N"
        )
    if needs_device and not devices:
        raise BadRequest(
            "the request names properties of a device but asks for no device",
            hint="add --devices 1 or name an accelerator, as in --accelerator cuda",
        )
    capability = fields.get("compute_capability", "")
    if capability:
        check_range(capability, "request.compute_capability")
    for key in ("worker", "zone", "region", "network_group"):
        _check_text(str(fields.get(key, "")), f"request.{key}")
    for model in fields.get("device_models", ()):
        _check_text(model, "request.device_models")
    _check_pairs(fields.get("labels", {}), "request.labels")
    try:
        for name in fields.get("resources", {}):
            check_resource(name)
        for needed in fields.get("capabilities", ()):
            check_capability(needed)
    except UsageError as error:
        raise BadRequest(f"request.{error.message}", hint=error.hint) from None
    return Request(
        accelerators=accelerators,
        devices=devices,
        device_models=tuple(fields.get("device_models", ())),
        device_memory_bytes=fields.get("device_memory_bytes", 0),
        compute_capability=capability,
        frameworks=framework_needs(fields.get("frameworks", ())),
        cpus=fields.get("cpus", 1),
        memory_bytes=fields.get("memory_bytes", 0),
        disk_bytes=fields.get("disk_bytes", 0),
        labels=tuple(sorted(fields.get("labels", {}).items())),
        worker=fields.get("worker", ""),
        zone=fields.get("zone", ""),
        region=fields.get("region", ""),
        network_group=fields.get("network_group", ""),
        resources=tuple(sorted(fields.get("resources", {}).items())),
        capabilities=tuple(sorted({*fields.get("capabilities", ())} - EVERYBODYS)),
    )


def spec_to_wire(spec: JobSpec) -> JobSubmission:
    """The form in which a job is sent and stored."""
    if spec.kind is not JobKind.COMMAND or not isinstance(spec.shape, Single | Array):
        raise NotSupported(f"jobs of kind {spec.kind} with shape {spec.shape} have no wire form yet")
    submission: JobSubmission = {"schema": SCHEMA_VERSION, "command": list(spec.command)}
    request = request_to_wire(spec.request)
    if request:
        submission["request"] = request
    if spec.name:
        submission["name"] = spec.name
    if spec.tags:
        submission["tags"] = dict(spec.tags)
    if spec.priority:
        submission["priority"] = spec.priority
    if spec.env:
        submission["env"] = dict(spec.env)
    if spec.source is not None:
        submission["source"] = source_to_wire(spec.source)
    if spec.outputs:
        submission["outputs"] = list(spec.outputs)
    if not spec.keep_outputs:
        submission["keep_outputs"] = False
    if spec.retries != DEFAULT_RETRIES:
        submission["retries"] = spec.retries
    if spec.retry_on is not RetryOn.INFRASTRUCTURE:
        submission["retry_on"] = str(spec.retry_on)
    if spec.timeout_ms is not None:
        submission["timeout_ms"] = spec.timeout_ms
    if spec.grace_ms != DEFAULT_GRACE_MS:
        submission["grace_ms"] = spec.grace_ms
    if spec.keep_for_ms != DEFAULT_KEEP_FOR_MS:
        submission["keep_for_ms"] = spec.keep_for_ms
    if spec.exclusive:
        submission["exclusive"] = True
    if not spec.wait:
        submission["wait"] = False
    limits = spec.limits
    if limits.pids:
        submission["pids"] = limits.pids
    if limits.nice:
        submission["nice"] = limits.nice
    if limits.pin_cores:
        submission["pin_cores"] = True
    if limits.log_bytes != DEFAULT_LOG_BYTES:
        submission["log_limit_bytes"] = limits.log_bytes
    if limits.cpus:  # one core is the default of a request, but as a limit it was asked for
        submission["request"] = {**request, "cpus": limits.cpus}
    if spec.split_streams:
        submission["split_streams"] = True
    if spec.secret_names:
        submission["secret_names"] = list(spec.secret_names)
    if spec.grant:
        submission["grant"] = spec.grant
    if spec.launcher:
        submission["launcher"] = spec.launcher
    if spec.environment:
        submission["environment"] = spec.environment
    if spec.inputs:
        submission["inputs"] = dict(spec.inputs)
    if spec.after:
        submission["after"] = [str(after) for after in spec.after]
    if isinstance(spec.shape, Array):
        submission["array"] = spec.shape.count
        if spec.shape.limit:
            submission["array_limit"] = spec.shape.limit
    return submission


def spec_from_wire(submission: JobSubmission) -> JobSpec:
    """Read a submission. Raises BadRequest or NotSupported; the schema version is checked first."""
    check_schema(submission["schema"], "job")
    kind = choice(JobKind, submission.get("kind", JobKind.COMMAND), "kind")
    if kind is not JobKind.COMMAND:
        raise NotSupported(f"kind {kind!s} is not supported by this version", hint="submit a command")
    command = _command(submission["command"])
    env = submission.get("env", {})
    for key, value in env.items():
        if not key or "=" in key or "\0" in key:
            raise BadRequest(f"env: {key!r} can't name a variable")
        _check_text(value, f"env.{key}")
    _check_text(submission.get("name", ""), "name")
    _check_pairs(submission.get("tags", {}), "tags")
    for pattern in submission.get("outputs", ()):
        _check_text(pattern, "outputs")
        _check_glob(pattern)  # now: a worker finds out when the work is done and its results are to be fetched
    return JobSpec(
        command=command,
        kind=kind,
        request=needed_request(submission.get("request", {}), submission),
        name=submission.get("name", ""),
        tags=tuple(sorted(submission.get("tags", {}).items())),
        priority=submission.get("priority", 0),
        env=tuple(sorted(env.items())),
        source=_source_from_wire(submission.get("source")),
        outputs=tuple(submission.get("outputs", ())),
        keep_outputs=submission.get("keep_outputs", True),
        retries=submission.get("retries", DEFAULT_RETRIES),
        retry_on=choice(RetryOn, submission.get("retry_on", RetryOn.INFRASTRUCTURE), "retry_on"),
        timeout_ms=submission.get("timeout_ms"),
        grace_ms=submission.get("grace_ms", DEFAULT_GRACE_MS),
        keep_for_ms=submission.get("keep_for_ms", DEFAULT_KEEP_FOR_MS),
        exclusive=submission.get("exclusive", False),
        wait=submission.get("wait", True),
        limits=_limits_from_wire(submission),
        split_streams=submission.get("split_streams", False),
        secret_names=_secret_names(submission),
        grant=_grant(submission.get("grant", "")),
        launcher=_plain(submission.get("launcher", ""), DEFAULT_LAUNCHER),
        environment=_plain(submission.get("environment", ""), DEFAULT_ENVIRONMENT),
        inputs=tuple(sorted(submission.get("inputs", {}).items())),
        after=_after(submission.get("after", ())),
        shape=_shape(submission),
    )


def _shape(submission: JobSubmission) -> Shape:
    count, limit = submission.get("array"), submission.get("array_limit", 0)
    if count is None:
        if limit:
            raise BadRequest("array_limit: there is no array", hint='give the number of its elements: "array": 24')
        return Single()
    for name in (ARRAY_INDEX, ARRAY_COUNT):
        if name in submission.get("env", {}):
            raise BadRequest(f"env: {name} is set for each element of an array", hint="take it out of env")
    return Array(count, min(limit, count))


def _after(texts: Sequence[str]) -> tuple[After, ...]:
    """Each job once."""
    try:
        found = [parse_after(text) for text in texts]
    except UsageError as error:
        raise BadRequest(error.message, hint=error.hint) from None
    for after in found:
        _check_text(after.job, "after")
    return tuple(dict.fromkeys(found))


def _plain(name: str, default: str) -> str:
    """What everybody has is not worth a word; so equal jobs are equal."""
    return "" if name == default else name


def needed_request(fields: RequestFields, submission: Mapping[str, Any]) -> Request:  # Any: as checked by its form
    """The request with what a submission's launcher, environment and inputs need of a worker. Raises BadRequest."""
    request = request_from_wire(fields)
    needed = set(request.capabilities)
    try:
        needed.update(check_capability(f"{kind}:{name}") for kind, name in _run_by(submission))
        needed.update(check_inputs(submission.get("inputs", {}), env=submission.get("env", {})))
    except UsageError as error:
        raise BadRequest(error.message, hint=error.hint) from None
    capabilities = tuple(sorted(needed - EVERYBODYS))
    return request if capabilities == request.capabilities else replace(request, capabilities=capabilities)


def placed_request(submission: JobSubmission) -> RequestFields:
    """Of a submission that was accepted: what placement goes by, with all capabilities that the job needs. Nothing is
    checked: what is to be accepted may have changed since."""
    fields = submission.get("request", {})
    if "capabilities" not in fields and submission.keys().isdisjoint(("launcher", "environment", "inputs")):
        return fields  # most of them, and lists have many
    needed = {f"stager:{uri.partition(':')[0].lower()}" for uri in submission.get("inputs", {}).values()}
    needed |= {f"{kind}:{name}" for kind, name in _run_by(submission)}
    needed.update(fields.get("capabilities", ()))
    placed: RequestFields = {**fields, "capabilities": sorted(needed - EVERYBODYS)}
    if not placed["capabilities"]:
        del placed["capabilities"]
    return placed


def _run_by(submission: Mapping[str, Any]) -> list[tuple[str, str]]:  # Any: see above
    """What has a name there, by kind of capability."""
    named = ("launcher", submission.get("launcher", "")), ("environment", submission.get("environment", ""))
    return [(kind, name) for kind, name in named if name]


def _secret_names(submission: JobSubmission) -> tuple[str, ...]:
    """Of the values that were sent, or of those that are kept elsewhere."""
    secrets = submission.get("secrets")
    if not secrets:
        return tuple(submission.get("secret_names", ()))
    try:
        check_secrets(secrets, env=submission.get("env", {}))
    except UsageError as error:
        raise BadRequest(error.message, hint=error.hint) from None
    return tuple(sorted(secrets))


def _check_sizes(submission: JobSubmission) -> None:
    try:
        check_environment(submission.get("env", {}), submission.get("secrets", {}))
    except UsageError as error:
        raise BadRequest(error.message, hint=error.hint) from None


def _grant(grant: str) -> str:
    try:
        check_grant(grant)
    except UsageError as error:
        raise BadRequest(error.message, hint=error.hint) from None
    return grant


def _limits_from_wire(submission: JobSubmission) -> Limits:
    """What was named is also a limit; cores that were not are only counted."""
    request = submission.get("request", {})
    return Limits(
        cpus=request.get("cpus", 0),
        memory_bytes=request.get("memory_bytes", 0),
        pids=submission.get("pids", 0),
        disk_bytes=request.get("disk_bytes", 0),
        log_bytes=submission.get("log_limit_bytes", DEFAULT_LOG_BYTES),
        nice=submission.get("nice", 0),
        pin_cores=submission.get("pin_cores", False),
    )


class SpecReader:
    """Reads the submissions of a batch. Most differ from the one before in their command alone: then only that is
    read, and the rest is shared, in memory too."""

    def __init__(self) -> None:
        self._rest: dict[str, object] = {}
        self._spec: JobSpec | None = None

    def read(self, submission: JobSubmission) -> JobSpec:
        """Raises like ``spec_from_wire``, and BadRequest for more variables than a program can be started with: what
        was kept before there was a limit is still read."""
        rest: dict[str, object] = {**submission}
        del rest["command"]
        if self._spec is not None and rest == self._rest:
            return self._spec.with_command(_command(submission["command"]))
        self._spec = spec_from_wire(submission)
        _check_sizes(submission)
        self._rest = rest
        return self._spec


def source_to_wire(source: SourceRef) -> SourceFields:
    """``dirty`` goes along only with a commit."""
    fields: SourceFields = {"digest": source.digest, "files": source.files, "size_bytes": source.size_bytes}
    if source.commit:
        fields["commit"] = source.commit
        fields["dirty"] = source.dirty
    return fields


def outcome_to_wire(outcome: Outcome) -> OutcomeFields:
    """``evidence`` is not cut here; whoever sends it minds the limit."""
    return {
        "ended_by": str(outcome.ended_by),
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "evidence": outcome.evidence,
        "blame": str(outcome.blame),
        "ran_ms": outcome.ran_ms,
    }


def outcome_from_wire(fields: OutcomeFields) -> Outcome:
    """Raises BadRequest for an unknown end or blame."""
    return Outcome(
        ended_by=choice(EndedBy, fields["ended_by"], "outcome.ended_by"),
        exit_code=fields["exit_code"],
        signal=fields["signal"],
        evidence=fields["evidence"],
        blame=choice(Blame, fields["blame"], "outcome.blame"),
        ran_ms=fields.get("ran_ms"),
    )


def verdict_to_wire(verdict: Verdict) -> VerdictRecord:
    """``until`` is ISO text in UTC, None where nobody knows."""
    return {
        "worker": verdict.worker,
        "verdict": str(verdict.kind),
        "reasons": [
            {"code": str(reason.code), "message": reason.message, "wanted": reason.wanted, "has": reason.has}
            for reason in verdict.reasons
        ],
        "busy_with": list(verdict.busy_with),
        "until": iso_utc(verdict.until_ms),
        "fits_with": {change.field: change.value for change in verdict.fits_with},
        "score": verdict.score,
    }


def assignment_to_wire(assignment: Assignment) -> AssignCommand:
    """All fields, defaults too: the agent fills in nothing."""
    return {
        "type": "assign",
        "epoch": assignment.key.epoch,
        "node": assignment.key.node,
        "job_id": assignment.job_id,
        "attempt": assignment.attempt,
        "command": list(assignment.command),
        "env": dict(assignment.env),
        "source": assignment.source,
        "devices": list(assignment.devices),
        "cpus": assignment.cpus,
        "memory_bytes": assignment.memory_bytes,
        "outputs": list(assignment.outputs),
        "keep_outputs": assignment.keep_outputs,
        "timeout_ms": assignment.timeout_ms,
        "grace_ms": assignment.grace_ms,
        "keep_for_ms": assignment.keep_for_ms,
        "exclusive": assignment.exclusive,
        "limits": limits_to_wire(assignment.limits),
        "split_streams": assignment.split_streams,
        "has_credentials": assignment.has_credentials,
        "launcher": assignment.launcher,
        "environment": assignment.environment,
        "inputs": dict(assignment.inputs),
        "resources": dict(assignment.resources),
    }


def assignment_from_wire(command: AssignCommand) -> Assignment:
    """Raises BadRequest for a source that is no digest: it will become a path."""
    source = command["source"]
    if source is not None and not is_digest(source):
        raise BadRequest(f"assign.source: {source[:20]!r} is not a SHA-256 digest")
    return Assignment(
        key=NodeKey(Epoch(command["epoch"]), command["node"]),
        job_id=JobId(command["job_id"]),
        attempt=command["attempt"],
        command=tuple(command["command"]),
        env=tuple(sorted(command["env"].items())),
        source=None if source is None else Digest(source),
        devices=tuple(command["devices"]),
        cpus=command["cpus"],
        memory_bytes=command["memory_bytes"],
        outputs=tuple(command["outputs"]),
        keep_outputs=command["keep_outputs"],
        timeout_ms=command["timeout_ms"],
        grace_ms=command["grace_ms"],
        keep_for_ms=command["keep_for_ms"],
        exclusive=command["exclusive"],
        limits=Limits(**command["limits"]) if "limits" in command else Limits(),
        split_streams=command.get("split_streams", False),
        has_credentials=command.get("has_credentials", False),
        launcher=command.get("launcher", ""),
        environment=command.get("environment", ""),
        inputs=tuple(sorted(command.get("inputs", {}).items())),
        resources=tuple(sorted(command.get("resources", {}).items())),
    )


def limits_to_wire(limits: Limits) -> LimitsFields:
    """All fields, defaults too."""
    return {
        "cpus": limits.cpus,
        "memory_bytes": limits.memory_bytes,
        "pids": limits.pids,
        "disk_bytes": limits.disk_bytes,
        "log_bytes": limits.log_bytes,
        "nice": limits.nice,
        "pin_cores": limits.pin_cores,
    }


def _source_from_wire(fields: SourceFields | None) -> SourceRef | None:
    if fields is None:
        return None
    if not is_digest(fields["digest"]):
        raise BadRequest(f"source.digest: {fields['digest'][:20]!r} is not a SHA-256 digest")
    return SourceRef(
        digest=Digest(fields["digest"]),
        files=fields["files"],
        size_bytes=fields["size_bytes"],
        commit=fields.get("commit", ""),
        dirty=fields.get("dirty", False),
    )


def _command(command: Sequence[str]) -> tuple[str, ...]:
    if not command[0]:
        raise BadRequest("command: the program's name is empty")
    for argument in command:
        _check_text(argument, "command")
    return tuple(command)


def _check_glob(pattern: str) -> None:
    try:
        Glob(pattern)
    except UsageError as error:
        raise BadRequest(f"outputs: {error.message.removeprefix('--output ')}", hint=error.hint) from None


def _check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise BadRequest(f"{where}: a NUL character can't be passed to a program, nor stand in a name")


def _check_pairs(pairs: Mapping[str, str], where: str) -> None:
    for key, value in pairs.items():
        _check_text(key, where)
        _check_text(value, f"{where}.{key}")
