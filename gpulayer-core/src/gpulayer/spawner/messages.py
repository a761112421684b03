"""What agent and spawner say to each other: one JSON object a line, over a UNIX stream socket.

The agent opens with ``Hello`` and is answered ``Welcome``, or ``Failed`` with code ``protocol`` when the versions
differ. A spawner speaks one version, for as long as it lives; an agent speaks all of ``SPOKEN``, so that a new one can
take over what runs under an old spawner: it opens again with the version that the refusal names. Then it sends
requests, each with an ``id`` that its one reply repeats; the spawner pushes events, which have none, to the connection
that said ``role="agent"`` last. Readers ignore fields they do not know; a field that is new in a version has a default.
Text that is no UTF-8 (arguments, paths) travels as surrogate escapes.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final

__all__ = [
    "MAX_REQUEST_BYTES",
    "PROTOCOL_VERSION",
    "SPOKEN",
    "BadMessage",
    "Done",
    "ExitRecord",
    "Exited",
    "Extend",
    "Failed",
    "Forget",
    "Hello",
    "Kill",
    "ListJobs",
    "Message",
    "Output",
    "Ping",
    "Row",
    "Shutdown",
    "Signal",
    "Spawn",
    "SpawnFailed",
    "SpawnLimits",
    "Spawned",
    "Stalled",
    "Superseded",
    "Table",
    "Welcome",
    "decode",
    "decode_record",
    "encode",
    "encode_record",
    "version_mismatch",
]

PROTOCOL_VERSION: Final = 1
SPOKEN: Final = (1,)
MAX_REQUEST_BYTES: Final = 16 * 1024 * 1024  # a command line and an environment are at most a few megabytes


class BadMessage(ValueError):
    """A line that is no message of this protocol; says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How a job ended; also the content of the file at ``Spawn.exit_path``.

    reason: ``exited`` (exit_code is the program's own), ``signaled`` (signal is set), ``spawn_failed`` (it never ran;
    exit_code is 126 or 127 as a shell's where the command itself is at fault, else None), ``expired`` (its agent did
    not extend its time, so the spawner ended it), ``stopped`` (the spawner was told to end, and ended it) or
    ``spawner_lost`` (the spawner or the host died under it: neither code nor signal is the program's).
    tree_clean: nothing of the job's tree is left. survivors: the processes that could not be ended.
    log_bytes: size of the spool file, as far as its writer knows. log_complete: all that was written is in it.
    err_bytes: size of the second spool file, where stderr has one. left_out_bytes: output that the limit of the log
    did not let in, or a disk that stayed full. unwritten_bytes: of them, for each stream, those that no line in its
    spool tells of. cut_bytes: of what was in the spools somebody else has cut so much off.
    oom_kills: how many processes of the tree the kernel killed for want of memory; None: not known.
    memory_peak_bytes: the most that the tree used; None: not known. ran_ms: from its start to the end of the main
    process; None: not known.
    cpu_s, max_rss_bytes: of the main process and the children it waited for; the latter is never less than what the
    spawner itself held when it started the job (the kernel counts from before the exec).
    """

    key: str
    exit_code: int | None
    signal: int | None
    reason: str
    message: str
    ended_at_wall_ms: int
    log_bytes: int
    log_complete: bool
    tree_clean: bool
    survivors: tuple[int, ...] = ()
    cpu_s: float = 0.0
    max_rss_bytes: int = 0
    err_bytes: int = 0
    left_out_bytes: int = 0
    unwritten_bytes: tuple[int, ...] = ()
    cut_bytes: int = 0
    oom_kills: int | None = None
    memory_peak_bytes: int | None = None
    ran_ms: int | None = None


# Requests -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first line. role ``agent`` may do everything, gets the events, and supersedes the agent before it;
    ``observer`` may only list."""

    protocol: int
    role: str = "agent"


@dataclass(frozen=True, slots=True)
class SpawnLimits:
    """What the tree may use; 0: no limit. Held to it where this host has control groups, else left alone.

    cpus: processor time of so many cores. cpu_weight: share of a contended processor, in cores. pin_cores: how many
    cores to run on that no other pinned job of this spawner has. log_bytes: kept of each stream: the beginning, a line
    that says how much was left out, and the end.
    """

    cpus: int = 0
    cpu_weight: int = 1
    memory_bytes: int = 0
    pids: int = 0
    pin_cores: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a job; repeated with a known key it answers with what is known and starts nothing.

    key: 1–120 of ``A–Z a–z 0–9 . _ -``, not starting with a dot. env: complete; nothing is added or inherited;
    it may hold secrets, so nothing of it is written down or told.
    argv[0] without a slash is looked up on the PATH in ``env``. log_path: spool file, created or appended to.
    exit_path: where the exit record is written, whole or not at all. These two and cwd are absolute.
    marker: a number below 2^59 by which the tree is recognised; unique on the host; None: the spawner draws one.
    kill_by_ms: time of a clock that runs through suspend (CLOCK_BOOTTIME) at which the spawner ends the tree by itself,
    unless it is extended before: so a job that must not outlive its lease does not, whatever becomes of the agent.
    err_path: the spool file of stderr; None: it shares the pipe of stdout, in order. devices: UUIDs that no other
    spawner of this host may hold meanwhile.
    """

    id: int
    key: str
    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str] = field(repr=False)
    log_path: str
    exit_path: str
    marker: int | None = None
    nice: int = 0
    kill_by_ms: int | None = None
    err_path: str | None = None
    devices: tuple[str, ...] = ()
    limits: SpawnLimits = field(default_factory=SpawnLimits)


@dataclass(frozen=True, slots=True)
class Extend:
    """Move the time of ``Spawn.kill_by_ms``; nothing happens to a job that is ending or has ended."""

    id: int
    key: str
    kill_by_ms: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal once to each process of the job's tree; ``Done.count`` says to how many. None left: 0."""

    id: int
    key: str
    signum: int


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL the whole tree, again until nothing is left; ``Exited`` follows."""

    id: int
    key: str


@dataclass(frozen=True, slots=True)
class ListJobs:
    """Answered by ``Table``; all that an observer may ask."""

    id: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered by ``Done``: a sign of life."""

    id: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop what is known of an ended job; its spool and exit record stay. Unknown keys are no error."""

    id: int
    key: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End spawner and watchdog; refused with ``busy`` while jobs run, unless ``force``, which kills them first."""

    id: int
    force: bool = False


# Replies --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """watchdog_pid is None once the watchdog has died; the spawner then ends as soon as nothing runs.

    enforces: which limits it can hold jobs to: ``memory``, ``cpus``, ``pids``, ``cores``.
    """

    protocol: int
    pid: int
    watchdog_pid: int | None
    instance: str
    enforces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spawned:
    """pid is 0 for a job of a former spawner. existing: the key was known; exit: how it ended, if it did."""

    id: int
    key: str
    pid: int
    existing: bool = False
    exit: ExitRecord | None = None


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """exit_code: 126 or 127 where the command is at fault, None where the machine is (no memory, no work folder)."""

    id: int
    key: str
    errno: int
    message: str
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Done:
    """Carried out. count: see ``Signal``."""

    id: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """state: ``running``, ``ending`` (the program has ended; its tree or its output has not) or ``ended``."""

    key: str
    state: str
    pid: int
    started_at_wall_ms: int
    log_bytes: int
    marker: int | None
    exit: ExitRecord | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Every job that has not been forgotten, ended ones too."""

    id: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """code: ``protocol``, ``bad_request``, ``not_found``, ``busy``, ``forbidden``, ``internal``. id is 0 if unknown.

    speaks: with ``protocol``, the version that this spawner does speak.
    """

    id: int
    code: str
    message: str
    speaks: int = 0


# Events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exited:
    """record_written: the record lies at exit_path; False on a full disk, where it is tried again until it does."""

    record: ExitRecord
    record_written: bool = True


@dataclass(frozen=True, slots=True)
class Output:
    """The spool file of ``stream`` now holds ``log_bytes``; at most one per key, stream and 20 ms.

    stream: ``stderr`` for the spool at ``Spawn.err_path``, else ``stdout``.
    """

    key: str
    log_bytes: int
    stream: str = "stdout"


@dataclass(frozen=True, slots=True)
class Stalled:
    """A spool can't be written (disk full); the bytes wait in the pipe and it is tried again.

    is_draining: the program has ended; only what it wrote last waits.
    """

    key: str
    errno: int
    message: str
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another agent has connected; this connection is closed."""


Request = Hello | Spawn | Extend | Signal | Kill | ListJobs | Ping | Forget | Shutdown
Message = Request | Welcome | Spawned | SpawnFailed | Done | Table | Failed | Exited | Output | Stalled | Superseded

_TYPES: Final[dict[str, type[Message]]] = {
    "hello": Hello,
    "spawn": Spawn,
    "extend": Extend,
    "signal": Signal,
    "kill": Kill,
    "list": ListJobs,
    "ping": Ping,
    "forget": Forget,
    "shutdown": Shutdown,
    "welcome": Welcome,
    "spawned": Spawned,
    "spawn_failed": SpawnFailed,
    "done": Done,
    "table": Table,
    "failed": Failed,
    "exited": Exited,
    "output": Output,
    "stalled": Stalled,
    "superseded": Superseded,
}
_NAMES: Final = {kind: name for name, kind in _TYPES.items()}


def encode(message: Message) -> bytes:
    """One line, newline included."""
    return _ENCODER.encode({"type": _NAMES[type(message)], **_to_json(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in one line; raises ``BadMessage``."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise BadMessage(f"no JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadMessage("no JSON object")
    kind = _TYPES.get(str(data.get("type")))
    if kind is None:
        raise BadMessage(f"unknown type {data.get('type')!r}")
    message: Message = _parse(kind, data)
    return message


def encode_record(record: ExitRecord) -> bytes:
    """An exit record as the file at ``exit_path`` holds it."""
    return json.dumps(_to_json(record)).encode() + b"\n"


def decode_record(data: bytes) -> ExitRecord:
    """The record in such a file; raises ``BadMessage``."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise BadMessage(f"no JSON: {error}") from None
    record: ExitRecord = _parse(ExitRecord, content)
    return record


def version_mismatch(*, agent: int, spawner: int) -> str:
    """The one sentence both sides say when their versions differ."""
    return f"the agent speaks spawner protocol {agent}, the running spawner protocol {spawner}"


def _to_json(value: Any) -> dict[str, Any]:  # Any: a message or a part of one
    return {name: getattr(value, name) for name in value.__slots__}


_ENCODER: Final = json.JSONEncoder(default=_to_json)  # ``json.dumps`` makes one each time


def _parse(kind: type[Any], data: object) -> Any:  # Any: one of the classes above, as ``kind`` says
    if not isinstance(data, dict):
        raise BadMessage(f"{kind.__name__} is no JSON object")
    known = _FIELDS.get(kind)
    if known is None:  # once a class: a type like ``int | None`` is slow to look up
        known = _FIELDS[kind] = tuple(
            (one.name, _PARSERS[one.type], one.default is MISSING and one.default_factory is MISSING)
            for one in fields(kind)
        )
    values: dict[str, Any] = {}
    for name, parse, is_needed in known:
        if name in data:
            try:
                values[name] = parse(data[name])
            except (TypeError, ValueError) as error:
                raise BadMessage(f"{kind.__name__}.{name}: {error}") from None
        elif is_needed:
            raise BadMessage(f"{kind.__name__}.{name} is missing")
    return kind(**values)


_FIELDS: Final[dict[type[Any], tuple[tuple[str, Callable[[Any], Any], bool], ...]]] = {}


def _exactly(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
        return value

    return parse


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"number expected, not {type(value).__name__}")
    return float(value)


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parse(value)


def _several(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: tuple(parse(item) for item in _exactly(list)(value))


def _text_map(value: Any) -> dict[str, str]:
    text = _exactly(str)
    return {text(name): text(item) for name, item in _exactly(dict)(value).items()}


def _record(value: Any) -> ExitRecord:
    record: ExitRecord = _parse(ExitRecord, value)
    return record


_PARSERS: Final[dict[Any, Callable[[Any], Any]]] = {
    int: _exactly(int),
    str: _exactly(str),
    bool: _exactly(bool),
    float: _number,
    int | None: _optional(_exactly(int)),
    str | None: _optional(_exactly(str)),
    tuple[int, ...]: _several(_exactly(int)),
    tuple[str, ...]: _several(_exactly(str)),
    dict[str, str]: _text_map,
    SpawnLimits: lambda value: _parse(SpawnLimits, value),
    ExitRecord: _record,
    ExitRecord | None: _optional(_record),
    tuple[Row, ...]: _several(lambda value: _parse(Row, value)),
}
