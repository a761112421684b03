"""The worker agent's decisions: ``step(state, input, now_ms=…) -> actions``; the shell in ``worker/`` does the IO.

``AgentState`` changes only here, in place. The same inputs at the same times always give the same actions: there is
no IO, no clock and no randomness. Rules that hold for every order, repetition and loss of inputs:

* a node of an attempt (``NodeKey``) is started at most once, and never after a stop or void of its epoch was heard;
  what had not begun as far as is known ends, when its machine was restarted: the last notes may be lost;
* an assignment that was on its way while contact was lost for longer than the lease is not started: it may have been
  lent again;
* phases only move forward; every phase is journalled before anything that others can see follows from it;
* ``ended`` is reported when the tree is dead, the log delivered and the outputs accepted, and again until answered;
* one report at a time is on its way, at least every ``heartbeat_ms``, whatever else is going on;
* what is void is killed at once and forgotten, and nothing of it is sent any more;
* a program starts only when no tree on its devices, and no void attempt of its job, can still be alive here, and when
  what it takes of the resources counted by name is not in use;
* the spawner knows when to end each job by itself, should the agent be dead or stuck by then;
* that the worker stops is the first thing to be told of it, so that nothing more is lent to it;
* what is to be stopped while it is being started is called off where nothing runs yet, else stopped once it runs;
* SIGTERM once, the grace time, SIGKILL; the first reason to stop is the one that is told;
* out of contact, work goes on for ``keep_for_ms`` from the send time of the last answered report.

Short work may be lent ahead: more than there is room for. Programs are started in the order of their epochs, as far as
the machine's cores and memory allow, so that whoever lends need not know the moment at which one ends; what has not
started is given back when it is revoked.
"""

from typing import Final, TypeVar, assert_never

from gpulayer.ids import Epoch, JobId
from gpulayer.protocol import moves
from gpulayer.protocol.held import Held, add_evidence, outcome_of_end, outcome_of_failed_spawn, outcome_of_stop
from gpulayer.protocol.leases import extension, is_current, kill_by_ms, may_begin, stop_due, stop_due_ms
from gpulayer.protocol.messages import (
    AbandonStage,
    Action,
    Admit,
    AttemptsVoided,
    CallOff,
    CommandsReceived,
    DiskFilled,
    Extend,
    ExtendFailed,
    FactsChanged,
    Finish,
    FollowLog,
    Forget,
    Hold,
    Input,
    Journal,
    KillTree,
    LogDrained,
    OutputsCollected,
    OutputsFailed,
    Phase,
    ProcessExited,
    ProcessLost,
    Recovered,
    RecoveredNode,
    ReportAnswered,
    ReportedState,
    ReportFailed,
    Revoke,
    SaveContact,
    SendReport,
    SessionOpened,
    SignalTree,
    Spawn,
    Spawned,
    SpawnFailed,
    SpawnPutOff,
    Staged,
    StagingFailed,
    Stop,
    StopAllRequested,
    Ticked,
    TreeSignalled,
)
from gpulayer.protocol.notes import drop, note, note_all
from gpulayer.protocol.reporting import next_report, report_due_ms
from gpulayer.protocol.room import Room
from gpulayer.protocol.state import AgentState
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for

__all__ = ["AgentState", "Held", "is_current", "next_wake_ms", "step"]

CONTACT_STEP_MS: Final = 5_000  # how far the saved contact may lie behind; behind is the safe side
DISK_GRACE_MS: Final = 5_000  # a program that goes on filling a full disk gets no more than that
FINISH_MARGIN_MS: Final = 15_000  # after the grace time: for logs, outputs and the last reports of a stopping worker
REMEMBERED: Final = 50_000  # ended and refused epochs kept in mind; commands are never repeated as late as that

