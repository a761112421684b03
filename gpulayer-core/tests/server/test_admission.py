"""More comes than can be done: what is new is refused at once and comes again; what was accepted goes ahead."""

import asyncio
import json
import socket
import threading
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from gpulayer.client import calls
from gpulayer.client.async_transport import AsyncTransport
from gpulayer.client.location import Location
from gpulayer.errors import Overloaded
from gpulayer.net import parse_url
from gpulayer.server.admission import Admission, AdmissionLimits, Backlog, Demand, Load, decide
from gpulayer.server.routes import ROUTES
from gpulayer.server.store import Store
from gpulayer.server.tokens import TokenKind
from gpulayer.worker.http import HttpClient

LIMITS = AdmissionLimits()
FLOOD, OURS = 200, 20
BUSY = {
    "the driver has much before it": Load(Backlog(events=40_000)),
    "its oldest is old": Load(Backlog(events=1, oldest_ms=5_000)),
    "many are under way": Load(under_way=256),
    "their bodies fill the memory": Load(under_way=1, body_bytes=256 * 2**20),
}


@pytest.mark.parametrize("load", BUSY.values(), ids=BUSY)
def test_new_jobs_are_refused_while_too_much_is_to_be_done(load):
    assert decide(Demand.SUBMIT, 1, load, LIMITS) is not None
    assert decide(Demand.AHEAD, 1, load, LIMITS) is None


@pytest.mark.parametrize(
    "load",
    [
        Load(),
        Load(Backlog(39_999, 4_999), under_way=255, body_bytes=255 * 2**20, refused=10_000),
    ],
)
def test_what_can_be_done_is_let_in_however_many_were_refused_before(load):
    assert all(decide(demand, 1, load, LIMITS) is None for demand in (Demand.SUBMIT, Demand.AHEAD))


@pytest.mark.parametrize(("demand", "most"), [(Demand.SUBMIT, 256), (Demand.UPLOAD, 64), (Demand.LOOK, 128)])
def test_each_kind_has_its_own_number_under_way(demand, most):
    assert decide(demand, 0, Load(under_way=most - 1), LIMITS) is None
    assert decide(demand, 0, Load(under_way=most), LIMITS) == 1


def test_only_what_is_new_waits_for_a_driver_that_is_behind():
    behind = Load(Backlog(10**6, 10**6))
    assert {demand for demand in Demand if decide(demand, 0, behind, LIMITS) is None} == set(Demand) - {Demand.SUBMIT}


def test_a_body_larger_than_all_memory_for_bodies_is_let_in_alone():
    assert decide(Demand.SUBMIT, 2**40, Load(), LIMITS) is None
    assert decide(Demand.SUBMIT, 2**40, Load(under_way=1), LIMITS) == 1


def test_the_further_behind_and_the_more_refused_the_later_they_come_again():
    full = {"under_way": 256}
    assert decide(Demand.SUBMIT, 0, Load(**full), LIMITS) == 1
    assert decide(Demand.SUBMIT, 0, Load(**full, refused=600), LIMITS) == 4
    assert decide(Demand.SUBMIT, 0, Load(Backlog(1, 7_000)), LIMITS) == 8
    assert decide(Demand.SUBMIT, 0, Load(Backlog(1, 700_000), refused=10**6), LIMITS) == 10


def test_what_has_ended_counts_no_more_and_refusals_are_forgotten_after_a_second():
    now = [10_000]
    gate = Admission(AdmissionLimits(submits=1, refusals_a_second=1), backlog=Backlog, monotonic_ms=lambda: now[0])
    with gate.admitted(Demand.SUBMIT, "a") as held:
        held.take(5)
        for again_s in (1, 2, 3):
            with pytest.raises(Overloaded) as refused, gate.admitted(Demand.SUBMIT, "b"):
                pass
            assert refused.value.details == {"retry_after_s": again_s}
        now[0] += 1_000
        assert gate.load(Demand.SUBMIT).refused == 3
        now[0] += 1_000
        assert gate.load(Demand.SUBMIT, "a") == Load(under_way=1, body_bytes=5, of_party=1, party_bytes=5)
        assert gate.load(Demand.SUBMIT, "b") == Load(under_way=1, body_bytes=5)
    with pytest.raises(ValueError, match="broken"), gate.admitted(Demand.SUBMIT, "a"):
        raise ValueError("broken")
    assert gate.load(Demand.SUBMIT) == Load()
    assert gate.refusals == 3


@pytest.mark.parametrize("demand", [Demand.SUBMIT, Demand.UPLOAD, Demand.LOOK])
def test_whatever_one_party_does_half_of_the_places_and_of_the_memory_are_for_others(demand):
    gate = Admission(AdmissionLimits(), backlog=Backlog, monotonic_ms=lambda: 0)
    with ExitStack() as under_way:
        for _ in range(LIMITS.at_once(demand) // 2):
            held = under_way.enter_context(gate.admitted(demand, "greedy"))
            with suppress(Overloaded):
                held.take(16 * 2**20)
        with pytest.raises(Overloaded):
            under_way.enter_context(gate.admitted(demand, "greedy"))
        assert gate.load(demand, "greedy").party_bytes <= LIMITS.body_bytes // 2
        for _ in range(7):
            held = under_way.enter_context(gate.admitted(demand, "modest"))
            held.take(16 * 2**20)


def test_a_body_counts_by_what_has_come_of_it(plane):
    """What is only announced takes no memory: a hundred that announce as much as they may keep nobody out."""
    drips = [slow_body(plane, "POST", "/v1/jobs", 16 * 2**20) for _ in range(100)]
    drips += [slow_body(plane, "PUT", f"/v1/blobs/{'0' * 64}", 10**9) for _ in range(30)]
    try:
        plane.until(lambda: plane.plane.admission.load(Demand.SUBMIT).under_way == 100)
        plane.until(lambda: plane.plane.admission.load(Demand.UPLOAD).under_way == 30)
        plane.until(lambda: plane.plane.admission.load(Demand.SUBMIT).body_bytes == 100 * len(SOME))
        assert plane.submit()["id"]
        assert plane.put_blob(b"hello")
        assert plane.http.post("/v1/sources:missing", json={"digests": []}).status_code == 200
    finally:
        for drip in drips:
            drip.close()


def test_who_drips_on_all_places_that_a_party_has_keeps_others_from_none(plane):
    other = plane.new_token(TokenKind.CLIENT, owner="other")
    drips = [slow_body(plane, "POST", "/v1/jobs", 1_000) for _ in range(LIMITS.submits // 2)]
    try:
        plane.until(lambda: plane.plane.admission.load(Demand.SUBMIT).under_way == len(drips))
        assert plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}).status_code == 503
        headers = {"Authorization": f"Bearer {other}"}
        answer = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]}, headers=headers)
        assert answer.status_code == 201, answer.text
    finally:
        for drip in drips:
            drip.close()


