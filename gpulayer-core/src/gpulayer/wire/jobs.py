"""Jobs on the wire: submissions, and the records that people and scripts read."""

from typing import Annotated, Any, Final, NotRequired, Required

from annotated_types import Ge, Le, MaxLen, MinLen
from typing_extensions import TypedDict

from gpulayer.spec.after import MAX_AFTER
from gpulayer.spec.array import MAX_ELEMENTS

__all__ = [
    "MAX_BATCH",
    "MAX_COMMAND_ITEMS",
    "ArrayRecord",
    "AttemptNodeRecord",
    "AttemptRecord",
    "BatchReply",
    "BatchSubmission",
    "CancelBody",
    "ConsideredRecord",
    "DecisionRecord",
    "ElementPage",
    "ElementRecord",
    "EventPage",
    "EventRecord",
    "ExplainBody",
    "ExplainReply",
    "JobPage",
    "JobRecord",
    "JobSubmission",
    "OutputRecord",
    "OutputsReply",
    "PlaceRecord",
    "ProblemRecord",
    "ReasonRecord",
    "RequestFields",
    "SharesRecord",
    "SourceFields",
    "SubmitterRecord",
    "VerdictReasonRecord",
    "VerdictRecord",
    "WaitRecord",
    "WhyReply",
]

MAX_BATCH = 20_000
MAX_COMMAND_ITEMS = 10_000
_MS_LIMIT = 10 * 365 * 86_400_000

Text = Annotated[str, MaxLen(4096)]
Word = Annotated[str, MaxLen(64)]
Schema = Annotated[int, Ge(0), Le(1_000_000)]
Count = Annotated[int, Ge(0), Le(1_000_000)]
Bytes = Annotated[int, Ge(0), Le(2**60)]
Milliseconds = Annotated[int, Ge(0), Le(_MS_LIMIT)]


class RequestFields(TypedDict, total=False):
    """What it needs; an absent field means the default of ``spec.Request``."""

    accelerators: Annotated[list[Word], MinLen(1), MaxLen(8)]
    devices: Count
    device_models: Annotated[list[Text], MaxLen(32)]
    device_memory_bytes: Bytes
    compute_capability: Text
    frameworks: Annotated[list[Text], MaxLen(32)]
    cpus: Annotated[int, Ge(1), Le(100_000)]
    memory_bytes: Bytes
    disk_bytes: Bytes
    labels: Annotated[dict[Text, Text], MaxLen(64)]
    worker: Text
    zone: Text
    region: Text
    network_group: Text
    resources: Annotated[dict[Word, Annotated[int, Ge(1), Le(1_000_000)]], MaxLen(32)]
    capabilities: Annotated[list[Annotated[str, MaxLen(100)]], MaxLen(64)]


class SourceFields(TypedDict):
    """A tree that is already uploaded, by its root digest."""

    digest: Annotated[str, MinLen(64), MaxLen(64)]
    files: Count
    size_bytes: Bytes
    commit: NotRequired[Text]
    dirty: NotRequired[bool]


class JobSubmission(TypedDict, total=False):
    """A job as it is sent and as it is stored. ``schema`` is the version of this form.

    secrets: values by name of variable, in what is sent alone; what is stored has ``secret_names``, and the values lie
    sealed elsewhere. grant: what the job's own token may do: ``own`` (read its own record, log and files) or ``submit``
    (also submit jobs of the same owner); empty: it gets none. launcher, environment: names of what a plugin adds on
    workers. inputs: URIs by name, fetched by the worker. after: jobs that have to succeed first, by id, unique prefix
    or unique name, in a batch also by the name of another job of it; with ``:any`` they only have to end. What is
    stored has ids. array: so many elements, each told its number; array_limit: of which so many are under way at once.
    """

    schema: Required[Schema]
    command: Required[Annotated[list[Annotated[str, MaxLen(1_000_000)]], MinLen(1), MaxLen(MAX_COMMAND_ITEMS)]]
    kind: Word
    request: RequestFields
    name: Annotated[str, MaxLen(200)]
    tags: Annotated[dict[Text, Text], MaxLen(64)]
    priority: Annotated[int, Ge(-1_000_000), Le(1_000_000)]
    env: Annotated[dict[Text, Annotated[str, MaxLen(1_000_000)]], MaxLen(10_000)]
    source: SourceFields | None
    outputs: Annotated[list[Text], MaxLen(256)]
    keep_outputs: bool
    retries: Annotated[int, Ge(0), Le(1000)]
    retry_on: Word
    timeout_ms: Annotated[int, Ge(1), Le(_MS_LIMIT)] | None
    grace_ms: Milliseconds
    keep_for_ms: Milliseconds
    exclusive: bool
    wait: bool
    pids: Annotated[int, Ge(0), Le(4_000_000)]
    nice: Annotated[int, Ge(0), Le(19)]
    pin_cores: bool
    log_limit_bytes: Annotated[int, Ge(65_536), Le(2**50)]
    split_streams: bool
    secrets: Annotated[dict[Text, Annotated[str, MinLen(1), MaxLen(65_536)]], MaxLen(64)]
    secret_names: Annotated[list[Text], MaxLen(64)]
    grant: Word
    launcher: Word
    environment: Word
    inputs: Annotated[dict[Word, Text], MaxLen(64)]
    after: Annotated[list[Annotated[str, MinLen(1), MaxLen(204)]], MaxLen(MAX_AFTER)]
    array: Annotated[int, Ge(1), Le(MAX_ELEMENTS)]
    array_limit: Annotated[int, Ge(1), Le(MAX_ELEMENTS)]