_NOT_STARTED: Final = "it was stopped before the program started"
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def step(state: AgentState, event: Input, *, now_ms: int) -> tuple[Action, ...]:
    """Take one input in and say what is to be done, in this order. Inputs for a node that is gone change nothing."""
    actions: list[Action] = []
    touched: Held | None = None
    match event:
        case Recovered():
            _recover(state, event, now_ms, actions)
        case SessionOpened():
            state.heartbeat_ms, state.lease_ttl_ms = event.heartbeat_ms, event.lease_ttl_ms
            state.retry_at_ms = now_ms
            if state.in_flight is None:
                state.last_sent_ms = None  # a control plane that was started again waits to hear of its workers
        case CommandsReceived():
            for command in event.commands:
                if isinstance(command, Stop):
                    _stop_epoch(state, command, now_ms, actions)
                elif isinstance(command, Revoke):
                    _give_back(state, command.epoch, now_ms, actions)
                elif is_current(state, event.asked_ms, now_ms=now_ms):
                    _assign(state, command, now_ms, actions)
        case ReportAnswered():
            _answered(state, event, now_ms, actions)
        case ReportFailed():
            if state.in_flight is not None and state.in_flight.seq == event.seq:
                state.has_new_facts = state.has_new_facts or state.in_flight.has_facts
                state.in_flight = state.last_sent_ms = None
                state.retry_at_ms = now_ms + event.retry_in_ms
                if state.is_stopping and not state.held:
                    _finish(state, actions)  # nothing is at stake: silence will tell
        case AttemptsVoided():
            _void(state, event.epochs, actions)
        case FactsChanged():
            state.has_new_facts = True
            state.cpus = state.cpus if event.cpus is None else event.cpus
            state.memory_bytes = state.memory_bytes if event.memory_bytes is None else event.memory_bytes
            state.resources = state.resources if event.resources is None else event.resources
        case ExtendFailed():
            if event.key in state.held:
                state.held[event.key].told_kill_by_ms = None
        case StopAllRequested():
            _stop_all(state, event, now_ms, actions)
        case Ticked():
            pass
        case _:
            touched = state.held.get(event.key)
            if touched is None:
                return ()
            _node_event(state, touched, event, now_ms, actions)
    if touched is not None:
        if touched.key in state.held:
            note(state, touched)
    elif not isinstance(event, Ticked | ReportAnswered | ReportFailed):  # these note what they change
        note_all(state)
    if touched is None or not _keeps_its_room(state, touched):
        _start_staged(state, now_ms, actions)
    _deadlines(state, now_ms, actions)
    _report(state, now_ms, actions)
    return tuple(actions)


def next_wake_ms(state: AgentState) -> int | None:
    """When the next ``Ticked`` is wanted at the latest; None once finished."""
    if state.is_finished or state.boot == 0:
        return None
    times: list[int] = []
    if state.in_flight is None:
        times.append(report_due_ms(state))
    if state.finish_by_ms is not None:
        times.append(state.finish_by_ms)
    if state.deadline_ms is not None:
        times.append(state.deadline_ms)
    return min(times) if times else None


# Start ----------------------------------------------------------------------------------------------------------------


def _recover(state: AgentState, event: Recovered, now_ms: int, actions: list[Action]) -> None:
    state.boot = event.boot
    state.is_unsure = event.contact_ms is None and not any(node.is_running for node in event.nodes)
    if event.contact_ms is None:
        state.contact_ms = state.saved_contact_ms = now_ms
    else:
        state.contact_ms = state.saved_contact_ms = min(event.contact_ms, now_ms)
    state.recovered = tuple(sorted({node.assignment.key.epoch for node in event.nodes}))
    for node in event.nodes:
        progress = node.progress
        held = Held(
            assignment=node.assignment,
            phase=progress.phase,
            changed_ms=now_ms,
            started_ms=progress.started_ms,
            stop=progress.stop,
            stop_evidence=progress.stop_evidence,
            stop_blame=progress.stop_blame,
            stop_grace_ms=node.assignment.grace_ms,
            kill_at_ms=progress.kill_at_ms,
            is_signalled=progress.is_signalled,
            outcome=progress.outcome,
            outputs=progress.outputs,
        )
        state.held[held.key] = held
        if event.has_rebooted and node.process is None and held.phase in (Phase.STAGING, Phase.SPAWNING):
            moves.end_unsure(held, now_ms, actions)
        else:
            _resume(state, held, node, now_ms, actions)
    if event.contact_ms is None and not state.is_unsure:
        actions.append(SaveContact(now_ms))  # last: from then on nobody sees that the machine was restarted


