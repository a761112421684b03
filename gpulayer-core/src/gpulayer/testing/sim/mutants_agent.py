"""Planted faults in the worker's agent: how long it goes on, what it starts, what it ends, what it remembers."""

from dataclasses import replace
from typing import Any, Final

from gpulayer.protocol import agent, leases, messages, moves
from gpulayer.testing.sim.mutant import Mutant

__all__ = ["AGENT", "UNSEEN_AGENT"]

_NEVER_MS: Final = 2**62

# How long it goes on --------------------------------------------------------------------------------------------------


def _endless_work(kill_by_ms: Any) -> Any:
    """The spawner is told of a time that is far too late: a dead or stopped agent ends nothing."""
    return lambda state, held: kill_by_ms(state, held) + 3_600_000


def _counts_from_arrival(answered: Any) -> Any:
    """The lease is counted from when an answer arrived, not from when its report was sent."""

    def broken(state: Any, event: Any, now_ms: int, actions: Any) -> None:
        if state.in_flight is not None and state.in_flight.seq == event.seq:
            state.in_flight = replace(state.in_flight, sent_ms=now_ms)
        answered(state, event, now_ms, actions)

    return broken


def _exclusive_unminded(_: Any) -> Any:
    """An exclusive job is kept for as long as any other."""
    return lambda state, assignment: (assignment.keep_for_ms, assignment.grace_ms)


def _no_kill_grace(_: Any) -> Any:
    """The grace time of an exclusive job is not taken off its lease."""

    def broken(state: Any, assignment: Any) -> tuple[int, int]:
        if not assignment.exclusive:
            return assignment.keep_for_ms, assignment.grace_ms
        return min(assignment.keep_for_ms, state.lease_ttl_ms), assignment.grace_ms

    return broken


def _keeps_nothing(keep_for: Any) -> Any:
    """Out of contact, a job is ended with the lease, however long it is to be kept."""

    def broken(state: Any, assignment: Any) -> tuple[int, int]:
        keep_for_ms, grace_ms = keep_for(state, assignment)
        return min(keep_for_ms, state.lease_ttl_ms), grace_ms

    return broken


def _contact_forgotten(recover: Any) -> Any:
    """An agent that starts anew believes that it has just been in contact."""

    def broken(state: Any, event: Any, now_ms: int, actions: Any) -> None:
        recover(state, replace(event, contact_ms=None), now_ms, actions)

    return broken


def _no_sigkill(look: Any) -> Any:
    """A program that ignores SIGTERM is left to it."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        look(state, now_ms, actions)
        actions[:] = [action for action in actions if not isinstance(action, messages.KillTree)]

    return broken


def _no_kill_grace_at_the_spawner(kill_by_ms: Any) -> Any:
    """The spawner is told to end an exclusive job a grace time too late."""

    def broken(state: Any, held: Any) -> Any:
        return kill_by_ms(state, held) + (held.assignment.grace_ms if held.assignment.exclusive else 0)

    return broken


def _contact_unsaved(_: Any) -> Any:
    """While work goes on, the last contact is not kept for the next agent."""
    return lambda state, actions: None


def _reboot_unread(recover: Any) -> Any:
    """After its machine was restarted an agent believes its notes, the last of which may be lost."""

    def broken(state: Any, event: Any, now_ms: int, actions: Any) -> None:
        recover(state, replace(event, has_rebooted=False), now_ms, actions)

    return broken


# What it starts -------------------------------------------------------------------------------------------------------


def _stale_commands_taken(_: Any) -> Any:
    """What was on its way while contact was lost for longer than the lease is started all the same."""
    return lambda state, asked_ms, *, now_ms: True


def _asked_before(_: Any) -> Any:
    """What was asked for before contact was lost, and answered after it was there again, is started."""
    return lambda state, asked_ms, *, now_ms: now_ms <= state.contact_ms + state.lease_ttl_ms


def _void_same_job(start_staged: Any) -> Any:
    """An attempt is started while a void one of the same job is not dead yet, unless a device keeps it back."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        void = {key: held for key, held in state.held.items() if held.is_void and not held.assignment.devices}
        for key in void:
            del state.held[key]
        start_staged(state, now_ms, actions)
        state.held.update(void)

    return broken