class BatchSubmission(TypedDict):
    """Accepted all together or not at all."""

    schema: Schema
    jobs: Annotated[list[JobSubmission], MinLen(1), MaxLen(MAX_BATCH)]


class ProblemRecord(TypedDict):
    """What a plugin's job check said. ``severity``: ``error`` or ``warning``. ``field``: of the submission, if any."""

    plugin: str
    severity: str
    field: str
    message: str
    hint: str


class BatchReply(TypedDict):
    """Ids in the order of the submission. ``warnings``: of job checks, each said once."""

    ids: list[str]
    warnings: NotRequired[list[ProblemRecord]]


class ReasonRecord(TypedDict):
    """Why a job is where it is. ``message`` is for people; ``code`` may be compared."""

    code: str
    message: str


class SubmitterRecord(TypedDict):
    """``client``: the program that sent it, as that calls itself."""

    token_id: str
    name: str
    client: str


class OutputRecord(TypedDict):
    """``path`` is relative, with slashes. ``size``: bytes. ``digest``: of the content, to fetch it by."""

    path: str
    size: int
    digest: str


class AttemptNodeRecord(TypedDict):
    """``exit_code`` and ``signal`` are None while it runs, and where the program never ran."""

    worker: str
    devices: list[str]
    exit_code: int | None
    signal: int | None


class AttemptRecord(TypedDict):
    """One try. ``number`` counts from 1; ``epoch`` names it for ever. Times are ISO text in UTC.

    log_tail, stderr_tail: the last lines of the log, and of standard error where that was kept apart; of an attempt
    that ended without success, in the record of one job alone. index: of an array, the element that it is of.
    """

    number: int
    epoch: int
    state: str
    nodes: list[AttemptNodeRecord]
    started_at: str | None
    ended_at: str | None
    ended_by: str | None
    blame: str | None
    evidence: str
    log_tail: NotRequired[str]
    stderr_tail: NotRequired[str]
    index: NotRequired[int]


class ArrayRecord(TypedDict):
    """``states``: how many elements are in each state; those in which none is are left out. ``limit``: None for none.
    ``first_failed``: the number of the first that has ended without success."""

    count: int
    limit: int | None
    states: dict[str, int]
    first_failed: int | None


class ElementRecord(TypedDict):
    """One element of an array. ``worker``: where its last attempt is or was; empty before the first. ``attempts``: how
    many it has had."""

    index: int
    state: str
    attempts: int
    worker: str
    started_at: str | None
    ended_at: str | None
    exit_code: int | None
    signal: int | None
    ended_by: str | None
    output_tree: str | None


class ElementPage(TypedDict):
    """By number. ``next``: the ``after`` of the following page, None on the last."""

    elements: list[ElementRecord]
    next: int | None


class JobRecord(TypedDict):
    """``options``: how it runs, as far as the submission said so and by its names. ``placement``: why the latest
    attempt runs where it runs. ``verdicts``: of a rejected job, else empty.
    ``split_streams``: stdout and stderr are two logs. ``secrets``: names, never values. ``warnings``: of job checks, in
    the answer to the submission alone. ``array``: of an array, whose ``attempts`` are those of its first elements; with
    ``index`` all of it is about that element alone. ``clashes``: so many files of an array have the name of a file of
    an earlier element, and are not among its outputs. ``waits``: of a queued job, in the record of one job alone."""

    id: str
    name: str
    kind: str
    state: str
    reason: ReasonRecord | None
    command: list[str]
    request: RequestFields
    options: dict[str, Any]  # Any: as the fields of a submission
    source: SourceFields | None
    tags: dict[str, str]
    priority: int
    submitted_by: SubmitterRecord
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    attempts: list[AttemptRecord]
    exit_code: int | None
    signal: int | None
    ended_by: str | None
    outputs: list[OutputRecord]
    output_tree: str | None
    placement: str | None
    split_streams: bool
    secrets: list[str]
    verdicts: "list[VerdictRecord]"
    warnings: NotRequired[list[ProblemRecord]]
    array: NotRequired[ArrayRecord]
    index: NotRequired[int]
    clashes: NotRequired[int]
    waits: "NotRequired[WaitRecord]"