def _resume(state: AgentState, held: Held, node: RecoveredNode, now_ms: int, actions: list[Action]) -> None:
    match held.phase:
        case Phase.STAGING:
            moves.stage(held, actions)
        case Phase.SPAWNING if node.is_running or node.process is not None:
            moves.spawned(held, now_ms, actions)
        case Phase.SPAWNING if held.stop is None:
            held.phase, held.is_staged = Phase.STAGING, True  # it waits, as all do that has not begun
        case Phase.SPAWNING:  # the spawner hears no more of who asked before, so nothing is on its way
            moves.end(held, outcome_of_stop(held, _NOT_STARTED), now_ms, actions)
        case Phase.RUNNING:
            actions.append(FollowLog(held.key))
            if held.stop is not None and not held.is_signalled:
                actions.append(SignalTree(held.key))
        case Phase.DRAINING:
            moves.deliver(held, actions)
        case Phase.ENDED:
            pass
        case _:
            assert_never(held.phase)
    if held.phase is not Phase.RUNNING:
        return
    if node.process is not None:
        _node_event(state, held, node.process, now_ms, actions)
    elif not node.is_running:
        lost = ProcessLost(held.key, "the spawner does not know the program any more")
        _node_event(state, held, lost, now_ms, actions)


# Commands -------------------------------------------------------------------------------------------------------------


def _assign(state: AgentState, assignment: Assignment, now_ms: int, actions: list[Action]) -> None:
    key = assignment.key
    if key in state.held or key in state.done:
        return
    refusals = [state.refused[name] for name in (key, key.epoch) if name in state.refused]
    if refusals or state.is_stopping:
        ended_by = refusals[0] if refusals else EndedBy.WORKER_STOPPED
        if ended_by is not None:
            _refuse(state, assignment, ended_by, now_ms)
        return
    held = Held(assignment, Phase.STAGING, now_ms)
    state.held[key] = held
    _save_contact(state, actions)
    actions.append(Admit(assignment))
    moves.stage(held, actions)


def _refuse(state: AgentState, assignment: Assignment, ended_by: EndedBy, now_ms: int) -> None:
    """Never started, but the control plane waits for its end."""
    outcome = Outcome(ended_by, evidence="it was not started", blame=blame_for(ended_by))
    state.held[assignment.key] = Held(assignment, Phase.ENDED, now_ms, stop=ended_by, outcome=outcome)


def _stop_epoch(state: AgentState, command: Stop, now_ms: int, actions: list[Action]) -> None:
    def is_meant(key: NodeKey) -> bool:
        return key.epoch == command.epoch and command.node in (None, key.node)

    nodes = [held for held in state.held.values() if is_meant(held.key)]
    for held in nodes:
        _stop(state, held, command, now_ms, actions)
    if not nodes:
        _refuse_unheard(state, command.epoch, command.node, command.ended_by, now_ms)


def _refuse_unheard(state: AgentState, epoch: Epoch, node: int | None, ended_by: EndedBy, now_ms: int) -> None:
    """It was not heard of, and will not start when it is. node: None where the command names none.

    The control plane waits for the end of what it lent, and can be told of it without the assignment having been seen.
    Where it names no node there is only one, which is 0.
    """
    key = NodeKey(epoch, node or 0)
    is_done = any(done.epoch == epoch and node in (None, done.node) for done in state.done)
    if epoch in state.refused or key in state.refused or is_done:
        return
    _remember(state.refused, epoch if node is None else key, ended_by)
    stub = Assignment(key=key, job_id=JobId(""), attempt=0, command=())
    _refuse(state, stub, ended_by, now_ms)


