"""What the agent's state machine hears and what it asks for: two closed unions of values.

Inputs are past tense: something happened. Actions are imperative and are carried out in the order given; a
``Journal`` is durable (it outlives the agent) before the action after it begins. An action may be carried out more
than once and must then change nothing (the machine repeats itself after a restart).
"""

from dataclasses import dataclass
from enum import StrEnum

from gpulayer.errors import Blame
from gpulayer.ids import Digest, Epoch
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome

__all__ = [
    "AbandonStage",
    "Action",
    "Admit",
    "AttemptsVoided",
    "CallOff",
    "CollectOutputs",
    "CommandsReceived",
    "DiskFilled",
    "DrainLog",
    "Extend",
    "ExtendFailed",
    "FactsChanged",
    "Finish",
    "FollowLog",
    "Forget",
    "Hold",
    "Input",
    "Item",
    "Journal",
    "KillTree",
    "LogDrained",
    "OutputsCollected",
    "OutputsFailed",
    "Phase",
    "ProcessExited",
    "ProcessLost",
    "Progress",
    "Recovered",
    "RecoveredNode",
    "ReportAnswered",
    "ReportFailed",
    "ReportPlan",
    "ReportedState",
    "Revoke",
    "SaveContact",
    "SendReport",
    "SessionOpened",
    "SignalTree",
    "Spawn",
    "SpawnFailed",
    "SpawnPutOff",
    "Spawned",
    "Stage",
    "Staged",
    "StagingFailed",
    "Stop",
    "StopAllRequested",
    "Ticked",
    "TreeSignalled",
]


class Phase(StrEnum):
    """Where one node is on this worker; only ever moves down this list."""

    STAGING = "staging"
    SPAWNING = "spawning"
    RUNNING = "running"
    DRAINING = "draining"  # the tree is dead; its log and outputs are on their way
    ENDED = "ended"  # all is delivered but the report of it


class ReportedState(StrEnum):
    """``ReportItem.state``; only ever moves down this list."""

    STAGING = "staging"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Progress:
    """What of a node must outlive the agent. Times are of a clock that runs on while the agent is down.

    is_signalled: SIGTERM has been sent; it is sent once. stop_evidence: who or what wanted its end. stop_blame: of a
    stop that this worker itself decided on.
    """

    phase: Phase
    started_ms: int | None = None
    stop: EndedBy | None = None
    stop_evidence: str = ""
    stop_blame: Blame | None = None
    kill_at_ms: int | None = None
    is_signalled: bool = False
    outcome: Outcome | None = None
    outputs: Digest | None = None


# Inputs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stop:
    """A command: SIGTERM now, SIGKILL ``grace_ms`` later. What is not known yet will then never begin.

    node: None for every node of the epoch that this worker has. evidence: who or what wants it, for people; empty
    where the control plane knows that better.
    """

    epoch: Epoch
    ended_by: EndedBy
    grace_ms: int
    node: int | None = None
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Revoke:
    """A command: give the attempt back if its program has not started. An epoch that is not known yet will then never
    begin."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The whole tree of the program is dead and its log complete in the spool. Code xor signal, the program's own.

    is_disk_full: its disk was full at that moment, and it failed. ran_ms: see ``Outcome``.
    """

    key: NodeKey
    exit_code: int | None = None
    signal: int | None = None
    is_out_of_memory: bool = False
    evidence: str = ""
    is_disk_full: bool = False
    ran_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessLost:
    """The spawner or the host died under the program, or the spawner ended it: how it would have ended is not known.

    is_expired: nobody extended the time that the spawner had been given for it.
    """

    key: NodeKey
    evidence: str
    ended_by: EndedBy = EndedBy.WORKER_LOST
    is_expired: bool = False


@dataclass(frozen=True, slots=True)
class RecoveredNode:
    """One node as the agent's folders and the spawner's table have it.

    process: how it ended if it has, else whether it runs (``is_running``); neither: the spawner never started it.
    """

    assignment: Assignment
    progress: Progress
    is_running: bool = False
    process: ProcessExited | ProcessLost | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """The agent starts. ``boot`` is larger than ever before. contact_ms: see ``SaveContact``; None: none since boot.
    has_rebooted: the machine did since the last agent saved a contact; what was noted last may be gone."""

    boot: int
    nodes: tuple[RecoveredNode, ...] = ()
    contact_ms: int | None = None
    has_rebooted: bool = False


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The control plane knows this worker: how often it wants a report, and for how long a lease stands without one."""

    heartbeat_ms: int
    lease_ttl_ms: int


@dataclass(frozen=True, slots=True)
class CommandsReceived:
    """The answer to a request that was sent at ``asked_ms``; only to be taken in while ``agent.is_current``."""

    asked_ms: int
    commands: tuple[Assignment | Stop | Revoke, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """Source, inputs and environment are there, and the credentials at hand."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class StagingFailed:
    """Its source or an input will not come, or its environment can't be made; an outage is no reason for that."""

    key: NodeKey
    evidence: str
    ended_by: EndedBy = EndedBy.STAGING
    blame: Blame = Blame.INFRASTRUCTURE


@dataclass(frozen=True, slots=True)
class DiskFilled:
    """There is no room for what the attempt writes, or it has used more than it asked for (blame: user)."""

    key: NodeKey
    evidence: str
    blame: Blame = Blame.INFRASTRUCTURE


