"""What scorers say, and what placement makes of it.

Opinions are of pairs: a request, and the digest of a machine's facts. A pair is used once every scorer has a fresh word
on it, and none of them refuses; silence is a word, too, and means no opinion. ``asking`` has them asked.

Nothing of this is stored: opinions are believed for a while and can be had again.
"""

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Final

from gpulayer.engine.events import OpinionsGiven, ScorersRegistered
from gpulayer.engine.state import Opinions, RequestClass, State, Worker
from gpulayer.engine.turn import Turn
from gpulayer.ids import Digest
from gpulayer.spec.opinion import NO_OPINION, Mark, Opinion, Refusal
from gpulayer.spec.request import Request

__all__ = [
    "awaited",
    "carry_over",
    "end_waits",
    "forget_what_is_over",
    "given",
    "is_known",
    "is_open",
    "lacking",
    "mark",
    "marked_by",
    "may_take",
    "of",
    "opinions_on",
    "refuses",
    "registered",
    "settle",
]

_LEAST_MS: Final = 1_000  # whatever a plugin says of lifetimes: less would ask without end, more would last for ever
_MOST_MS: Final = 3_600_000
_KEPT: Final = 512
_SWEEP_MS: Final = 10_000


def may_take(state: State, known: RequestClass, worker: Worker) -> bool:
    """No scorer speaks against it, and none is waited for. Always so without scorers."""
    if not state.policy.scorers:
        return True
    opinions = _opinions(state, known)
    if opinions is None or state.now_ms < opinions.held_until_ms:
        return False
    return state.now_ms < opinions.usable.get(worker.facts_digest, 0)


def is_open(state: State, known: RequestClass, digests: Set[Digest] | None = None) -> bool:
    """False where ``may_take`` is for all workers, or all with these facts. For a class, without a look at each."""
    if not state.policy.scorers:
        return True
    opinions = _opinions(state, known)
    if opinions is None or state.now_ms < opinions.held_until_ms:
        return False
    return bool(opinions.usable) if digests is None else not opinions.usable.keys().isdisjoint(digests)


def is_known(state: State, opinions: Opinions, digest: Digest) -> bool:
    """All have spoken on the pair, and what they said is believed."""
    return all((word := said.get(digest)) is not None and _holds(state, word) for said in opinions.said.values())


def refuses(state: State, known: RequestClass, worker: Worker) -> bool:
    """Some scorer does, at this time."""
    return any(isinstance(opinion, Refusal) for _, opinion in of(state, known.request, worker.facts_digest))


def mark(state: State, known: RequestClass, worker: Worker) -> float:
    """The mean over all scorers."""
    scorers = state.policy.scorers
    opinions = _opinions(state, known) if scorers else None
    if opinions is None:
        return NO_OPINION
    return sum(_mark(state, opinions, scorer, worker.facts_digest) for scorer in scorers) / len(scorers)


def marked_by(state: State, known: RequestClass, digest: Digest, other: Digest) -> str:
    """Which scorer prefers the first machine to the other most; empty where none does."""
    opinions = _opinions(state, known)
    if opinions is None:
        return ""
    leads = {
        scorer: _mark(state, opinions, scorer, digest) - _mark(state, opinions, scorer, other)
        for scorer in state.policy.scorers
    }
    best = max(leads, key=leads.__getitem__)
    return best if leads[best] > 0 else ""


def of(state: State, request: Request, digest: Digest) -> tuple[tuple[str, Opinion | None], ...]:
    """What is believed of a pair now, by all scorers: None is no opinion, or none yet."""
    opinions = state.opinions.get(request)
    if opinions is None:
        return tuple((scorer, None) for scorer in state.policy.scorers)
    words = [(scorer, opinions.said[scorer].get(digest)) for scorer in state.policy.scorers]
    return tuple((scorer, word[0] if word is not None and _holds(state, word) else None) for scorer, word in words)


def lacking(state: State, request: Request, digest: Digest) -> tuple[str, ...]:
    """Scorers without a word on the pair that is believed now."""
    opinions = state.opinions.get(request)
    if opinions is None:
        return state.policy.scorers
    words = [(scorer, opinions.said[scorer].get(digest)) for scorer in state.policy.scorers]
    return tuple(scorer for scorer, word in words if word is None or not _holds(state, word))


def awaited(state: State, request: Request) -> tuple[str, ...]:
    """Scorers whose answer is waited for."""
    opinions = state.opinions.get(request)
    return () if opinions is None else tuple(scorer for scorer, asked in opinions.asked.items() if asked)


def opinions_on(state: State, known: RequestClass) -> Opinions:
    """Those of the class's request, made if this is the first time; they are kept while they have a class, and as long
    as there are not too many."""
    if known.opinions is None:
        opinions = state.opinions.get(known.request)
        if opinions is None:
            _forget_some(state)
            scorers = state.policy.scorers
            opinions = Opinions({scorer: {} for scorer in scorers}, {scorer: set() for scorer in scorers})
            state.opinions[known.request] = opinions
        known.opinions = opinions
    return known.opinions