def _give_back(state: AgentState, epoch: Epoch, now_ms: int, actions: list[Action]) -> None:
    """End what has not started; what has runs on, and its report answers the command."""
    nodes = [held for held in state.held.values() if held.key.epoch == epoch]
    for held in nodes:
        if held.phase is Phase.STAGING and not held.is_void:
            actions.append(AbandonStage(held.key))
            evidence = "given back before it started"
            outcome = Outcome(EndedBy.PREEMPTED, evidence=evidence, blame=blame_for(EndedBy.PREEMPTED))
            moves.end(held, outcome, now_ms, actions)
    if not nodes:
        _refuse_unheard(state, epoch, None, EndedBy.PREEMPTED, now_ms)


def _stop(state: AgentState, held: Held, stop: Stop, now_ms: int, actions: list[Action]) -> None:
    if held.is_void or held.phase in (Phase.DRAINING, Phase.ENDED):
        return  # the program ended by itself, or nobody wants to hear of it
    ended_by, grace_ms = stop.ended_by, stop.grace_ms
    if state.grace_cap_ms is not None:
        grace_ms = min(grace_ms, state.grace_cap_ms)
    is_first = held.stop is None
    if is_first:
        held.stop, held.stop_grace_ms, held.changed_ms = ended_by, grace_ms, now_ms
        held.stop_evidence = stop.evidence
    held.stop_grace_ms = min(held.stop_grace_ms, grace_ms)
    match held.phase:
        case Phase.STAGING:
            actions.append(AbandonStage(held.key))
            moves.end(held, outcome_of_stop(held, _NOT_STARTED), now_ms, actions)
        case Phase.SPAWNING:
            if is_first:
                actions += [Journal(held.key, held.progress), CallOff(held.key)]
        case Phase.RUNNING:
            moves.signal(held, now_ms, actions)


def _stop_all(state: AgentState, event: StopAllRequested, now_ms: int, actions: list[Action]) -> None:
    if state.grace_cap_ms is not None:
        return
    state.is_stopping = True
    state.grace_cap_ms = event.grace_cap_ms
    state.finish_by_ms = now_ms + event.grace_cap_ms + FINISH_MARGIN_MS
    for held in list(state.held.values()):
        stop = Stop(held.key.epoch, EndedBy.WORKER_STOPPED, held.assignment.grace_ms, evidence=event.evidence)
        _stop(state, held, stop, now_ms, actions)


# One node -------------------------------------------------------------------------------------------------------------


def _node_event(
    state: AgentState,
    held: Held,
    event: Staged
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
    | OutputsFailed,
    now_ms: int,
    actions: list[Action],
) -> None:
    match event:
        case Staged() if held.phase is Phase.STAGING:
            held.is_staged = True
        case StagingFailed() if held.phase is Phase.STAGING:
            outcome = Outcome(event.ended_by, evidence=event.evidence, blame=event.blame)
            moves.end(held, outcome, now_ms, actions)
        case DiskFilled():
            if held.stop is None:
                held.stop_blame = event.blame
                grace_ms = min(held.assignment.grace_ms, DISK_GRACE_MS)
                stop = Stop(held.key.epoch, EndedBy.DISK_FULL, grace_ms, evidence=event.evidence)
                _stop(state, held, stop, now_ms, actions)
        case Spawned() if held.phase is Phase.SPAWNING:
            moves.spawned(held, now_ms, actions)
        case SpawnFailed() if held.phase is Phase.SPAWNING:
            if held.is_void:
                _forget(state, held, actions)
            else:
                moves.end(held, outcome_of_failed_spawn(held, event), now_ms, actions)
        case SpawnPutOff() if held.phase is Phase.SPAWNING:
            _put_off(state, held, now_ms, actions)
        case TreeSignalled() if held.phase is Phase.RUNNING and not held.is_signalled:
            held.is_signalled = True
            actions.append(Journal(held.key, held.progress))
        case ProcessExited() | ProcessLost() if held.phase in (Phase.SPAWNING, Phase.RUNNING):
            if held.is_void:
                _forget(state, held, actions)
                return
            held.phase, held.changed_ms = Phase.DRAINING, now_ms
            held.outcome = outcome_of_end(held, event)
            # What was made on a host that died under the program is not known to be whole; it will run again.
            held.is_collected = not held.assignment.keep_outputs or isinstance(event, ProcessLost)
            actions.append(Journal(held.key, held.progress))
            moves.deliver(held, actions)
        case LogDrained() if held.phase is Phase.DRAINING:
            held.is_log_drained = True
            add_evidence(held, event.warning)
            moves.end_if_delivered(held, now_ms, actions)
        case OutputsCollected() if held.phase is Phase.DRAINING and not held.is_collected:
            held.is_collected, held.outputs = True, event.tree
            add_evidence(held, *event.warnings)
            moves.end_if_delivered(held, now_ms, actions)
        case OutputsFailed() if held.phase is Phase.DRAINING and not held.is_collected:
            held.is_collected = True
            add_evidence(held, f"outputs could not be brought home: {event.evidence}")
            moves.end_if_delivered(held, now_ms, actions)
        case _:
            pass  # a repetition, or an answer that came too late to matter


