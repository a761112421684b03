"""Scorers in the control plane: batches, bad answers, and what people see of it."""

import asyncio
import contextlib
import functools
import itertools
import math
import threading
from types import SimpleNamespace

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.engine import Policy, State
from gpulayer.engine.effects import AskScorer
from gpulayer.errors import StorageUnavailable
from gpulayer.ids import Digest
from gpulayer.plugins import Mark, Refusal
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.server import plugins as server_plugins
from gpulayer.server import scorers as server_scorers
from gpulayer.server.scorers import Scorers
from gpulayer.spec.machine import WorkerFacts
from gpulayer.spec.request import Request

BODY = {"schema": 1, "command": ["true"]}
ONE, TWO = Request(cpus=1), Request(cpus=2)


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **options):
        asyncio.run(test(*args, **options))

    return run


class Says:
    """A scorer that says what ``score`` says of a batch."""

    def __init__(self, score, name="night", lifetime_s=60.0):
        self._score = score
        self._name = name
        self._lifetime_s = lifetime_s
        self.batches = []

    @property
    def name(self):
        return self._name

    @property
    def lifetime_s(self):
        return self._lifetime_s

    def score(self, batch):
        self.batches.append(batch)
        return self._score(batch)


def each(opinion):
    return lambda batch: [opinion] * len(batch.pairs)


def host_of(*scorers, strict=False):
    registered = tuple(
        Registered(f"plugin{number}", scorer, scorer.name, "scorer", lifetime_s=scorer.lifetime_s)
        for number, scorer in enumerate(scorers)
    )
    return Host(Registry(scorers=registered), Guard(clock=SystemClock(), strict=strict), lambda: ())


def state_of(count):
    facts = {Digest(f"d{number}"): WorkerFacts("linux", "1", 4, 2**33 + number) for number in range(count)}
    return State(policy=Policy(scorers=("night",)), facts=facts)


class Engine:
    """In place of the driver."""

    def __init__(self):
        self.given = []
        self.came = asyncio.Event()
        self.error = None

    async def submit(self, *makes):
        self.given.extend(make(SimpleNamespace(ms=0, wall_ms=0)) for make in makes)
        self.came.set()
        if self.error is not None:
            raise self.error

    async def until(self, count):
        async with asyncio.timeout(20):
            while len(self.given) < count:
                self.came.clear()
                await self.came.wait()
        return self.given


@contextlib.asynccontextmanager
async def asking(*scorers):
    engine, host = Engine(), host_of(*scorers)
    clock = ManualClock()
    asked = Scorers(host, clock=clock, submit=engine.submit)
    asked.clock = clock
    running = asyncio.create_task(asked.run())
    try:
        yield asked, engine
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        host.close()


def ask(state, request, *names, scorer="night"):
    return AskScorer(scorer, request, names or tuple(state.facts))


async def answer_of(scorer, count=2):
    async with asking(scorer) as (asked, engine):
        state = state_of(count)
        asked.take(state, [ask(state, ONE)])
        return (await engine.until(1))[0]


@in_loop
async def test_of_machines_that_have_other_facts_by_now_nothing_is_asked():
    scorer = Says(each(Mark(1.0)))
    async with asking(scorer) as (asked, engine):
        state = state_of(2)
        gone, both = ask(state, ONE, "d0"), ask(state, TWO)
        del state.facts["d0"]
        asked.take(state, [gone, both])
        (given,) = await engine.until(1)
    assert (given.request, given.said) == (TWO, (("d1", Mark(1.0)),))
    assert len(scorer.batches) == 1


