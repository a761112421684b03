"""The worker's side of the wire: enrolment, sessions, reports, commands; and the worker record."""

from typing import Annotated, Literal, NotRequired

from annotated_types import Ge, Le, MaxLen, MinLen
from typing_extensions import TypedDict

from gpulayer.wire.plugins import PluginFields

__all__ = [
    "AssignCommand",
    "Command",
    "CommandsReply",
    "Credentials",
    "DeviceFields",
    "EnrolBody",
    "EnrolReply",
    "FrameworkFields",
    "LimitsFields",
    "LocalityFields",
    "LogReply",
    "OutcomeFields",
    "OutputsAccepted",
    "OutputsBody",
    "ReportBody",
    "ReportItem",
    "ReportReply",
    "RevokeCommand",
    "SessionBody",
    "SessionReply",
    "StopCommand",
    "WorkerFactsFields",
    "WorkerPage",
    "WorkerRecord",
]

Text = Annotated[str, MaxLen(4096)]
Counter = Annotated[int, Ge(0), Le(2**62)]
Word = Annotated[str, MaxLen(64)]
Bytes = Annotated[int, Ge(0), Le(2**60)]
Schema = Annotated[int, Ge(0), Le(1_000_000)]
Status = Annotated[int, Ge(-(2**31)), Le(2**32 - 1)]


class DeviceFields(TypedDict):
    """See ``spec.machine.Device``. None: not known. ``links``: link name by the peer's uuid. Of what may be left out,
    ``memory_taken_bytes`` is 0 then, ``is_memory_shared`` false, and the rest not known."""

    uuid: Text
    index: Annotated[int, Ge(0), Le(100_000)]
    kind: Word
    model: Text
    memory_bytes: Bytes | None
    memory_free_bytes: Bytes | None
    compute_capability: Text
    state: Word
    reason: Text
    links: Annotated[dict[Text, Text], MaxLen(1024)]
    memory_taken_bytes: NotRequired[Bytes]
    pci_address: NotRequired[Word]
    driver: NotRequired[Word]
    runtime: NotRequired[Word]
    parent: NotRequired[Text]
    is_memory_shared: NotRequired[bool]
    compute_mode: NotRequired[Word]
    ecc: NotRequired[bool]
    numa_node: NotRequired[Annotated[int, Ge(0), Le(1_000_000)]]
    cores: NotRequired[Text]
    temperature_c: NotRequired[Annotated[int, Ge(-100), Le(1_000)]]
    use_percent: NotRequired[Annotated[int, Ge(0), Le(100)]]


class FrameworkFields(TypedDict):
    """``usable``: it computed on ``accelerator`` when checked; else ``reason`` says why not. ``build``: what it was
    built for; ``architectures``: of devices, compiled in; left out where they are not known. ``pending``: not checked
    yet, left out where it is; ``reason`` says what the check waits for, empty: for its end. ``failed_on``: by uuid, why
    it does not compute on devices of a kind on which it is usable, empty where it is to be tried again there; left out
    where it does on all."""

    name: Text
    version: Text
    accelerator: Word
    usable: bool
    reason: Text
    build: NotRequired[Word]
    architectures: NotRequired[Annotated[list[Word], MaxLen(64)]]
    pending: NotRequired[bool]
    failed_on: NotRequired[Annotated[dict[Text, Text], MaxLen(1024)]]


class LocalityFields(TypedDict):
    """Empty text where nobody said."""

    zone: Text
    region: Text
    network_group: Text


class WorkerFactsFields(TypedDict):
    """``cpus`` and ``memory_bytes`` in all, ``disk_bytes`` free for work folders. None: not known."""

    platform: Text
    version: Text
    cpus: Annotated[int, Ge(1), Le(100_000)]
    memory_bytes: Bytes
    disk_bytes: Bytes | None
    devices: Annotated[list[DeviceFields], MaxLen(1024)]
    frameworks: Annotated[list[FrameworkFields], MaxLen(256)]
    labels: Annotated[dict[Text, Text], MaxLen(64)]
    locality: LocalityFields
    enforces: NotRequired[Annotated[list[Text], MaxLen(16)]]
    addresses: NotRequired[Annotated[list[Text], MaxLen(64)]]
    resources: NotRequired[Annotated[dict[Word, Annotated[int, Ge(0), Le(1_000_000)]], MaxLen(64)]]
    capabilities: NotRequired[Annotated[list[Annotated[str, MaxLen(100)]], MaxLen(256)]]
    cpu_model: NotRequired[Text]
    missing: NotRequired[Annotated[dict[Word, Text], MaxLen(16)]]
    python: NotRequired[Text]
    python_version: NotRequired[Word]