def _starts_out_of_contact(start_staged: Any) -> Any:
    """What waited for room is started although its lease has passed."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        contact_ms, state.contact_ms = state.contact_ms, max(state.contact_ms, now_ms)
        start_staged(state, now_ms, actions)
        state.contact_ms = contact_ms

    return broken


def _void_holds_nothing(start_staged: Any) -> Any:
    """A program is started on devices that a void one, not dead yet, still has."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        void = {key: held for key, held in state.held.items() if held.is_void}
        using = {key: state.using.pop(key) for key in void if key in state.using}
        for key in void:
            del state.held[key]
        start_staged(state, now_ms, actions)
        state.held.update(void)
        state.using.update(using)

    return broken


def _starts_unsettled(start_staged: Any) -> Any:
    """What a folder says has not begun is started before the control plane has confirmed that."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        recovered, state.recovered = state.recovered, None
        start_staged(state, now_ms, actions)
        state.recovered = recovered

    return broken


def _forgets_what_is_done(_: Any) -> Any:
    """What has ended, was stopped or is void is forgotten: an assignment that comes late starts it again."""
    return lambda table, key, value: None


# What it ends ---------------------------------------------------------------------------------------------------------


def _void_runs_on(void: Any) -> Any:
    """A program that is void runs on; nothing of it is told any more."""

    def broken(state: Any, epochs: Any, actions: Any) -> None:
        void(state, epochs, actions)
        for action in [action for action in actions if isinstance(action, messages.KillTree)]:
            actions.remove(action)
            state.held[action.key].kill_at_ms = _NEVER_MS  # else what is void and runs is killed again 5 s later

    return broken


def _void_starts(spawned: Any) -> Any:
    """What became void while it was being started runs on."""

    def broken(held: Any, now_ms: int, actions: Any) -> None:
        is_void, held.is_void = held.is_void, False
        spawned(held, now_ms, actions)
        held.is_void = is_void
        if is_void:
            held.kill_at_ms = _NEVER_MS

    return broken


def _void_unheard(void: Any) -> Any:
    """Answers of reports are read for nothing but that they came."""
    return lambda state, epochs, actions: None


def _put_off_unstopped(put_off: Any) -> Any:
    """What was called off before it began waits for its turn again."""

    def broken(state: Any, held: Any, now_ms: int, actions: Any) -> None:
        held.stop, held.is_void = None, False
        put_off(state, held, now_ms, actions)

    return broken


def _stops_nothing(_: Any) -> Any:
    """An agent that is to end waits for its work, and tells nobody."""
    return lambda state, event, now_ms, actions: None


def _stop_of_the_unknown(_: Any) -> Any:
    """A stop that overtakes its assignment is forgotten."""
    return lambda state, epoch, node, ended_by, now_ms: None


# What it remembers ----------------------------------------------------------------------------------------------------


def _early_forget(report: Any) -> Any:
    """The agent forgets an ended attempt before the control plane has answered its report."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        report(state, now_ms, actions)
        for held in [held for held in state.held.values() if held.phase is messages.Phase.ENDED and state.in_flight]:
            del state.held[held.key]
            actions.append(messages.Forget(held.key))

    return broken


def _starts_unwritten(start_staged: Any) -> Any:
    """That a program is being started is not written down before."""

    def broken(state: Any, now_ms: int, actions: Any) -> None:
        before = len(actions)
        start_staged(state, now_ms, actions)
        actions[before:] = [action for action in actions[before:] if not isinstance(action, messages.Journal)]

    return broken


def _ends_unwritten(end: Any) -> Any:
    """How a program ended is not written down."""

    def broken(held: Any, outcome: Any, now_ms: int, actions: Any) -> None:
        end(held, outcome, now_ms, actions)
        actions.pop()

    return broken


