"""Logs of jobs that ended long ago go, and what is left says so; so do tokens. The clock is the test's."""

import asyncio

import pytest

from gpulayer.clock import ManualClock
from gpulayer.errors import StorageUnavailable
from gpulayer.server.lastuse import save_uses
from gpulayer.server.retention import keep_sweeping, sweep, sweep_events, sweep_keys, sweep_tokens
from gpulayer.server.store import IDEMPOTENCY_KEPT_MS, Side, log, reads
from gpulayer.server.tokens import TokenKind, parse_token

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall_offset_ms=1_795_000_000_000)


@pytest.fixture
def start(make_plane, clock):
    def started(**settings):
        plane = make_plane(clock=clock, **settings).start()
        token = plane.new_token(TokenKind.CLIENT, life_s=None)  # the usual one of a test would not live for 30 days
        plane.http.headers["Authorization"] = f"Bearer {token}"
        return plane

    return started


def _ended_job(plane, worker) -> str:
    job = plane.submit()
    (command,) = worker.commands(hold_s=5)
    worker.put_log(command["epoch"], 0, b"hello\n")
    worker.report(worker.ended(command["epoch"]))
    return job["id"]


def _later(plane, clock, days: float) -> int:
    clock.advance(int(days * DAY_MS))
    plane.call(lambda: plane.plane.driver.read(lambda state: None))
    return plane.call(lambda: sweep(plane.plane))


def _logs(plane, job: str, **query):
    return plane.http.get(f"/v1/jobs/{job}/logs", params=query)


def test_a_log_is_removed_30_days_after_its_jobs_end_and_the_answer_says_when(start, clock) -> None:
    plane = start()
    worker = plane.worker()
    worker.report()
    job = _ended_job(plane, worker)
    assert _later(plane, clock, 29.9) == 0
    assert _logs(plane, job).content == b"hello\n"
    assert _later(plane, clock, 0.2) == 1
    for query in ({}, {"follow": 1}, {"tail_bytes": 10}, {"attempt": 1, "follow": 1}):
        answer = _logs(plane, job, **query)
        assert answer.status_code == 404
        error = plane.check_envelope(answer)
        assert error["code"] == "not_found"
        date = error["details"]["removed_at"][:10]
        assert f"was removed on {date}, 30 days after its end" in error["message"]
        assert "job show" in error["hint"]
    assert plane.job(job)["state"] == "succeeded"
    assert _later(plane, clock, 1) == 0


def test_the_log_of_a_job_that_lives_stays_however_old_it_is(start, clock) -> None:
    plane = start()
    worker = plane.worker()
    worker.report()
    job = plane.submit(keep_for_ms=10**11)
    (command,) = worker.commands(hold_s=5)
    worker.put_log(command["epoch"], 0, b"begun")
    plane.submit()  # has no log at all
    assert plane.call(lambda: sweep(plane.plane)) == 0
    assert list(plane.plane.logs.held()) == [job["id"]]


def test_zero_keeps_logs_for_ever(start, clock) -> None:
    plane = start(keep_logs_ms=0)
    worker = plane.worker()
    worker.report()
    job = _ended_job(plane, worker)
    assert _later(plane, clock, 10_000) == 0
    assert _logs(plane, job).content == b"hello\n"


def test_a_served_plane_sweeps_by_itself_and_goes_on_after_a_failure(start, clock) -> None:
    plane = start(keep_logs_ms=1_000)
    worker = plane.worker()
    worker.report()
    first = _ended_job(plane, worker)
    clock.advance(2_000)
    real, failures = plane.plane.logs.remove, []

    def remove(job_id, *, wall_ms):
        if not failures:
            failures.append(job_id)
            raise StorageUnavailable("the disk is away")
        real(job_id, wall_ms=wall_ms)

    plane.plane.logs.remove = remove

    async def sweep_until_gone() -> None:
        sweeping = asyncio.create_task(keep_sweeping(plane.plane, first_s=0.01, every_s=0.01))
        async with asyncio.timeout(20):
            while plane.plane.logs.removed_at(first) is None:
                await asyncio.sleep(0.01)
        sweeping.cancel()

    plane.call(sweep_until_gone)
    assert failures == [first]
    assert "2.0 s after its end" in plane.check_envelope(_logs(plane, first))["message"]