def given(turn: Turn, event: OpinionsGiven) -> None:
    """Late or doubled answers are as good as any; what nobody remembers to have asked is dropped."""
    state = turn.state
    opinions = state.opinions.get(event.request)
    if opinions is None or event.scorer not in opinions.said:
        return
    until_ms = state.now_ms + min(max(event.lifetime_ms, _LEAST_MS), _MOST_MS)
    said, asked = opinions.said[event.scorer], opinions.asked[event.scorer]
    for digest, opinion in event.said:
        said[digest] = (opinion, until_ms)
        asked.discard(digest)
    settle(turn, opinions, [digest for digest, _ in event.said])
    for known in state.classes.values():
        if known.opinions is opinions:
            known.looks_ms = min(known.looks_ms, until_ms)


def settle(turn: Turn, opinions: Opinions, digests: Iterable[Digest]) -> None:
    """Words on these pairs have come, or are over: whether they may be used, and whether they are waited for."""
    now_ms = turn.state.now_ms
    is_wider = False
    complete: list[Digest] = []
    sayings = list(opinions.said.values())
    for digest in digests:
        until_ms, is_refused = _MOST_MS + now_ms, False
        for said in sayings:
            opinion, word_ms = said.get(digest, _NO_WORD)
            until_ms = min(until_ms, word_ms)
            is_refused = is_refused or isinstance(opinion, Refusal)
        if until_ms > now_ms:
            complete.append(digest)
            opinions.until_ms = max(opinions.until_ms, until_ms)
        if until_ms <= now_ms or is_refused:
            opinions.usable.pop(digest, None)
        else:
            is_wider = is_wider or opinions.usable.get(digest, 0) <= now_ms
            opinions.usable[digest] = until_ms
    end_waits(turn, opinions, complete)
    if is_wider:
        _open(turn, opinions)


def end_waits(turn: Turn, opinions: Opinions, digests: Iterable[Digest]) -> None:
    """These pairs wait no more, whatever for; with the last of all the hold ends, as it does when its time is over."""
    for digest in digests:
        if opinions.waits.pop(digest, None) is not None:
            for asked in opinions.asked.values():
                asked.discard(digest)
    if opinions.held_until_ms and (not opinions.waits or opinions.held_until_ms <= turn.state.now_ms):
        opinions.held_until_ms = 0
        _open(turn, opinions)


def carry_over(turn: Turn, digest: Digest, to: Digest) -> None:
    """A machine's facts are others now, and differ only in figures that flow: words on it stand for their lifetime."""
    state = turn.state
    is_shared = any(worker.facts_digest == digest for worker in state.workers.values())
    for opinions in state.opinions.values():
        for said in opinions.said.values():
            word = said.get(digest)
            if word is not None and _holds(state, word) and not _holds(state, said.get(to, _NO_WORD)):
                said[to] = word
            if not is_shared:
                said.pop(digest, None)
        settle(turn, opinions, (to,) if is_shared else (digest, to))
        if not is_shared:
            end_waits(turn, opinions, (digest,))


def forget_what_is_over(state: State) -> None:
    """All opinions on requests that nobody has any more, once none of them is believed. Now and then."""
    if not state.opinions or state.now_ms < state.sweep_ms:
        return
    state.sweep_ms = state.now_ms + _SWEEP_MS
    over = [request for request, opinions in state.opinions.items() if opinions.until_ms <= state.now_ms]
    if over:
        waited_for = {request for request, _ in state.classes}
        for request in over:
            if request not in waited_for:
                del state.opinions[request]


def registered(turn: Turn, event: ScorersRegistered) -> None:
    """What others have said counts no more, and who waited for them does not."""
    state = turn.state
    if event.scorers == state.policy.scorers:
        return
    state.policy = replace(state.policy, scorers=event.scorers)
    state.opinions.clear()
    for known in state.classes.values():
        known.opinions, known.looks_ms, known.is_blocked = None, 0, False
    turn.has_new_head = True


def _open(turn: Turn, opinions: Opinions) -> None:
    for known in turn.state.classes.values():
        if known.opinions is opinions:
            known.is_blocked = False
            if not any(known is opened for opened in turn.opened):
                turn.opened.append(known)


def _opinions(state: State, known: RequestClass) -> Opinions | None:
    """Also for a class that is new: its request may be known from before."""
    return known.opinions or state.opinions.get(known.request)


def _mark(state: State, opinions: Opinions, scorer: str, digest: Digest) -> float:
    word = opinions.said[scorer].get(digest)
    is_mark = word is not None and isinstance(word[0], Mark) and _holds(state, word)
    return word[0].value if is_mark else NO_OPINION  # type: ignore[index, union-attr] # as was just asked


_NO_WORD: Final[tuple[Opinion | None, int]] = (None, 0)


def _holds(state: State, word: tuple[Opinion | None, int]) -> bool:
    return state.now_ms < word[1]


def _forget_some(state: State) -> None:
    """The oldest half of those that no class has. Now and then, so that it costs next to nothing."""
    if len(state.opinions) < max(_KEPT, state.opinions_limit):
        return
    waited_for = {request for request, _ in state.classes}
    for request in [request for request in state.opinions if request not in waited_for][: _KEPT // 2]:
        del state.opinions[request]
    state.opinions_limit = len(state.opinions) + _KEPT // 2
