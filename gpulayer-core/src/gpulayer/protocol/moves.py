"""What one node comes to next, and what is to be done for it then: begun, signalled, delivered, ended.

Each changes one ``Held`` and nothing else of the agent; when it is time for which, ``agent.step`` decides.
"""

from typing import Final

from gpulayer.protocol.held import Held, outcome_of_stop
from gpulayer.protocol.messages import (
    Action,
    CollectOutputs,
    DrainLog,
    FollowLog,
    Journal,
    KillTree,
    Phase,
    SignalTree,
    Stage,
)
from gpulayer.spec.capabilities import DEFAULT_ENVIRONMENT
from gpulayer.spec.outcome import EndedBy, Outcome, blame_for

__all__ = ["KILL_AGAIN_MS", "deliver", "end", "end_if_delivered", "end_unsure", "signal", "spawned", "stage"]

KILL_AGAIN_MS: Final = 5_000  # a tree that SIGKILL did not end yet (D state) gets it again


def stage(held: Held, actions: list[Action]) -> None:
    """What needs nothing brought or made is ready; it may still have to wait for room."""
    share = held.assignment
    has_own_environment = share.environment not in ("", DEFAULT_ENVIRONMENT)
    if share.source is None and not share.has_credentials and not share.inputs and not has_own_environment:
        held.is_staged = True
    else:
        actions.append(Stage(share))


def spawned(held: Held, now_ms: int, actions: list[Action]) -> None:
    """Its program runs; what became void meanwhile is killed at once."""
    held.phase, held.changed_ms, held.started_ms = Phase.RUNNING, now_ms, now_ms
    if held.is_void:
        held.kill_at_ms = now_ms + KILL_AGAIN_MS
        actions += [Journal(held.key, held.progress), KillTree(held.key)]
        return
    actions += [Journal(held.key, held.progress), FollowLog(held.key)]
    if held.stop is not None:
        signal(held, now_ms, actions)


def signal(held: Held, now_ms: int, actions: list[Action]) -> None:
    """SIGTERM unless it was sent, and a time for SIGKILL that only moves nearer."""
    kill_at_ms = now_ms + held.stop_grace_ms
    if held.kill_at_ms is not None and held.kill_at_ms <= kill_at_ms:
        return
    is_first = held.kill_at_ms is None
    held.kill_at_ms = kill_at_ms
    actions.append(Journal(held.key, held.progress))
    if is_first:
        actions.append(SignalTree(held.key))


def deliver(held: Held, actions: list[Action]) -> None:
    """Its program has ended; its log and its outputs go home before that is told."""
    actions.append(DrainLog(held.key))
    if held.outcome is not None and held.outcome.ended_by is EndedBy.WORKER_LOST and held.stop is None:
        held.is_collected = True
    if not held.assignment.keep_outputs:
        held.is_collected = True
    if not held.is_collected:
        actions.append(CollectOutputs(held.key))


def end_if_delivered(held: Held, now_ms: int, actions: list[Action]) -> None:
    """Once its log and its outputs are home."""
    if held.is_log_drained and held.is_collected and held.outcome is not None:
        end(held, held.outcome, now_ms, actions)


def end(held: Held, outcome: Outcome, now_ms: int, actions: list[Action]) -> None:
    """It has ended so, and that is noted before anybody is told."""
    held.phase, held.changed_ms, held.outcome = Phase.ENDED, now_ms, outcome
    actions.append(Journal(held.key, held.progress))


def end_unsure(held: Held, now_ms: int, actions: list[Action]) -> None:
    """Notes are not synced: that it has started may have been the last one, and it must not start twice."""
    evidence = "its machine was restarted, and whether it had begun is not known"
    outcome = Outcome(EndedBy.WORKER_LOST, evidence=evidence, blame=blame_for(EndedBy.WORKER_LOST))
    end(held, outcome if held.stop is None else outcome_of_stop(held, evidence), now_ms, actions)