def _keeps_its_room(state: AgentState, held: Held) -> bool:
    """Then nothing can start now that could not before: the quick answer for tiny jobs; False is no answer."""
    if held.key not in state.held or held.assignment.devices or held.is_void:
        return False
    return held.phase in (Phase.RUNNING, Phase.DRAINING)


def _start_staged(state: AgentState, now_ms: int, actions: list[Action]) -> None:
    """Start what is ready and has room, in order of epochs. A void attempt may still hold a device that was lent again
    meanwhile, and uses its cores and resources until it is dead. Nothing before the first report of a boot is answered:
    this may be a copy of a worker's folder, and what had not begun in it has begun since where it was copied from."""
    if not state.ready or not state.is_settled:
        return
    room = Room.of(state)
    is_out_of_contact = now_ms > state.contact_ms + state.lease_ttl_ms
    # Room only gets less below: what has waited and has none now need not be looked at in its turn.
    concerned = [held for held in state.ready.values() if not held.has_waited or room.has(held.assignment)]
    for held in sorted(concerned, key=_by_key):
        share = held.assignment
        due_ms = stop_due_ms(state, held)
        if due_ms is not None and due_ms <= now_ms:
            continue  # its time has passed while this agent was stopped: another one may have begun, so it ends instead
        if not may_begin(state, share, now_ms):
            continue
        if not room.has(share) or (held.has_waited and is_out_of_contact):  # then it may have been lent again
            if not held.has_waited:
                held.has_waited = True
                note(state, held)
            continue
        devices = set(share.devices)
        if any(
            devices.intersection(other.assignment.devices)
            or (other.is_void and other.assignment.job_id == held.assignment.job_id)
            for other in state.held.values()
            if other.phase in (Phase.SPAWNING, Phase.RUNNING)
        ):
            continue
        room.take((share,))
        held.phase, held.changed_ms = Phase.SPAWNING, now_ms
        held.told_kill_by_ms = kill_by_ms(state, held)
        note(state, held)
        actions += [Journal(held.key, held.progress), Spawn(held.assignment, held.told_kill_by_ms)]


def _by_key(held: Held) -> NodeKey:
    return held.key


def _put_off(state: AgentState, held: Held, now_ms: int, actions: list[Action]) -> None:
    """It has not begun, and waits like one without room; on disk it stays as it is: a next start looks whether it runs
    and has it wait again."""
    if held.is_void:
        _forget(state, held, actions)
    elif held.stop is not None:
        moves.end(held, outcome_of_stop(held, _NOT_STARTED), now_ms, actions)
    else:
        held.phase, held.changed_ms, held.is_staged, held.has_waited = Phase.STAGING, now_ms, False, True
        actions.append(Hold(held.assignment))


def _void(state: AgentState, epochs: tuple[Epoch, ...], actions: list[Action]) -> None:
    for epoch in epochs:
        _remember(state.refused, epoch, None)
        for held in [held for held in state.held.values() if held.key.epoch == epoch and not held.is_void]:
            held.is_void = True
            note(state, held)
            match held.phase:
                case Phase.SPAWNING:
                    actions.append(CallOff(held.key))  # else it is killed as soon as it is known to run
                case Phase.RUNNING:
                    actions.append(KillTree(held.key))
                case _:
                    _forget(state, held, actions)