def _log_left_behind(deliver: Any) -> Any:
    """The end is told before the log has arrived."""

    def broken(held: Any, actions: Any) -> None:
        held.is_log_drained = True
        deliver(held, actions)

    return broken


AGENT: Final[dict[str, Mutant]] = {
    "endless_work": Mutant(3, leases, "kill_by_ms", _endless_work),
    "counts_from_arrival": Mutant(3, agent, "_answered", _counts_from_arrival),
    "exclusive_unminded": Mutant(3, leases, "keep_for", _exclusive_unminded),
    "no_kill_grace": Mutant(3, leases, "keep_for", _no_kill_grace),
    "keeps_nothing": Mutant(6, leases, "keep_for", _keeps_nothing),
    "exclusive_killed_late": Mutant(3, leases, "kill_by_ms", _no_kill_grace_at_the_spawner),
    "contact_unsaved": Mutant(6, agent, "_save_contact", _contact_unsaved),
    "reboot_unread": Mutant(4, agent, "_recover", _reboot_unread),
    "put_off_unstopped": Mutant(8, agent, "_put_off", _put_off_unstopped),
    "stops_nothing": Mutant(13, agent, "_stop_all", _stops_nothing),
    "no_sigkill": Mutant(8, agent, "_look_at_all", _no_sigkill),
    "void_runs_on": Mutant(3, agent, "_void", _void_runs_on),
    "void_unheard": Mutant(3, agent, "_void", _void_unheard),
    "early_forget": Mutant(4, agent, "_report", _early_forget),
}

UNSEEN_AGENT: Final[dict[str, Mutant]] = {
    "void_starts": Mutant(
        3,
        moves,
        "spawned",
        _void_starts,
        "a start takes a moment: of 8,676 in 200 fleets none became void meanwhile",
    ),
    "contact_forgotten": Mutant(
        3,
        agent,
        "_recover",
        _contact_forgotten,
        "an agent starts and prolongs nothing before its first report is answered; the spawner minds the time",
    ),
    "asked_before": Mutant(
        3,
        agent,
        "is_current",
        _asked_before,
        "its request is given up after 30 s, and no lease that it tells of has passed at the control plane by then",
    ),
    "void_same_job": Mutant(
        3,
        agent,
        "_start_staged",
        _void_same_job,
        "SIGKILL takes a millisecond here, and comes first",
    ),
    "starts_out_of_contact": Mutant(
        3,
        agent,
        "_start_staged",
        _starts_out_of_contact,
        "of 500 fleets about one notices it (the first is seed 313), which is too few to count on",
    ),
    "void_holds_nothing": Mutant(
        2,
        agent,
        "_start_staged",
        _void_holds_nothing,
        "SIGKILL takes a millisecond here, and comes first",
    ),
    "starts_unsettled": Mutant(
        4,
        agent,
        "_start_staged",
        _starts_unsettled,
        "a copy of a folder ends what had not begun in it, as after a restart of the machine",
    ),
    "forgets_what_is_done": Mutant(
        4,
        agent,
        "_remember",
        _forgets_what_is_done,
        "an assignment is told again only while the control plane does not know its end, and each answer counts once",
    ),
    "stop_of_the_unknown": Mutant(
        8,
        agent,
        "_refuse_unheard",
        _stop_of_the_unknown,
        "commands come in the order of one mailbox, and one request at a time asks for them",
    ),
    "starts_unwritten": Mutant(
        4,
        agent,
        "_start_staged",
        _starts_unwritten,
        "the spawner's table has it, and after a restart of the machine no note that says otherwise is believed",
    ),
    "log_left_behind": Mutant(
        6,
        moves,
        "deliver",
        _log_left_behind,
        "logs have no bytes here that could be missing",
    ),
    "ends_unwritten": Mutant(
        4,
        moves,
        "end",
        _ends_unwritten,
        "the note before it and the spawner's table tell the next agent the same end",
    ),
    "stale_commands_taken": Mutant(
        3,
        agent,
        "is_current",
        _stale_commands_taken,
        "an exclusive job does not begin out of contact; of any other two attempts may run",
    ),
}