class EnrolBody(TypedDict):
    """Exchanges a join token (in the Authorization header) for an identity. ``public_key``: Ed25519, 64 hex.

    signature: proof of possession: Ed25519 over ``gpulayer-enrol:<join token id>:<name>``, 128 hex characters. Without
    it, whoever knows a worker's public key and has a join token could change that worker's facts and labels.
    """

    schema: Schema
    name: Annotated[str, MinLen(1), MaxLen(100)]
    public_key: Annotated[str, MinLen(64), MaxLen(64)]
    signature: Annotated[str, MinLen(128), MaxLen(128)]
    facts: WorkerFactsFields


class EnrolReply(TypedDict):
    """``name`` is the one that the worker has here: an identity that enrols again keeps its first."""

    worker_id: str
    name: str


class SessionBody(TypedDict):
    """Proof of possession: Ed25519 over ``gpulayer-session:<worker id>:<counter>:<boot>:<instance>``, 128 hex
    characters; agents of before sign without the last two, and send neither.

    ``boot`` counts the starts of this agent, ``instance`` names its process. A session is for the newest start alone,
    and ends those of earlier ones; any other is answered 409 with ``details.superseded``: it has lost its place.
    ``counter`` grows with every request of this identity, so that a signature can't be used twice: one that is not
    higher than the last is answered 409, and ``details.counter`` names that. Sign again above it.
    """

    schema: Schema
    counter: Counter
    signature: Annotated[str, MinLen(128), MaxLen(128)]
    boot: NotRequired[Counter | None]
    instance: NotRequired[Annotated[str, MinLen(1), MaxLen(64)] | None]


class SessionReply(TypedDict):
    """``token`` lives ``expires_in_s``; a report at least every ``heartbeat_ms`` keeps the worker's leases."""

    token: str
    expires_in_s: int
    incarnation: str
    lease_ttl_ms: int
    heartbeat_ms: int


class OutcomeFields(TypedDict):
    """How one node ended; see ``spec.outcome``. ``evidence`` is for people; ``ran_ms``: absent where nobody knows."""

    ended_by: Word
    exit_code: Status | None
    signal: Status | None
    evidence: Annotated[str, MaxLen(65_536)]
    blame: Word
    ran_ms: NotRequired[Counter | None]


class ReportItem(TypedDict):
    """Where one node of an attempt is. States only move forward; a repeated or stale item changes nothing.

    ``started_ago_ms``: of one that ended before its start was reported: how long before ``sent_ms`` it started.
    """

    epoch: Counter
    node: Annotated[int, Ge(0), Le(100_000)]
    state: Literal["staging", "running", "ending", "ended"]
    outcome: NotRequired[OutcomeFields | None]
    outputs: NotRequired[Annotated[str, MaxLen(64)] | None]
    started_ago_ms: NotRequired[Counter | None]


class ReportBody(TypedDict):
    """One report. ``boot`` counts starts of this agent, ``seq`` reports of this boot.

    ``recovered``: the epochs that the agent still knew when it started, sent until the first answer of a boot:
    an attempt that the control plane believes there and that is not listed is lost.
    ``unstarted``: those of them whose program has not been started: an attempt that the control plane knows to run is
    lost, because this agent runs in a copy, or an older state, of its folder.
    ``unsure``: its machine was started anew since the start of the agent before this one, or this is another machine
    or another folder, as far as is known: an attempt that a start before it was told of, and that is not in
    ``recovered``, is lost, because it may have begun where nobody can tell of it any more.
    ``holding``: all epochs the agent holds now; what the control plane no longer lends it comes back as ``void``.
    ``sent_ms``: the agent's monotonic clock at sending, from which it counts its own leases.
    ``stopping``: it ends what it holds and starts nothing more; sent before anything else of that.
    ``leaving``: it holds nothing and goes.
    ``plugins``: what it knows of its plugins, with the first report of a session and whenever that has changed.
    """

    schema: Schema
    boot: Counter
    seq: Counter
    sent_ms: Counter
    holding: Annotated[list[Counter], MaxLen(20_000)]
    recovered: NotRequired[Annotated[list[Counter], MaxLen(20_000)] | None]
    unstarted: NotRequired[Annotated[list[Counter], MaxLen(20_000)] | None]
    unsure: NotRequired[bool]
    facts: NotRequired[WorkerFactsFields | None]
    stopping: NotRequired[bool]
    leaving: NotRequired[bool]
    plugins: NotRequired[Annotated[list[PluginFields], MaxLen(128)] | None]
    items: Annotated[list[ReportItem], MaxLen(20_000)]