@in_loop
async def test_what_is_asked_goes_to_the_scorer_in_one_batch_and_its_words_come_back_by_request():
    scorer = Says(lambda batch: [Mark(pair.request / 2 + pair.machine / 4) for pair in batch.pairs])
    async with asking(scorer) as (asked, engine):
        state = state_of(2)
        asked.take(state, [ask(state, ONE), ask(state, TWO, "d1")])
        one, two = await engine.until(2)
    (batch,) = scorer.batches
    assert batch.requests == (ONE, TWO)
    assert batch.machines == tuple(state.facts.values())
    assert [(pair.request, pair.machine) for pair in batch.pairs] == [(0, 0), (0, 1), (1, 1)]
    assert batch.wall_ms == ManualClock().wall_ms()
    assert (one.scorer, one.request, one.lifetime_ms) == ("night", ONE, 60_000)
    assert one.said == (("d0", Mark(0.0)), ("d1", Mark(0.25)))
    assert (two.request, two.said) == (TWO, (("d1", Mark(0.75)),))


class Lies(Mark):
    """A mark that is checked when it is made, and then changes its mind."""

    @property
    def value(self):
        return math.nan

    @value.setter
    def value(self, _):
        pass


def endless(batch):
    return itertools.repeat(None)


def ends_the_process(batch):
    raise SystemExit(3)


def lying(batch):
    mark = object.__new__(Lies)
    return [mark] * len(batch.pairs)


BAD = {
    "raises": Says(lambda batch: 1 / 0),
    "exits": Says(ends_the_process),
    "too few": Says(lambda batch: [None]),
    "too many": Says(lambda batch: [None] * 3),
    "endless": Says(endless),
    "nothing": Says(lambda batch: None),
    "a text": Says(lambda batch: "no"),
    "numbers": Says(lambda batch: [0.5, 0.5]),
    "NaN": Says(lying),
    "a refusal of bytes": Says(each(Refusal(b"no"))),
}


@pytest.mark.parametrize("name", BAD)
@in_loop
async def test_a_bad_answer_is_no_opinion_for_some_seconds(name):
    given = await answer_of(BAD[name])
    assert (given.lifetime_ms, given.said) == (10_000, (("d0", None), ("d1", None)))


@in_loop
async def test_a_scorer_that_the_guard_lets_rest_has_no_opinion_as_long_as_it_rests():
    scorer = Says(lambda batch: 1 / 0)
    async with asking(scorer) as (asked, engine):
        state = state_of(1)
        for count in range(1, 5):
            asked.take(state, [ask(state, ONE)])
            await engine.until(count)
    assert [given.lifetime_ms for given in engine.given[:3]] == [10_000] * 3
    assert 20_000 < engine.given[3].lifetime_ms <= 30_000
    assert engine.given[3].said == (("d0", None),)
    assert len(scorer.batches) == 3


def curious(asked, state, request, *names):
    machines = {digest: state.facts[digest] for digest in names or state.facts}
    return asked.ask(request, {"night": machines})


class Held(Says):
    """Answers when it may."""

    def __init__(self, score):
        super().__init__(self._held)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._answer = score

    def _held(self, batch):
        self.begun.set()
        assert self.may_end.wait(20)
        return self._answer(batch)


@in_loop
async def test_what_somebody_wanted_to_know_is_kept_for_a_moment():
    scorer = Says(each(Mark(0.7)))
    async with asking(scorer) as (asked, engine):
        state = state_of(2)
        wanted = {("night", "d0"): Mark(0.7), ("night", "d1"): Mark(0.7)}
        assert await curious(asked, state, ONE, "d0") == {("night", "d0"): Mark(0.7)}
        assert await curious(asked, state, ONE) == wanted
        assert await curious(asked, state, ONE) == wanted
        assert [len(batch.pairs) for batch in scorer.batches] == [1, 1]
        asked.clock.advance(10_001)
        assert await curious(asked, state, ONE) == wanted
    assert [len(batch.pairs) for batch in scorer.batches] == [1, 1, 2]
    assert engine.given == []


@in_loop
async def test_many_who_want_to_know_are_answered_by_one_batch_at_a_time():
    scorer = Held(each(Mark(0.7)))
    async with asking(scorer) as (asked, _):
        state = state_of(2)
        asks = [asyncio.create_task(curious(asked, state, Request(cpus=1 + number))) for number in range(40)]
        assert await asyncio.to_thread(scorer.begun.wait, 20)
        scorer.may_end.set()
        answers = await asyncio.gather(*asks)
    assert answers == [{("night", "d0"): Mark(0.7), ("night", "d1"): Mark(0.7)}] * 40
    assert len(scorer.batches) <= 2