def _stored(plane) -> set[str]:
    return {row.id for row in plane.call(lambda: plane.plane.query(reads.read_tokens))}


def test_a_token_that_expired_is_forgotten_a_day_later_and_no_other(start, clock) -> None:
    plane = start()
    kept = [plane.new_token(TokenKind.CLIENT, life_s=None), plane.new_token(TokenKind.CLIENT, life_s=86_400 * 30)]
    own = plane.new_token(TokenKind.CLIENT, life_s=None, is_local=True)  # of this machine's user, in this run
    ended = [plane.new_token(kind, life_s=3600) for kind in (TokenKind.CLIENT, TokenKind.JOIN)]
    for token in ended[:1]:  # used, and that not saved yet
        assert plane.bare.get(f"{plane.url}/v1/plane", headers={"Authorization": f"Bearer {token}"}).is_success
    ids = {parse_token(token)[1] for token in ended}
    clock.advance(DAY_MS)
    assert plane.call(lambda: sweep_tokens(plane.plane)) == 0
    assert ids <= _stored(plane)
    clock.advance(3_601_000)
    assert plane.call(lambda: sweep_tokens(plane.plane)) >= 2  # the test's own short ones, too
    assert not ids & _stored(plane)
    plane.call(lambda: save_uses(plane.plane))
    assert not ids & _stored(plane)
    listed = {token["id"] for token in plane.http.get("/v1/tokens").json()["tokens"]}
    assert listed == _stored(plane) >= {parse_token(token)[1] for token in (*kept, own)}
    for token, status in ((ended[0], 401), (own, 200), (kept[1], 200)):
        answer = plane.bare.get(f"{plane.url}/v1/plane", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == status


def test_a_change_of_a_token_that_is_on_its_way_does_not_bring_it_back(start, clock) -> None:
    plane = start()
    token = plane.new_token(TokenKind.CLIENT, life_s=3600)
    clock.advance(DAY_MS + 3_601_000)

    async def both() -> None:
        async with plane.plane.enrolling:
            sweeping = asyncio.create_task(sweep_tokens(plane.plane))
            await asyncio.sleep(0.02)
            row = plane.plane.auth.token(parse_token(token)[1])
            await plane.plane.driver.submit(side=Side(tokens=(row,)))
            plane.plane.auth.keep_token(row)
        await sweeping

    plane.call(both)
    assert parse_token(token)[1] not in _stored(plane)


@pytest.mark.parametrize("keep_logs_ms", [0, 1_000])
def test_a_served_plane_forgets_tokens_by_itself_whatever_becomes_of_the_logs(start, clock, keep_logs_ms) -> None:
    plane = start(keep_logs_ms=keep_logs_ms)
    ended = parse_token(plane.new_token(TokenKind.JOIN, life_s=1))[1]
    clock.advance(DAY_MS + 2_000)

    def fail():
        raise StorageUnavailable("the disk is away")

    plane.plane.logs.held = fail

    async def sweep_until_gone() -> None:
        sweeping = asyncio.create_task(keep_sweeping(plane.plane, first_s=0.01, every_s=0.01))
        async with asyncio.timeout(20):
            while plane.plane.auth.token(ended) is not None:
                await asyncio.sleep(0.01)
        sweeping.cancel()

    plane.call(sweep_until_gone)
    assert ended not in _stored(plane)


def _swept(plane) -> int:
    plane.call(lambda: sweep_keys(plane.plane))
    return plane.call(lambda: sweep_events(plane.plane))


def _back(worker) -> None:
    worker.open_session()
    worker.report()


def _log(plane) -> list:
    async def rows():
        read = log.read_log
        return (await plane.plane.query(read, after=0, limit=5_000, kinds={"worker_reported"}, leaving="}")).rows

    return list(plane.call(rows))


def _facts(plane) -> set[str]:
    with plane.plane.store.reading() as connection:
        return set(connection.exec_driver_sql("SELECT digest FROM facts").scalars())


def test_events_are_forgotten_after_30_days_and_numbers_go_on(start, clock) -> None:
    plane = start()
    worker = plane.worker()
    worker.report()
    old = _ended_job(plane, worker)
    clock.advance(20 * DAY_MS)
    assert _swept(plane) == 0
    _back(worker)
    before = _log(plane)[-1].seq
    clock.advance(1_000)
    young = _ended_job(plane, worker)
    clock.advance(30 * DAY_MS - 500)
    assert _swept(plane) == before
    assert _log(plane)[0].seq == before + 1
    events = plane.http.get(f"/v1/jobs/{old}/events").json()
    assert (events["events"], events["next"]) == ([], 0)
    assert plane.job(old)["state"] == "succeeded"
    assert plane.http.get(f"/v1/jobs/{young}/events").json()["events"][0]["event"] == "job_submitted"
    newest = _log(plane)[-1].seq
    clock.advance(90 * DAY_MS)
    _swept(plane)
    assert [row.seq for row in _log(plane)] == [newest]  # numbers are never given out again
    plane.submit()
    assert _log(plane)[1].seq == newest + 1
    assert _swept(plane) == newest


def test_facts_stay_while_an_event_or_a_worker_names_them(start, clock) -> None:
    plane = start()
    worker = plane.worker()
    worker.report(facts={**worker.facts, "cpus": 8})
    assert len(_facts(plane)) == 2
    clock.advance(31 * DAY_MS)
    worker.open_session()
    worker.report(facts={**worker.facts, "cpus": 16})
    assert len(_facts(plane)) == 3
    _swept(plane)
    left = _facts(plane)
    assert len(left) == 1  # the worker's own, and its last row names them too
    worker.report(facts={**worker.facts, "cpus": 8})
    assert len(_facts(plane)) == 2
    plane.stop()
    plane.start()
    assert {row["cpus"] for row in plane.http.get("/v1/workers").json()["workers"]} == {8}


def test_an_event_that_a_sink_was_not_told_stays_for_as_long_again(start, clock) -> None:
    plane = start()
    worker = plane.worker()
    worker.report()
    _ended_job(plane, worker)
    rows = _log(plane)
    told = rows[1].seq
    plane.call(lambda: plane.plane.driver.submit(side=Side(sink_cursors=(("gone/sink", told),))))
    clock.advance(31 * DAY_MS)
    plane.submit()
    _swept(plane)
    assert _log(plane)[0].seq == told + 1
    clock.advance(30 * DAY_MS)
    _swept(plane)
    assert _log(plane)[0].seq > told + 1


def test_zero_keeps_events_for_ever_and_idempotency_keys_go_while_it_runs(start, clock) -> None:
    plane = start(keep_events_ms=0)
    body = {"schema": 1, "command": ["true"]}
    first = plane.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    clock.advance(IDEMPOTENCY_KEPT_MS - 1_000)
    assert _swept(plane) == 0
    again = plane.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert again.json()["id"] == first.json()["id"]
    clock.advance(100 * DAY_MS)
    assert _swept(plane) == 0
    assert _log(plane)[0].seq == 1
    another = plane.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
    assert another.json()["id"] != first.json()["id"]


def test_a_long_log_is_forgotten_in_many_small_commits(start, clock, monkeypatch) -> None:
    plane = start()
    for _ in range(30):
        plane.submit()
    clock.advance(31 * DAY_MS)
    monkeypatch.setattr("gpulayer.server.retention._EVENTS_AT_A_TIME", 4)
    sides = []
    real = plane.plane.driver.submit

    async def submit(*makes, side=None):
        sides.append(side)
        return await real(*makes, side=side)

    plane.plane.driver.submit = submit
    _swept(plane)
    deleted = [side.forget_events for side in sides if side.forget_events]
    assert deleted == [4 * n for n in range(1, len(deleted))] + deleted[-1:]
    assert len(deleted) >= 7