class JobPage(TypedDict):
    """Newest first. ``next``: the cursor of the following page, None on the last. ``outputs`` of each is empty."""

    jobs: list[JobRecord]
    next: str | None


class OutputsReply(TypedDict):
    """``tree``: the root digest of the output tree, None where nothing came home."""

    tree: str | None
    outputs: list[OutputRecord]


class EventRecord(TypedDict):
    """``seq`` orders events; ``at`` is ISO text in UTC, for people."""

    seq: int
    at: str
    event: str
    details: dict[str, Any]  # Any: each event documents its own JSON fields


class EventPage(TypedDict):
    """``next``: the ``after`` of the following page; unchanged where there was nothing new."""

    events: list[EventRecord]
    next: int


class CancelBody(TypedDict, total=False):
    """``grace_ms`` overrides the job's own."""

    grace_ms: Milliseconds


class VerdictReasonRecord(TypedDict):
    """``wanted`` and ``has``: the request's side and the worker's, as text; empty where there are none."""

    code: str
    message: str
    wanted: str
    has: str


class VerdictRecord(TypedDict):
    """``until``: ISO text in UTC, when at the latest enough of what runs there has reached its time limit, grace time
    included; None where that is not known. ``fits_with``: request fields and the values with which this worker would
    fit; empty if nothing simple helps."""

    worker: str
    verdict: str
    reasons: list[VerdictReasonRecord]
    busy_with: list[str]
    until: str | None
    fits_with: dict[str, str]
    score: float | None


class WaitRecord(TypedDict):
    """``ahead``: how many jobs stand before it in the queue, and ``first_ahead`` is the first of all. ``starts_by``:
    where none does, when at the latest enough workers are free by time limits, if no job of higher priority comes; None
    where that is not known. ``by_share``: the first is another owner's, who has less of the fleet."""

    ahead: int
    first_ahead: str | None
    starts_by: str | None
    by_share: "NotRequired[SharesRecord]"


class SharesRecord(TypedDict):
    """What two owners have of the fleet, 0 to 1: the greatest of their shares of cores, memory and devices."""

    owner: str
    share: float
    owner_ahead: str
    share_ahead: float


class PlaceRecord(TypedDict):
    """A worker that could have had it, the best first; the fields decide in this order. ``failed_there``: the task did
    before. ``preference``: which of the accelerators named it has, from 0. ``mark``: of scorers. ``devices_left``,
    ``cpus_left``: free after that."""

    worker: str
    failed_there: bool
    preference: int
    mark: float
    devices_left: int
    cpus_left: int


class ConsideredRecord(TypedDict):
    """How many workers fitted and were free, and how many were not: full, not able to, kept from it by a scorer or for
    a full disk, or not there. ``best``: up to 8 of those that fitted."""

    fitting: int
    busy: int
    ineligible: int
    refused: int
    away: int
    best: list[PlaceRecord]


class DecisionRecord(TypedDict):
    """Of one attempt, as it was stored when that was placed. ``why``: what decided. ``considered`` is not there where
    nothing was weighed (a job that was lent ahead), or nobody kept it yet."""

    attempt: int
    epoch: int
    workers: list[str]
    why: str
    considered: NotRequired[ConsideredRecord]


class WhyReply(TypedDict):
    """``verdicts``: of a queued job those of now, of a rejected one those of then; 20 at most, the rest is counted in
    ``others`` by its first reason. ``waits``: None where it is not queued. ``decisions``: of its latest attempts."""

    job: str
    state: str
    reason: ReasonRecord | None
    request: str
    priority: int
    owner: str
    waits: WaitRecord | None
    verdicts: list[VerdictRecord]
    others: dict[str, int]
    decisions: list[DecisionRecord]


class ExplainBody(TypedDict):
    """A request that nothing is submitted for."""

    request: RequestFields


class ExplainReply(TypedDict):
    """``choice``: the worker that would get it now, None where none can. ``request``: one line for people. ``waits``:
    what it would wait for in the queue, at priority 0; None where there is a choice."""

    request: str
    choice: str | None
    verdicts: list[VerdictRecord]
    waits: WaitRecord | None


# Pydantic reads this attribute; a TypedDict body may not hold it, and pydantic is not imported here.
_CONFIG: Final = "__pydantic_config__"
for _submission in (RequestFields, SourceFields, JobSubmission, BatchSubmission):
    setattr(_submission, _CONFIG, {"extra": "forbid"})