@in_loop
async def test_who_gives_up_takes_nobody_s_answer_along():
    scorer = Held(each(Mark(0.7)))
    async with asking(scorer) as (asked, _):
        state = state_of(1)
        impatient = asyncio.create_task(curious(asked, state, ONE))
        assert await asyncio.to_thread(scorer.begun.wait, 20)
        patient = [asyncio.create_task(curious(asked, state, request)) for request in (ONE, TWO)]
        await asyncio.sleep(0)
        impatient.cancel()
        scorer.may_end.set()
        assert await asyncio.gather(*patient) == [{("night", "d0"): Mark(0.7)}] * 2


@in_loop
async def test_what_people_want_to_know_holds_up_no_placement_whether_it_hangs_or_fails():
    may_end = threading.Event()

    def score(batch):
        if batch.requests == (TWO,):
            assert may_end.wait(20)
        if batch.requests[0].cpus > 2:
            raise RuntimeError("what a request")
        return [Mark(0.7)] * len(batch.pairs)

    async with asking(Says(score)) as (asked, engine):
        state = state_of(1)
        for number in range(5):  # enough for the guard to let explain rest
            assert await curious(asked, state, Request(cpus=3 + number)) == {("night", "d0"): None}
        hanging = asyncio.create_task(curious(asked, state, TWO))
        await asyncio.sleep(0)
        asked.take(state, [ask(state, ONE)])
        (given,) = await engine.until(1)
        may_end.set()
        await hanging
    assert given.said == (("d0", Mark(0.7)),)


@in_loop
async def test_what_a_scorer_says_of_itself_is_not_asked_again():
    scorer = Says(each(Mark(0.7)))
    async with asking(scorer) as (asked, engine):
        scorer._name, scorer._lifetime_s = "day", None
        state = state_of(1)
        asked.take(state, [ask(state, ONE)])
        (given,) = await engine.until(1)
    assert (given.scorer, given.lifetime_ms, given.said) == ("night", 60_000, (("d0", Mark(0.7)),))


@in_loop
async def test_an_answer_that_takes_too_long_is_none(monkeypatch):
    monkeypatch.setattr(server_scorers, "SCORER_DEADLINE_S", 0.1)
    may_end = threading.Event()
    try:
        given = await answer_of(Says(lambda batch: may_end.wait(20)))
    finally:
        may_end.set()
    assert given.said == (("d0", None), ("d1", None))


@in_loop
async def test_one_that_hangs_holds_up_no_other():
    may_end = threading.Event()
    hangs, answers = Says(lambda batch: may_end.wait(20), "hangs"), Says(each(Mark(1.0)), "answers")
    async with asking(hangs, answers) as (asked, engine):
        assert asked.names == ("hangs", "answers")
        state = state_of(1)
        asked.take(state, [ask(state, ONE, scorer="hangs"), ask(state, ONE, scorer="answers")])
        (given,) = await engine.until(1)
        may_end.set()
    assert given.scorer == "answers"


@in_loop
async def test_a_reason_is_one_printable_line():
    given = await answer_of(Says(each(Refusal("too\ndear\x1b[2J " + "x" * 999))), count=1)
    ((_, refusal),) = given.said
    assert refusal.reason.startswith("too dear [2J xxx")
    assert len(refusal.reason) == 200


@in_loop
async def test_large_batches_are_cut_and_so_are_events():
    scorer = Says(each(None))
    async with asking(scorer) as (asked, engine):
        state = state_of(25_000)
        asked.take(state, [ask(state, ONE)])
        given = await engine.until(13)
    assert [len(batch.pairs) for batch in scorer.batches] == [20_000, 5_000]
    assert [len(event.said) for event in given] == [2_000] * 10 + [2_000, 2_000, 1_000]


