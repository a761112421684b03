"""The keywords of ``submit`` and ``explain``, named like the CLI's flags, and the submission they amount to. Pure.

Sizes are numbers of bytes or text like ``24GB``, durations numbers of seconds or text like ``2h``.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypedDict, cast

from gpulayer.errors import NotSupported, UsageError
from gpulayer.spec.after import AFTER_EXAMPLE, MAX_AFTER, parse_after
from gpulayer.spec.array import parse_array
from gpulayer.spec.capabilities import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_LAUNCHER,
    check_capability,
    check_inputs,
    check_resource,
)
from gpulayer.spec.environment import check_environment
from gpulayer.spec.secrets import Secret, check_grant, check_secrets, shown_name
from gpulayer.spec.units import format_bytes, parse_bytes, parse_duration_ms

if TYPE_CHECKING:
    from gpulayer.wire.jobs import JobSubmission, RequestFields

__all__ = [
    "LATER_OPTIONS",
    "BatchItem",
    "JobOptions",
    "JobPlan",
    "RequestOptions",
    "check_submission",
    "plan_job",
    "plan_request",
]

_SCHEMA: Final = 1
_KNOWN_ACCELERATORS: Final = ("cuda", "rocm", "xpu", "mps", "mlx", "cpu", "any")

# Named in INTERFACES.md, not there yet: refused by name, never dropped.
LATER_OPTIONS: Final = frozenset(
    {
        "nodes",
        "min_nodes",
        "ranks_per_node",
        "device_share",
        "preemptible",
        "volumes",
        "volume",
        "provider",
        "max_cost",
        "spot",
        "on_demand",
        "input",
        "sync_outputs",
        "requirements",
        "image",
        "python",
        "service",
        "replicas",
        "port_name",
        "health",
    }
)


class RequestOptions(TypedDict, total=False):
    """What it needs. resources: how many by name, of what workers count. launcher, environment: names of what plugins
    add on workers. inputs: URIs by name, which the worker fetches before the program starts."""

    accelerator: str | Sequence[str]
    devices: int
    device_model: str | Sequence[str]
    device_memory: int | str
    compute_capability: str
    frameworks: Mapping[str, str] | Sequence[str]
    cpus: int
    memory: int | str
    disk: int | str
    labels: Mapping[str, str]
    worker: str
    zone: str
    region: str
    network_group: str
    resources: Mapping[str, int]
    launcher: str
    environment: str
    inputs: Mapping[str, str]


class HasId(Protocol):
    """A ``Job`` or ``AsyncJob``."""

    @property
    def id(self) -> str: ...


class JobOptions(RequestOptions, total=False):
    """What it needs, what it brings and how it runs.

    secrets: values by name of variable, or names alone, whose values are those of this process's environment.
    after: jobs that have to succeed first, as ``Job`` or by id or name; ``"NAME:any"``: that have to end. array: how
    many elements; ``"24%4"``: at most four of them at once.
    """

    source: str | os.PathLike[str] | None
    include: Sequence[str]
    exclude: Sequence[str]
    outputs: Sequence[str]
    keep_outputs: bool
    env: Mapping[str, str]
    secrets: Mapping[str, str] | Sequence[str]
    grant: str
    name: str
    tags: Mapping[str, str]
    priority: int
    retries: int
    retry_on: str
    timeout: float | str | None
    grace: float | str
    keep_for: float | str
    exclusive: bool
    wait: bool
    pids: int
    nice: int
    pin_cores: bool
    log_limit: int | str
    split_streams: bool
    after: "HasId | str | Sequence[HasId | str]"
    array: int | str
    idempotency_key: str


class BatchItem(JobOptions):
    """One job of a batch: its command beside the keywords of ``submit``."""

    command: Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Everything of a job but its source's digest, which is known once it has been sent."""

    submission: "JobSubmission"
    source: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    key: str

    def with_command(self, command: "Sequence[str | os.PathLike[str]] | str") -> "JobPlan":
        """The same for another command. Raises UsageError."""
        submission: JobSubmission = {**self.submission, "command": _command(command)}
        return JobPlan(submission, self.source, self.include, self.exclude, self.key)