class ReportReply(TypedDict):
    """Answered after commit. ``void``: epochs that are not this worker's any more: end and forget them."""

    seq: int
    void: list[int]


class LimitsFields(TypedDict):
    """See ``spec.limits.Limits``; 0: no limit."""

    cpus: int
    memory_bytes: int
    pids: int
    disk_bytes: int
    log_bytes: int
    nice: int
    pin_cores: bool


class AssignCommand(TypedDict):
    """Everything needed to run one node of an attempt. A worker may be lent more than it has room for: it starts them
    in the order of their epochs, as its own cores and memory allow.

    has_credentials: there are secrets or a token of the job's own, which its worker fetches when the program starts
    (``Credentials``) and keeps in memory alone."""

    type: Literal["assign"]
    epoch: int
    node: int
    job_id: str
    attempt: int
    command: list[str]
    env: dict[str, str]
    source: str | None
    devices: list[str]
    cpus: int
    memory_bytes: int
    outputs: list[str]
    keep_outputs: bool
    timeout_ms: int | None
    grace_ms: int
    keep_for_ms: int
    exclusive: bool
    limits: NotRequired[LimitsFields]
    split_streams: NotRequired[bool]
    has_credentials: NotRequired[bool]
    launcher: NotRequired[str]
    environment: NotRequired[str]
    inputs: NotRequired[dict[str, str]]
    resources: NotRequired[dict[str, int]]


class Credentials(TypedDict):
    """What one attempt may know, for its worker, as long as it holds the lease. token: None where none was granted."""

    secrets: dict[str, str]
    token: str | None


class StopCommand(TypedDict):
    """End the attempt; ``ended_by`` says why (cancel, preempted, worker_stopped, …).

    ``node``: the one that is meant; None: all that this worker has of the epoch.
    """

    type: Literal["stop"]
    epoch: int
    ended_by: str
    grace_ms: int
    node: NotRequired[int | None]


class RevokeCommand(TypedDict):
    """Give the attempt back if its program has not started: it ends, ``preempted``. Else it runs on."""

    type: Literal["revoke"]
    epoch: int


Command = AssignCommand | StopCommand | RevokeCommand


class CommandsReply(TypedDict):
    """``cursor`` acknowledges these commands when it comes back as ``after``. A command may come twice."""

    cursor: str
    commands: list[Command]


class LogReply(TypedDict):
    """``offset``: how many bytes of this log the control plane holds."""

    offset: int


class OutputsBody(TypedDict):
    """The root of a finished attempt's output tree, all of whose objects are uploaded."""

    tree: Annotated[str, MinLen(64), MaxLen(64)]


class OutputsAccepted(TypedDict):
    """What the tree holds, all of it here."""

    files: int
    size_bytes: int


class WorkerRecord(TypedDict):
    """``cpus`` and ``memory_bytes`` in all, ``cpus_free`` of now. ``leases``: the ``epoch`` of each attempt that is
    there. ``device_jobs``: by the uuid of a device, the id of the job that has it.
    ``enforces``: the limits that it can hold a job to. ``addresses``: numeric, where others reach it, best first.
    ``resources``: how many in all of what it counts by name, ``resources_free`` of now. ``capabilities``: what its
    plugins add, as ``launcher:NAME``, ``environment:NAME`` and ``stager:SCHEME``. ``refused``: that an agent was which
    comes with this worker's identity, and why. ``missing``: by kind of device, why none of that kind can be used.
    """

    id: str
    name: str
    state: str
    last_seen_at: str | None
    version: str
    platform: str
    labels: dict[str, str]
    locality: LocalityFields
    cpus: int
    cpus_free: int
    memory_bytes: int
    disk_bytes: int | None
    devices: list[DeviceFields]
    frameworks: list[FrameworkFields]
    enforces: list[str]
    addresses: list[str]
    resources: dict[str, int]
    resources_free: dict[str, int]
    capabilities: list[str]
    leases: list[int]
    device_jobs: NotRequired[Annotated[dict[Text, Text], MaxLen(1024)]]
    refused: NotRequired[str]
    cpu_model: NotRequired[str]
    missing: NotRequired[dict[str, str]]
    python: NotRequired[str]
    python_version: NotRequired[str]


class WorkerPage(TypedDict):
    """By name. ``next`` is None: there is one page."""

    workers: list[WorkerRecord]
    next: str | None