@in_loop
async def test_what_waits_is_asked_once_however_often_the_engine_asks():
    first, may_end = threading.Event(), threading.Event()

    def score(batch):
        first.set()
        assert may_end.wait(20)
        return [None] * len(batch.pairs)

    scorer = Says(score)
    async with asking(scorer) as (asked, engine):
        state = state_of(3)
        asked.take(state, [ask(state, ONE, "d0")])
        assert await asyncio.to_thread(first.wait, 20)
        for _ in range(5):
            asked.take(state, [ask(state, ONE, "d1", "d2")])
        may_end.set()
        await engine.until(2)
    assert [len(batch.pairs) for batch in scorer.batches] == [1, 2]


@in_loop
async def test_opinions_that_can_not_be_stored_now_are_dropped_and_asking_goes_on():
    async with asking(Says(each(None))) as (asked, engine):
        state = state_of(1)
        engine.error = StorageUnavailable("the disk is full")
        asked.take(state, [ask(state, ONE)])
        await engine.until(1)
        engine.error = None
        asked.take(state, [ask(state, TWO)])
        await engine.until(2)


@in_loop
async def test_what_nobody_registered_is_not_asked():
    async with asking(Says(each(None))) as (asked, _):
        asked.take(state_of(1), [AskScorer("stranger", ONE, (Digest("d0"),))])


@in_loop
async def test_what_a_plugin_raises_ends_a_strict_plane():
    scorers = Scorers(host_of(Says(lambda batch: 1 / 0), strict=True), clock=ManualClock(), submit=Engine().submit)
    state = state_of(1)
    scorers.take(state, [ask(state, ONE)])
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(scorers.run(), 20)
    assert raised.group_contains(ZeroDivisionError)


# In a whole control plane --------------------------------------------------------------------------------------------


@pytest.fixture
def scored(make_plane):
    def make(*scorers, **options):
        live = make_plane(**options)
        live.host = lambda: host_of(*scorers)
        return live.start()

    return make


def test_a_job_goes_where_the_scorer_wants_it_and_says_so(scored):
    live = scored(Says(lambda batch: [Mark(0.9 if batch.machines[p.machine].cpus == 4 else 0.1) for p in batch.pairs]))
    small, large = live.worker("small", cpus=1), live.worker("large", cpus=4)
    small.report(), large.report()
    job = live.http.post("/v1/jobs", json=BODY).json()
    record = live.until(lambda: (found := live.http.get(f"/v1/jobs/{job['id']}").json())["attempts"] and found)
    assert record["placement"] == "large: of 2 that fit and are free, scorer night marks it highest"


def test_a_refused_job_waits_and_says_by_whom_it_is_refused(scored):
    live = scored(Says(each(Refusal("too dear until 22:00"))))
    live.worker("box").report()
    job = live.http.post("/v1/jobs", json=BODY).json()["id"]
    why = live.until(
        lambda: (reason := live.http.get(f"/v1/jobs/{job}").json()["reason"])["code"] == "plugin_rejected" and reason
    )
    assert why["message"] == "every worker that fits is refused: scorer night: too dear until 22:00 (box)"
    assert live.http.get(f"/v1/jobs/{job}").json()["state"] == "queued"


def test_a_job_that_does_not_wait_is_turned_away_with_the_reasons(scored):
    live = scored(Says(each(Refusal("too dear"))))
    live.worker("box").report()
    record = live.http.post("/v1/jobs", json={**BODY, "wait": False}).json()  # decided when it is answered
    assert (record["state"], record["reason"]["code"]) == ("rejected", "no_capacity")
    (verdict,) = record["verdicts"]
    assert verdict["reasons"][0]["message"] == "scorer night: too dear"


