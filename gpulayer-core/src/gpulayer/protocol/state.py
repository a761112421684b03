"""What an agent has in mind between two inputs. Only ``agent.step`` changes it."""

from dataclasses import dataclass, field

from gpulayer.ids import Epoch
from gpulayer.protocol.held import Held
from gpulayer.protocol.messages import ReportPlan
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.outcome import EndedBy

__all__ = ["AgentState"]


@dataclass(slots=True)
class AgentState:
    """Made once a start of the agent; the first input is ``Recovered``. ``once``: leave after the first job.

    cpus, memory_bytes, resources: what programs may use at one time; None: whatever was lent.
    news, ready, using, deadline_ms: see ``notes``: to report, to start, using cores; when a node is to be looked at.

    refused: what must not start here any more (whole epochs or single nodes), and what stopped it; None: it is void.
    recovered: what the first answered report of this boot tells; None once it was answered. is_unsure: until then:
    nothing tells that the starts before it were on this machine, with this folder, since the machine was started.
    contact_ms: send time of the last answered report. contact_since_ms: since when no lease has lapsed for want of one.
    is_stop_told: the control plane knows that this worker stops.
    """

    once: bool = False
    cpus: int | None = None
    memory_bytes: int | None = None
    resources: tuple[tuple[str, int], ...] | None = None
    boot: int = 0
    seq: int = 0
    heartbeat_ms: int = 10_000
    lease_ttl_ms: int = 30_000
    held: dict[NodeKey, Held] = field(default_factory=dict)
    news: dict[NodeKey, Held] = field(default_factory=dict)
    ready: dict[NodeKey, Held] = field(default_factory=dict)
    using: dict[NodeKey, Held] = field(default_factory=dict)
    deadline_ms: int | None = None
    refused: dict[Epoch | NodeKey, EndedBy | None] = field(default_factory=dict)
    done: dict[NodeKey, None] = field(default_factory=dict)
    recovered: tuple[Epoch, ...] | None = ()
    is_unsure: bool = False
    has_new_facts: bool = True
    in_flight: ReportPlan | None = None
    last_sent_ms: int | None = None
    retry_at_ms: int = 0
    contact_ms: int = 0
    contact_since_ms: int = 0
    saved_contact_ms: int = 0
    is_stopping: bool = False
    is_stop_told: bool = False
    grace_cap_ms: int | None = None
    finish_by_ms: int | None = None
    is_finished: bool = False

    @property
    def is_settled(self) -> bool:
        """The first report of this boot is answered: before that, commands must not be asked for, because an
        attempt that was lent after the agent counted what it still knows would be taken for lost."""
        return self.boot > 0 and self.recovered is None