def _forget(state: AgentState, held: Held, actions: list[Action]) -> None:
    del state.held[held.key]
    drop(state, held)
    _remember(state.done, held.key, None)
    actions.append(Forget(held.key))


# Time -----------------------------------------------------------------------------------------------------------------


def _deadlines(state: AgentState, now_ms: int, actions: list[Action]) -> None:
    if state.boot == 0 or state.is_finished:
        return
    if state.deadline_ms is not None and state.deadline_ms <= now_ms:
        _look_at_all(state, now_ms, actions)
        note_all(state)
    if state.finish_by_ms is not None and state.finish_by_ms <= now_ms:
        _finish(state, actions)


def _look_at_all(state: AgentState, now_ms: int, actions: list[Action]) -> None:
    for held in list(state.held.values()):
        if held.stop is None and not held.is_void:
            end = stop_due(state, held)
            if end is not None and end[0] <= now_ms:
                _stop(state, held, end[1], now_ms, actions)
        if held.phase is Phase.RUNNING:
            if held.is_void and held.kill_at_ms is None:
                held.kill_at_ms = now_ms + moves.KILL_AGAIN_MS
            elif held.kill_at_ms is not None and held.kill_at_ms <= now_ms:
                held.kill_at_ms = now_ms + moves.KILL_AGAIN_MS
                actions.append(KillTree(held.key))


# Reports --------------------------------------------------------------------------------------------------------------


def _report(state: AgentState, now_ms: int, actions: list[Action]) -> None:
    plan = next_report(state, now_ms)
    if plan is not None:
        state.seq += 1
        state.has_new_facts = False
        state.in_flight = plan
        state.last_sent_ms = now_ms
        actions.append(SendReport(plan))


def _answered(state: AgentState, event: ReportAnswered, now_ms: int, actions: list[Action]) -> None:
    plan = state.in_flight
    if plan is not None and plan.seq == event.seq:
        state.in_flight = None
        state.retry_at_ms = now_ms
        if state.recovered is not None or now_ms > state.contact_ms + state.lease_ttl_ms:
            state.contact_since_ms = now_ms  # in between the control plane may have lent anything to others
        state.recovered = None
        state.contact_ms = max(state.contact_ms, plan.sent_ms)
        if state.is_unsure:  # it has been told; before that a next start has to tell it again
            state.is_unsure, state.saved_contact_ms = False, state.contact_ms
            actions.append(SaveContact(state.contact_ms))
        for item in plan.items:
            held = state.held.get(item.key)
            if held is None:
                continue
            held.acked = item.state
            if item.state is ReportedState.ENDED:
                state.is_stopping = state.is_stopping or (state.once and not held.is_stub)
                _forget(state, held, actions)
            else:
                note(state, held)
        for held in state.held.values():
            if held.phase in (Phase.SPAWNING, Phase.RUNNING) and not held.is_void:
                end_ms = extension(state, held)
                if end_ms is not None:
                    held.told_kill_by_ms = end_ms
                    actions.append(Extend(held.key, end_ms))
        state.is_stop_told = state.is_stop_told or plan.stopping
        if plan.leaving:
            _finish(state, actions)
        if state.held:
            _save_contact(state, actions)
    # True of any answer, however late: what is void once is void for ever.
    _void(state, event.void, actions)


def _save_contact(state: AgentState, actions: list[Action]) -> None:
    if state.contact_ms - state.saved_contact_ms >= CONTACT_STEP_MS:
        state.saved_contact_ms = state.contact_ms
        actions.append(SaveContact(state.contact_ms))


def _finish(state: AgentState, actions: list[Action]) -> None:
    if not state.is_finished:
        state.is_finished = True
        actions.append(Finish())


def _remember(table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    if len(table) > REMEMBERED:
        del table[next(iter(table))]