def test_explain_asks_for_what_nobody_has_asked_yet_and_leaves_nothing_behind(scored):
    scorer = Says(each(Refusal("too dear")))
    live = scored(scorer)
    live.worker("box").report()
    body = {"schema": 1, "request": {"cpus": 1}}
    reply = live.http.post("/v1/explain", json=body).json()
    assert reply["choice"] is None
    assert reply["verdicts"][0]["reasons"][0]["code"] == "plugin_rejected"
    assert live.plane.driver.look(lambda state: dict(state.opinions)) == {}
    live.http.post("/v1/explain", json={"schema": 1, "request": {"cpus": 999}})
    assert len(scorer.batches) == 1  # nobody is asked of what can't run it


def test_explain_takes_what_is_known(scored):
    scorer = Says(each(Mark(0.7)))
    live = scored(scorer)
    live.worker("box", cpus=1).report()
    live.http.post("/v1/jobs", json=BODY)
    live.until(lambda: live.plane.driver.look(lambda state: bool(state.attempts)))
    reply = live.http.post("/v1/explain", json={"schema": 1, "request": {}}).json()
    assert reply["verdicts"][0]["verdict"] == "busy"
    assert len(scorer.batches) == 1


def test_explain_waits_no_longer_than_a_scorer_may_take(scored, monkeypatch):
    monkeypatch.setattr(server_scorers, "SCORER_DEADLINE_S", 0.1)
    may_end = threading.Event()
    live = scored(Says(lambda batch: may_end.wait(20)))
    live.worker("box").report()
    try:
        assert live.http.post("/v1/explain", json={"schema": 1, "request": {}}).json()["choice"] == "box"
    finally:
        may_end.set()


def test_after_a_restart_scorers_are_asked_again_before_anything_is_placed(scored):
    scorer = Says(each(Refusal("too dear")))
    live = scored(scorer)
    worker = live.worker("box")
    worker.report()
    job = live.http.post("/v1/jobs", json=BODY).json()["id"]
    live.until(lambda: scorer.batches)
    live.restart()
    worker.open_session()
    worker.report()
    live.until(lambda: len(scorer.batches) == 2)
    why = live.until(
        lambda: (reason := live.http.get(f"/v1/jobs/{job}").json()["reason"])["code"] == "plugin_rejected" and reason
    )
    assert "too dear" in why["message"]
    assert live.http.get(f"/v1/jobs/{job}").json()["attempts"] == []


def test_while_plugins_load_what_waits_from_before_waits_for_them(make_plane, monkeypatch):
    live = make_plane()
    live.host = host_of
    live.start()
    job = live.http.post("/v1/jobs", json=BODY).json()["id"]
    live.stop()
    may_load = threading.Event()
    scorer = Says(each(Refusal("too dear")))

    def load(*_, **__):
        assert may_load.wait(20)
        return host_of(scorer)

    monkeypatch.setattr(server_plugins, "load_plugins", load)
    live.host = lambda: None
    live.clock = ManualClock()  # the wait for them does not pass
    live.start()
    try:
        live.worker("box").report()
        record = live.http.get(f"/v1/jobs/{job}").json()
        assert record["attempts"] == []
        assert record["reason"]["message"] == "waits for what scorers say: (plugins still load)"
    finally:
        may_load.set()
    live.until(lambda: scorer.batches)
    live.until(lambda: live.http.get(f"/v1/jobs/{job}").json()["reason"]["code"] == "plugin_rejected")


def test_opinions_are_no_rows_and_a_log_row_only_where_somebody_was_placed_by_them(scored):
    live = scored(Says(each(Mark(0.7))), clock=ManualClock())  # however slow it is here, the wait for them never ends
    live.worker("box").report()
    job = live.http.post("/v1/jobs", json=BODY).json()["id"]
    live.until(lambda: live.job(job)["attempts"])  # as it is committed
    with live.plane.store.reading() as connection:
        rows = connection.exec_driver_sql("select kind, body from events where kind like 'opinions%'").all()
    assert [kind for kind, _ in rows] == ["opinions_given"]
    assert '"marks":1' in rows[0][1].replace(" ", "")