@dataclass(frozen=True, slots=True)
class Spawned:
    """The program runs, or ran: its end is told separately."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """exit_code: 126 or 127 where the command is at fault; None: ``ended_by`` and ``blame`` say what is."""

    key: NodeKey
    exit_code: int | None
    evidence: str
    ended_by: EndedBy = EndedBy.WORKER_LOST
    blame: Blame = Blame.INFRASTRUCTURE


@dataclass(frozen=True, slots=True)
class SpawnPutOff:
    """Nothing has been started yet: what its start has to ask is not to be asked now."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class TreeSignalled:
    """SIGTERM has been sent to the whole tree."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class LogDrained:
    """The control plane holds every byte, durably; or ``warning`` says what it will never hold."""

    key: NodeKey
    warning: str = ""


@dataclass(frozen=True, slots=True)
class OutputsCollected:
    """All objects of ``tree`` are accepted. None: nothing was made. ``warnings``: what could not come along."""

    key: NodeKey
    tree: Digest | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputsFailed:
    """They will never come home; being out of contact is not a reason for that."""

    key: NodeKey
    evidence: str


@dataclass(frozen=True, slots=True)
class AttemptsVoided:
    """A write for these epochs was refused as stale: they are not this worker's any more."""

    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class ExtendFailed:
    """The spawner may not have heard of the later time; it is told again at the next contact."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class FactsChanged:
    """The machine is not as it was last reported. cpus, memory_bytes, resources: what it has for jobs now; None: as
    before."""

    cpus: int | None = None
    memory_bytes: int | None = None
    resources: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ReportAnswered:
    """Report ``seq`` was taken in, durably. void: epochs that are not this worker's any more."""

    seq: int
    void: tuple[Epoch, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportFailed:
    """No answer, or not a good one. ``retry_in_ms`` is drawn by the caller (``retry.backoff_ms``)."""

    seq: int
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; wanted at ``next_wake_ms`` at the latest, harmless at any time."""


@dataclass(frozen=True, slots=True)
class StopAllRequested:
    """The worker is to end. ``grace_cap_ms`` bounds the grace time of every job. evidence: what stopped the worker."""

    grace_cap_ms: int = 10_000
    evidence: str = ""


Input = (
    Recovered
    | SessionOpened
    | CommandsReceived
    | Staged
    | StagingFailed
    | DiskFilled
    | Spawned
    | SpawnFailed
    | SpawnPutOff
    | TreeSignalled
    | ProcessExited
    | ProcessLost
    | LogDrained
    | OutputsCollected
    | OutputsFailed
    | AttemptsVoided
    | ExtendFailed
    | FactsChanged
    | ReportAnswered
    | ReportFailed
    | Ticked
    | StopAllRequested
)


# Actions --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admit:
    """Make the node's folder and keep its assignment and ``Progress(STAGING)`` there."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Journal:
    """Keep the node's progress on disk, in place of what was kept of it before."""

    key: NodeKey
    progress: Progress


@dataclass(frozen=True, slots=True)
class Stage:
    """Bring source, inputs and credentials and make the environment, as far as there are such; answered by Staged or
    StagingFailed. An outage is waited out, not a failure."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until what a start has to ask may be asked; answered by Staged or StagingFailed."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class AbandonStage:
    """Stop staging, or holding; no answer is wanted."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class CallOff:
    """Nobody wants the start that ``Spawn`` asked for any more. Answered by SpawnPutOff where the spawner has not been
    asked yet, and then it never is for this; else not at all: what was begun is told of as always."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the program unless it was; answered by Spawned, SpawnFailed or SpawnPutOff, later by ProcessExited or
    ProcessLost.

    kill_by_ms: when the spawner must end the tree by itself unless that time is moved (``Extend``): it must hold while
    the agent is dead or stuck.
    """

    assignment: Assignment
    kill_by_ms: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Move the time at which the spawner ends the tree by itself."""

    key: NodeKey
    kill_by_ms: int


@dataclass(frozen=True, slots=True)
class FollowLog:
    """Send the log as it grows."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class SignalTree:
    """SIGTERM to the whole tree; answered by TreeSignalled."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class KillTree:
    """SIGKILL to the whole tree until it is gone; ProcessExited follows."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class DrainLog:
    """Send the log to its end; answered by LogDrained, however long that takes."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class CollectOutputs:
    """Collect and send what the program made; answered by OutputsCollected or OutputsFailed, however long it takes."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class Item:
    """One node's state in a report; ``outcome`` and ``outputs`` with ENDED alone. started_ago_ms: see
    ``wire.workers.ReportItem``."""

    key: NodeKey
    state: ReportedState
    outcome: Outcome | None = None
    outputs: Digest | None = None
    started_ago_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """A report by value; the sender adds only schema and facts. See ``wire.workers.ReportBody``.

    unstarted: of those that were recovered. unsure: what it does not know of may have begun all the same. stopping:
    nothing more is to be lent here. leaving: nothing is left here either.
    """

    boot: int
    seq: int
    sent_ms: int
    holding: tuple[Epoch, ...]
    recovered: tuple[Epoch, ...] | None
    items: tuple[Item, ...]
    has_facts: bool = False
    stopping: bool = False
    leaving: bool = False
    unstarted: tuple[Epoch, ...] = ()
    unsure: bool = False


@dataclass(frozen=True, slots=True)
class SendReport:
    """Send it now; answered by ReportAnswered or ReportFailed."""

    plan: ReportPlan


@dataclass(frozen=True, slots=True)
class SaveContact:
    """Keep the send time of the last answered report, from which a restarted agent counts ``keep_for`` on."""

    contact_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """End whatever is still done for the node, forget it in the spawner, delete its folder."""

    key: NodeKey


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is said: the agent may end."""


Action = (
    Admit
    | Journal
    | Stage
    | Hold
    | AbandonStage
    | CallOff
    | Spawn
    | Extend
    | FollowLog
    | SignalTree
    | KillTree
    | DrainLog
    | CollectOutputs
    | SendReport
    | SaveContact
    | Forget
    | Finish
)
