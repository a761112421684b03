"""When scorers are asked: for every pair of a waiting request and a machine that could take it and is there.

Asking is level-triggered: a pair that lacks a fresh opinion waits for it, and where none comes in time, silence is
noted as the answer for a while, after which it is asked for again. So a lost question costs one wait, and a scorer that
never answers one wait every now and then; neither stops anything.

A class without any opinion is held altogether until all have come, so that its first job goes to the best machine and
not to the one that was answered first. Where some are there, only the pairs that lack one wait.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from gpulayer.engine import opinions, schedule
from gpulayer.engine.effects import AskScorer
from gpulayer.engine.state import Opinions, RequestClass, State
from gpulayer.engine.turn import Turn
from gpulayer.ids import Digest, JobId
from gpulayer.spec.request import Request
from gpulayer.spec.worker import WorkerState

__all__ = ["is_settled", "is_undecided", "lapsed", "look", "look_at", "next_lapse_ms"]

_NEVER_MS: Final = 2**62
_SILENCE_MS: Final = 10_000
_LAPSED_AT_ONCE: Final = 2  # looking at a class takes as long as there are workers; nothing comes between these events


@dataclass(slots=True)
class _Found:
    """asks: whom to ask about which machines. changed: of what is believed now, something is not as it was."""

    asks: dict[str, list[Digest]] = field(default_factory=dict)
    changed: list[Digest] = field(default_factory=list)


def look(turn: Turn) -> None:
    """Ask for what has come to be lacking in this step because workers have come or changed.

    Not for new classes: they are due at once. Of a batch of many jobs the questions would be put when all of it has
    been committed, and the wait for the answers would be over by then.
    """
    state = turn.state
    for worker in turn.gained.values() if state.policy.scorers else ():
        if not schedule.takes_work(worker):
            continue
        for known in state.classes.values():
            if known.opinions is not None and schedule.is_eligible_for(known, worker):
                found = _Found()
                looks_ms = _look_at_pair(state, known.opinions, worker.facts_digest, found)
                known.looks_ms = min(known.looks_ms, looks_ms)
                if found.changed:
                    _act(turn, known, known.opinions, found)


def look_at(turn: Turn, known: RequestClass) -> None:
    """All pairs of a class: those whose wait is over fall silent, those that lack an opinion are asked about."""
    state = turn.state
    ours = opinions.opinions_on(state, known)
    found = _Found()
    seen: set[Digest] = set()
    known.looks_ms = _NEVER_MS
    for worker in state.workers.values():
        digest = worker.facts_digest
        if digest in seen or not schedule.takes_work(worker) or not schedule.is_eligible_for(known, worker):
            continue
        seen.add(digest)
        known.looks_ms = min(known.looks_ms, _look_at_pair(state, ours, digest, found))
    _forget_others(turn, ours, seen)
    _act(turn, known, ours, found)


def lapsed(state: State, now_ms: int) -> Iterator[tuple[Request, int]]:
    """Classes whose opinions are due for a look, or whose ``--no-wait`` jobs for a decision; of many some at once."""
    if state.policy.scorers:
        due = (key for key, known in state.classes.items() if known.looks_ms <= now_ms)
        yield from islice(due, _LAPSED_AT_ONCE)
    for key, jobs in state.undecided.items():
        if next(iter(jobs.values())) <= now_ms:
            yield key


def next_lapse_ms(state: State) -> int | None:
    """Engine time at which ``lapsed`` has something if nothing else happens."""
    moments = [next(iter(jobs.values())) for jobs in state.undecided.values()]
    if state.policy.scorers:
        moments.extend(known.looks_ms for known in state.classes.values())
    first_ms = min(moments, default=_NEVER_MS)
    return None if first_ms == _NEVER_MS else first_ms


def is_settled(state: State, known: RequestClass) -> bool:
    """Nothing more is to come that this class might be placed by: no opinion is waited for, and no worker that could
    take it, and is not known to be away, is yet to report to a control plane that has just started."""
    if state.policy.scorers and (known.opinions is None or known.opinions.waits):
        return False
    return all(
        worker.is_heard or worker.state is not WorkerState.READY or not schedule.is_eligible_for(known, worker)
        for worker in state.workers.values()
    )


def is_undecided(state: State, job_id: JobId) -> bool:
    """A ``--no-wait`` job that still waits for opinions."""
    job = state.jobs.get(job_id)
    return job is not None and job.is_untried and job_id in state.undecided.get(job.class_key, ())


def _look_at_pair(state: State, ours: Opinions, digest: Digest, found: _Found) -> int:
    """Adds to what was found. Returns the engine time at which the pair is due for a look again; later than now."""
    now_ms = state.now_ms
    until_ms = _NEVER_MS
    lacking: list[str] = []
    for scorer, said in ours.said.items():
        word = said.get(digest)
        if word is None or word[1] <= now_ms:
            lacking.append(scorer)
        elif word[1] < until_ms:
            until_ms = word[1]
    if not lacking:
        return until_ms
    found.changed.append(digest)
    waits_ms = ours.waits.setdefault(digest, now_ms + state.policy.opinion_wait_ms)
    if waits_ms <= now_ms:
        return min(until_ms, _fall_silent(state, ours, digest, lacking))
    for scorer in lacking:
        if digest not in ours.asked[scorer]:
            ours.asked[scorer].add(digest)
            found.asks.setdefault(scorer, []).append(digest)
    return min(until_ms, waits_ms)


def _fall_silent(state: State, ours: Opinions, digest: Digest, lacking: list[str]) -> int:
    """The wait has passed; ``settle`` ends it. Returns when they are asked again."""
    until_ms = state.now_ms + _SILENCE_MS
    for scorer in lacking:
        ours.said[scorer][digest] = (None, until_ms)
    return until_ms


def _act(turn: Turn, known: RequestClass, ours: Opinions, found: _Found) -> None:
    if found.asks:
        _hold(turn.state, known, ours)
        ours.until_ms = max(ours.until_ms, turn.state.now_ms + turn.state.policy.opinion_wait_ms)
    opinions.settle(turn, ours, found.changed)
    turn.effects.extend(AskScorer(scorer, known.request, tuple(digests)) for scorer, digests in found.asks.items())


def _hold(state: State, known: RequestClass, ours: Opinions) -> None:
    """Something is asked: the class waits for all of it where nothing is known of any worker that is there."""
    if ours.held_until_ms <= state.now_ms and not any(
        schedule.takes_work(worker)
        and schedule.is_eligible_for(known, worker)
        and opinions.is_known(state, ours, worker.facts_digest)
        for worker in state.workers.values()
    ):
        ours.held_until_ms = state.now_ms + state.policy.opinion_wait_ms


def _forget_others(turn: Turn, ours: Opinions, seen: set[Digest]) -> None:
    """Machines that are not there any more, or have other facts now, are waited for no more. What was said of them and
    is over goes."""
    opinions.end_waits(turn, ours, [digest for digest in ours.waits if digest not in seen])
    for said in ours.said.values():
        if len(said) > len(seen):
            for digest in [digest for digest, word in said.items() if word[1] <= turn.state.now_ms]:
                if digest not in seen:
                    del said[digest]
                    ours.usable.pop(digest, None)