SOME = b"[" * 100


def slow_body(plane, method, path, announced):
    """A request whose body has begun and goes on some time."""
    url = parse_url(plane.url)
    connection = socket.create_connection((url.host, url.port))
    head = f"{method} {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nAuthorization: Bearer {plane.token}\r\n"
    connection.sendall(f"{head}Content-Length: {announced}\r\n\r\n".encode() + SOME)
    return connection


def test_what_a_worker_needs_and_what_asks_of_one_job_is_never_refused():
    refusable = {(route.method, route.path) for route in ROUTES if route.demand is not Demand.AHEAD}
    assert refusable == {
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs:batch"),
        ("POST", "/v1/jobs/{ref}:retry"),
        ("POST", "/v1/sources:missing"),
        ("PUT", "/v1/blobs/{digest}"),
        ("POST", "/v1/blobs:pack"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/workers"),
        ("POST", "/v1/explain"),
    }


class SlowDisk:
    """A store whose next commit waits until it is told to go on."""

    def __init__(self, store: Store):
        self._store = store
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.has_come = threading.Event()

    def commit(self, batch):
        self.has_come.set()
        assert self.goes_on.wait(20)
        self._store.commit(batch)

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_while_a_commit_hangs_new_jobs_are_refused_and_one_job_can_be_asked_for(make_plane):
    plane = make_plane(admission=AdmissionLimits(queued_events=1))
    disks = []
    plane.wrap_store = lambda store: disks.append(SlowDisk(store)) or disks[0]
    plane.start()
    known = plane.submit()["id"]
    disk = disks[0]
    disk.goes_on.clear()
    disk.has_come.clear()
    answers = {}

    def post(key):
        body, headers = {"schema": 1, "command": ["true"], "name": key}, {"Idempotency-Key": key}
        answers[key] = plane.http.post("/v1/jobs", json=body, headers=headers).status_code

    waiting = [threading.Thread(target=post, args=[key]) for key in ("in-the-commit", "behind-it")]
    try:
        waiting[0].start()
        assert disk.has_come.wait(10)
        waiting[1].start()
        plane.until(lambda: plane.plane.driver.backlog.events)
        refused = plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"]})
        seen = plane.http.get(f"/v1/jobs/{known}/events")
    finally:
        disk.goes_on.set()
        for thread in waiting:
            thread.join()
    assert refused.status_code == 503
    assert plane.check_envelope(refused)["code"] == "overloaded"
    assert refused.headers["Retry-After"] == "1"
    assert seen.status_code == 200
    assert answers == {"in-the-commit": 201, "behind-it": 201}
    assert plane.submit()["id"]


def test_a_flood_is_answered_at_once_workers_go_ahead_and_each_job_is_there_once(make_plane):
    plane = make_plane(admission=AdmissionLimits(submits=8)).start()
    worker = plane.worker()
    ended, reports = threading.Event(), []

    def beat():
        while not ended.is_set():
            reports.append(worker.try_report().status_code)

    beating = threading.Thread(target=beat)
    beating.start()
    statuses = Counter()

    async def submit(http, number):
        """As any client may do it: what is refused comes again, with the same key; here sooner than it should."""
        body = json.dumps({"schema": 1, "command": ["true"], "name": f"flood-{number}"}).encode()
        headers = {"Authorization": f"Bearer {plane.token}", "Idempotency-Key": f"k{number}"}
        while True:
            answer = await http.request(parse_url(plane.url), "POST", "/v1/jobs", headers=headers, body=body)
            statuses[answer.status, "retry-after" in answer.headers] += 1
            if answer.status != 503:
                return
            await asyncio.sleep(0.2)

    async def flood():
        async with HttpClient(idle_connections=FLOOD) as http:
            await asyncio.gather(*(submit(http, number) for number in range(FLOOD)))
        async with AsyncTransport(Location.of(plane.url, plane.token), retry_for_s=1.0) as shell:
            await asyncio.gather(*(shell.send(_named(f"ours-{number}")) for number in range(OURS)))

    asyncio.run(flood())
    ended.set()
    beating.join()
    assert set(statuses) == {(201, False), (503, True)}
    assert statuses[201, False] == FLOOD
    assert set(reports) == {200}
    assert plane.plane.admission.refusals > 0
    names = [job["name"] for job in plane.http.get("/v1/jobs", params={"limit": 500}).json()["jobs"]]
    assert Counter(names) == Counter([f"flood-{n}" for n in range(FLOOD)] + [f"ours-{n}" for n in range(OURS)])


def _named(name):
    return calls.submit_job({"schema": 1, "command": ["true"], "name": name}, key=name)