_LEAST_LOG: Final = 64 * 1024
_LEAST_MEMORY: Final = 1_000_000
_JOB_NAMES: Final = frozenset(JobOptions.__annotations__)
_REQUEST_NAMES: Final = frozenset(RequestOptions.__annotations__)
_RUN_BY: Final = frozenset({"launcher", "environment", "inputs"})  # fields of a submission, from which the need follows


def plan_job(
    command: Sequence[str | os.PathLike[str]] | str,
    options: JobOptions,
    *,
    base_env: Mapping[str, str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> JobPlan:
    """Raises UsageError for a value that can't be meant, NotSupported for a keyword of a later version, TypeError for
    an unknown one. base_env: what every job of this client gets; ``env`` and secrets win over it. environment:
    where the values of secrets are that are given by name alone."""
    _check_names(options, _JOB_NAMES, "submit")
    submission: JobSubmission = {"schema": _SCHEMA, "command": _command(command)}
    request = plan_request(cast("RequestOptions", {k: v for k, v in options.items() if k in _REQUEST_NAMES - _RUN_BY}))
    if request:
        submission["request"] = request
    if options.get("launcher"):
        submission["launcher"] = options["launcher"]
    if options.get("environment"):
        submission["environment"] = options["environment"]
    own_env, secrets_given = options.get("env", {}), options.get("secrets", ())
    env = {name: value for name, value in base_env.items() if name not in secrets_given} | dict(own_env)
    if env:
        submission["env"] = env
    if options.get("inputs"):
        submission["inputs"] = _inputs(options["inputs"])
        check_inputs(submission["inputs"], env=env)
    if options.get("name"):
        submission["name"] = options["name"]
    if options.get("tags"):
        submission["tags"] = dict(options["tags"])
    if options.get("priority"):
        submission["priority"] = options["priority"]
    if options.get("outputs"):
        submission["outputs"] = list(options["outputs"])
    if not options.get("keep_outputs", True):
        submission["keep_outputs"] = False
    if "retries" in options:
        submission["retries"] = _at_least(options["retries"], 0, "retries")
    if options.get("retry_on"):
        submission["retry_on"] = options["retry_on"]
    timeout = options.get("timeout")
    if timeout is not None:
        submission["timeout_ms"] = _at_least(_milliseconds(timeout, "timeout"), 1, "timeout")
    if "grace" in options:
        submission["grace_ms"] = _milliseconds(options["grace"], "grace")
    if "keep_for" in options:
        submission["keep_for_ms"] = _milliseconds(options["keep_for"], "keep_for")
    if options.get("exclusive"):
        submission["exclusive"] = True
    if not options.get("wait", True):
        submission["wait"] = False
    if options.get("pids"):
        submission["pids"] = _at_least(options["pids"], 1, "pids")
    if options.get("nice"):
        submission["nice"] = _at_least(options["nice"], 0, "nice")
    if options.get("pin_cores"):
        submission["pin_cores"] = True
    if options.get("log_limit"):
        submission["log_limit_bytes"] = _enough(_size(options["log_limit"], "log_limit"), _LEAST_LOG, "log_limit")
    if options.get("split_streams"):
        submission["split_streams"] = True
    if options.get("grant"):
        check_grant(options["grant"])
        submission["grant"] = options["grant"]
    if options.get("after"):
        submission["after"] = _after(options["after"])
    if options.get("array", "") != "":
        count, limit = parse_array(str(options["array"]))
        submission["array"] = count
        if limit:
            submission["array_limit"] = limit
    _check_text(submission)
    secrets = _secrets(secrets_given, own_env, environment)
    if secrets:
        submission["secrets"] = secrets
    check_environment(env, secrets)
    source = options.get("source")
    return JobPlan(
        submission,
        None if source is None else os.fspath(source),
        tuple(options.get("include", ())),
        tuple(options.get("exclude", ())),
        _key(options.get("idempotency_key")),
    )


def plan_request(options: RequestOptions) -> "RequestFields":
    """Raises like ``plan_job``. What the values mean together is the control plane's to judge."""
    _check_names(options, _REQUEST_NAMES, "explain")
    fields: RequestFields = {}
    accelerators = _words(options.get("accelerator", ()))
    if accelerators:
        for kind in accelerators:
            if kind not in _KNOWN_ACCELERATORS:
                raise UsageError(f"accelerator: {kind!r} is unknown", hint=f"one of {', '.join(_KNOWN_ACCELERATORS)}")
        fields["accelerators"] = accelerators
    if "devices" in options:
        fields["devices"] = _at_least(options["devices"], 0, "devices")
    models = _words(options.get("device_model", ()))
    if models:
        fields["device_models"] = models
    if "device_memory" in options:
        fields["device_memory_bytes"] = _size(options["device_memory"], "device_memory")
    if options.get("compute_capability"):
        fields["compute_capability"] = options["compute_capability"]
    frameworks = options.get("frameworks", ())
    if isinstance(frameworks, str):
        frameworks = [frameworks]
    if isinstance(frameworks, Mapping):
        frameworks = [name + specifier for name, specifier in frameworks.items()]
    if frameworks:
        fields["frameworks"] = list(frameworks)
    if "cpus" in options:
        fields["cpus"] = _at_least(options["cpus"], 1, "cpus")
    if "memory" in options:
        fields["memory_bytes"] = _enough(_size(options["memory"], "memory"), _LEAST_MEMORY, "memory")
    if "disk" in options:
        fields["disk_bytes"] = _size(options["disk"], "disk")
    if options.get("labels"):
        fields["labels"] = dict(options["labels"])
    if options.get("worker"):
        fields["worker"] = options["worker"]
    if options.get("zone"):
        fields["zone"] = options["zone"]
    if options.get("region"):
        fields["region"] = options["region"]
    if options.get("network_group"):
        fields["network_group"] = options["network_group"]
    if options.get("resources"):
        fields["resources"] = _counts(options["resources"])
    launcher, environment = options.get("launcher", ""), options.get("environment", "")
    capabilities = [f"launcher:{launcher}"] if launcher not in ("", DEFAULT_LAUNCHER) else []
    capabilities += [f"environment:{environment}"] if environment not in ("", DEFAULT_ENVIRONMENT) else []
    for capability in capabilities:
        check_capability(capability)
    if options.get("inputs"):
        capabilities += check_inputs(_inputs(options["inputs"]))
    if capabilities:
        fields["capabilities"] = list(dict.fromkeys(capabilities))
    return fields


def check_submission(submission: "JobSubmission") -> None:
    """Judge a submission as the control plane will, before a source is sent for nothing. Raises UsageError's kin."""
    from gpulayer.wire.convert import spec_from_wire  # noqa: PLC0415 - only worth its import beside a transfer

    spec_from_wire(submission)


def _check_text(value: object, where: str = "") -> None:
    """Arguments and names of files can be bytes that no text stands for; JSON carries text. Raises UsageError."""
    match value:
        case dict():
            for key, item in value.items():
                _check_text(key, where)
                _check_text(item, f"{where}.{key}" if where else str(key))
        case list():
            for item in value:
                _check_text(item, where)
        case str() if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise UsageError(
                f"{where}: {value[:60]!a} is not UTF-8 text",
                hint="rename what it names; or ship it with --source, and let a script there say it",
            )


def _secrets(
    given: Mapping[str, str] | Sequence[str], env: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    if isinstance(given, str):
        raise UsageError("secrets: give a list of names, or a dictionary of values by name")
    if not isinstance(given, Mapping):
        for name in given:
            if name not in environment:
                raise UsageError(
                    f"secrets: {shown_name(name)!r} is not set here", hint="set the variable, or give its value"
                )
        given = {name: environment[name] for name in given}
    for name, value in given.items():
        if not isinstance(value, str):
            raise UsageError(f"secrets: {shown_name(name)} must be text, not {type(value).__name__}")
    check_secrets(given, env=env)
    return {name: Secret(value) for name, value in given.items()}


def _key(text: str | None) -> str:
    """It travels as a header. An empty one was meant to be something (a variable that is not set), so it is refused."""
    if text is None:
        return secrets.token_hex(16)
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise UsageError(
            f"idempotency_key: {text[:60]!a} must be printable ASCII, not empty, with no space at its ends",
            hint="a hash or a UUID of what makes the job the same job is a good key",
        )
    return text


def _check_names(options: Mapping[str, object], known: frozenset[str], function: str) -> None:
    for name in options:
        if name in known:
            continue
        if name in LATER_OPTIONS:
            raise NotSupported(f"{name}= comes with a later version", hint=f"{function} without it")
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def _command(command: Sequence[str | os.PathLike[str]] | str) -> list[str]:
    if isinstance(command, str):
        raise UsageError(
            "command: give a list, one item an argument",
            hint=f"['bash', '-c', {command!r}] lets a shell read it",
        )
    words = [os.fspath(word) for word in command]
    if not words:
        raise UsageError("command: there is nothing to run", hint="give a list like ['./render.sh', '--fast']")
    return words


def _words(value: str | Sequence[str]) -> list[str]:
    texts = value.split(",") if isinstance(value, str) else list(value)
    return [text.strip() for text in texts if text.strip()]


def _size(value: int | str, what: str) -> int:
    return parse_bytes(value, what=what) if isinstance(value, str) else _at_least(value, 0, what)


def _enough(size: int, least: int, what: str) -> int:
    """0 says nothing; less than the least is a unit forgotten."""
    if 0 < size < least:
        raise UsageError(
            f"{what}: {size} bytes is less than {format_bytes(least)}", hint="write it with its unit: 16GB, 512MB"
        )
    return size


def _milliseconds(value: float | str, what: str) -> int:
    return parse_duration_ms(value, what=what) if isinstance(value, str) else _at_least(int(value * 1000), 0, what)


def _after(given: "HasId | str | Sequence[HasId | str]") -> list[str]:
    items = [given] if isinstance(given, str) or not isinstance(given, Sequence) else given
    found: list[str] = []
    for item in items:
        text: object = item if isinstance(item, str) else getattr(item, "id", None)
        if not isinstance(text, str):
            raise UsageError(f"after: {item!r} is no job", hint=AFTER_EXAMPLE)
        parse_after(text)
        found.append(text)
    if len(found) > MAX_AFTER:
        raise UsageError(f"after: {len(found):,} jobs; {MAX_AFTER} at most", hint="let one job come after some of them")
    return found


def _counts(resources: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(resources, Mapping):
        raise UsageError("resources: give a dictionary of numbers by name", hint='resources={"licence": 1}')
    return {check_resource(name): _at_least(count, 1, f"resources.{name}") for name, count in resources.items()}


def _inputs(given: Mapping[str, str]) -> dict[str, str]:
    """A path is text, too: what is wrong with it is said of the text."""
    if not isinstance(given, Mapping):
        raise UsageError("inputs: give a dictionary of URIs by name", hint='inputs={"data": "file:///mnt/data"}')
    found: dict[str, str] = {}
    for name, uri in given.items():
        text: object = os.fspath(uri) if isinstance(uri, os.PathLike) else uri
        if not isinstance(text, str):
            raise UsageError(f"inputs.{name}: a URI is text, not {type(uri).__name__}")
        found[str(name)] = text
    return found


def _at_least(value: int, least: int, what: str) -> int:
    if value < least:
        raise UsageError(f"{what}: {value} is less than {least}", hint=f"give {least} or more")
    return value
