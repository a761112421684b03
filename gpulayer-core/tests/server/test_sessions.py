"""Enrolments, sessions and removals that race, with the store's commits let through one by one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from gpulayer.errors import StorageUnavailable
from gpulayer.server.store import reads
from gpulayer.server.tokens import TokenKind


class Slow:
    """A store whose commits wait while ``hold`` is on, and fail while ``is_broken`` is."""

    def __init__(self, store) -> None:
        self._store = store
        self._may_go = threading.Event()
        self._may_go.set()
        self.waiting = threading.Event()
        self.commits = 0
        self.is_broken = False

    def hold(self) -> None:
        self.waiting.clear()
        self._may_go.clear()

    def let_go(self) -> None:
        self._may_go.set()

    def commit(self, batch) -> None:
        self.waiting.set()
        assert self._may_go.wait(30)
        self.probe()
        self.commits += 1
        self._store.commit(batch)

    def probe(self) -> None:
        if self.is_broken:
            raise StorageUnavailable("the disk is full")

    def load_live(self):
        return self._store.load_live()


class Scene:
    """A plane with a slow store; ``ask`` runs a request in a thread of its own."""

    def __init__(self, plane, store: Slow) -> None:
        self.plane, self.store = plane, store
        self.pool = ThreadPoolExecutor(80)
        self.asked: list[Future[httpx.Response]] = []

    def block(self) -> None:
        """From now on everything that is to be committed waits, behind a token that nobody uses."""
        self.store.hold()
        self.ask(lambda: self.plane.http.post("/v1/tokens", json={"role": "reader"}))
        assert self.store.waiting.wait(30)

    def ask(self, request: Callable[[], httpx.Response]) -> "Future[httpx.Response]":
        self.asked.append(self.pool.submit(request))
        return self.asked[-1]

    def queued(self, count: int) -> None:
        """Wait until so many changes stand behind the commit that is held."""
        self.plane.until(lambda: len(self.plane.plane.driver._queue) == count, timeout_s=30)

    def readers(self, count: int) -> None:
        """Wait until so many requests wait to look at the state, behind the commit that is held."""
        self.plane.until(lambda: len(self.plane.plane.driver._readers) == count, timeout_s=30)

    def remove(self, worker) -> "Future[httpx.Response]":
        return self.ask(lambda: self.plane.http.post(f"/v1/workers/{worker.id}:remove", params={"force": 1}))

    def let_go(self) -> list[int]:
        """The answers to all that was asked since."""
        self.store.let_go()
        answers, self.asked = [one.result(30).status_code for one in self.asked], []
        return answers

    def is_gone(self, worker_id: str, tokens: list[str]) -> None:
        """In memory, in the store, in the state, for whoever has a session, and after a restart."""
        for _ in range(2):
            live = self.plane.plane
            assert live.auth.identity(worker_id) is None
            stored = self.plane.call(lambda: live.query(reads.read_identities))  # noqa: B023 - used at once
            assert worker_id not in [row.worker for row in stored]
            assert worker_id not in [worker["id"] for worker in self.plane.http.get("/v1/workers").json()["workers"]]
            for token in tokens:
                answer = self.plane.bare.get(
                    f"{self.plane.url}/v1/workers/{worker_id}/commands", headers={"Authorization": f"Bearer {token}"}
                )
                assert answer.status_code == 401
            self.plane.restart()


@pytest.fixture
def scene(make_plane):
    made: list[Slow] = []

    def wrap(store: Any) -> Slow:
        made.append(Slow(store))
        return made[-1]

    plane = make_plane()
    plane.wrap_store = wrap
    plane.start()
    playing = Scene(plane, made[0])
    yield playing
    made[-1].let_go()
    playing.pool.shutdown()


def test_sessions_that_are_asked_for_at_once_share_a_commit(scene) -> None:
    workers = [scene.plane.worker(f"w{number}") for number in range(40)]
    before = scene.store.commits
    scene.block()
    for worker in workers:
        scene.ask(worker.session)
    scene.queued(40)
    assert scene.let_go() == [201] * 41
    assert scene.store.commits <= before + 2
    scene.plane.restart()
    assert [worker.session(counter=2).status_code for worker in workers] == [409] * 40


def test_of_two_sessions_with_one_counter_one_is_opened(scene) -> None:
    worker = scene.plane.worker()
    scene.block()
    for _ in range(8):
        scene.ask(lambda: worker.session(counter=9))
    scene.plane.until(lambda: sum(one.done() for one in scene.asked) == 7)  # refused without a commit to wait for
    assert sorted(scene.let_go()[1:]) == [201] + [409] * 7


def test_a_session_that_comes_while_its_worker_is_being_removed_is_refused(scene) -> None:
    worker = scene.plane.worker()
    scene.store.hold()
    scene.remove(worker)
    assert scene.store.waiting.wait(30)
    scene.ask(worker.session)
    scene.queued(1)
    assert scene.let_go() == [200, 401]
    scene.is_gone(worker.id, [worker.token])


def test_a_session_that_is_being_opened_while_its_worker_is_removed_ends_with_it(scene) -> None:
    worker = scene.plane.worker()
    scene.store.hold()
    session = scene.ask(worker.session)
    assert scene.store.waiting.wait(30)
    scene.remove(worker)
    scene.readers(1)
    assert scene.let_go() == [201, 200]
    scene.is_gone(worker.id, [worker.token, session.result().json()["token"]])


def test_a_removal_that_fails_leaves_the_worker_as_it_was(scene) -> None:
    worker = scene.plane.worker()
    scene.store.is_broken = True
    assert scene.remove(worker).result(30).status_code == 503
    scene.store.is_broken = False
    scene.plane.until(lambda: scene.plane.http.get("/readyz").status_code == 200)
    assert worker.report()["void"] == []
    assert worker.session().status_code == 201


def test_an_enrolment_with_the_key_of_a_worker_that_is_being_removed_makes_another_worker(scene) -> None:
    worker = scene.plane.worker()
    worker.join_token = scene.plane.new_token(TokenKind.JOIN)
    scene.store.hold()
    scene.remove(worker)
    assert scene.store.waiting.wait(30)
    enrolling = scene.ask(worker.enrol)
    scene.plane.until(lambda: scene.plane.plane.enrolling._waiters)
    assert scene.let_go() == [200, 201]
    assert enrolling.result().json()["worker_id"] != worker.id
    scene.is_gone(worker.id, [worker.token])


@pytest.mark.parametrize("is_looked_at", [True, False], ids=["looked at before", "being committed"])
def test_an_enrolment_does_not_lower_a_counter_that_a_session_raises_meanwhile(scene, is_looked_at) -> None:
    worker = scene.plane.worker()
    if is_looked_at:
        scene.block()
        scene.ask(worker.enrol)
        scene.readers(1)
    else:
        scene.store.hold()
        scene.ask(worker.enrol)
        assert scene.store.waiting.wait(30)
    scene.ask(lambda: worker.session(counter=100))
    scene.queued(1)
    assert sorted(scene.let_go()) == ([200, 201, 201] if is_looked_at else [200, 201])
    assert worker.session(counter=100).status_code == 409
    scene.plane.restart()
    assert worker.session(counter=100).status_code == 409


def test_a_commit_that_fails_uses_the_signature_up_and_leaves_the_worker_able_to_sign(scene) -> None:
    worker = scene.plane.worker()
    scene.store.is_broken = True
    assert worker.session(counter=7).status_code == 503
    assert worker.session(counter=7).status_code == 409
    scene.store.is_broken = False
    scene.plane.until(lambda: scene.plane.http.get("/readyz").status_code == 200)
    used = worker.session(counter=7)
    assert used.status_code == 409
    assert worker.session(counter=scene.plane.check_envelope(used)["details"]["counter"] + 1).status_code == 201


def test_in_any_order_of_sessions_enrolments_and_removals_no_removed_worker_comes_back(scene) -> None:
    worker = scene.plane.worker("box")
    removed: dict[str, list[str]] = {}
    for _ in range(6):
        worker.join_token = scene.plane.new_token(TokenKind.JOIN, max_uses=9)
        worker.counter = 1_000 * (len(removed) + 1)
        worker.open_session()
        sessions = [scene.ask(lambda n=n: worker.session(counter=worker.counter + n)) for n in range(1, 9)]
        removal = scene.remove(worker)
        sessions += [scene.ask(lambda n=n: worker.session(counter=worker.counter + n)) for n in range(9, 17)]
        enrolments = [scene.ask(worker.enrol) for _ in range(3)]
        assert removal.result(30).status_code == 200
        assert {one.result(30).status_code for one in sessions} <= {201, 401, 409}
        opened = [one.result().json()["token"] for one in sessions if one.result().status_code == 201]
        removed[worker.id] = [worker.token, *opened]
        # 401: it had joined with this token already when it was removed
        assert {one.result(30).status_code for one in enrolments} <= {200, 201, 401}
        worker.join_token = scene.plane.new_token(TokenKind.JOIN)
        known = worker.enrol().json()["worker_id"]
        assert known not in removed
        worker.id = known
    scene.asked.clear()
    for worker_id, tokens in removed.items():
        scene.is_gone(worker_id, tokens)
