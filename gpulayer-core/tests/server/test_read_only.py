"""A store that can't be written, seen over HTTP."""

from gpulayer.errors import StorageUnavailable


class _Breakable:
    def __init__(self, store) -> None:
        self._store = store
        self.is_broken = False

    def commit(self, batch) -> None:
        self.probe()
        self._store.commit(batch)

    def probe(self) -> None:
        if self.is_broken:
            raise StorageUnavailable("the disk is full")

    def load_live(self):
        return self._store.load_live()


def test_a_plane_that_can_not_write_says_so_reads_on_and_comes_back(make_plane) -> None:
    made = []

    def wrap(store):
        made.append(_Breakable(store))
        return made[0]

    plane = make_plane()
    plane.wrap_store = wrap
    plane.start()
    worker = plane.worker()
    worker.report()
    job = plane.submit()
    body = {"schema": 1, "command": ["true"]}
    headers = {"Idempotency-Key": "once"}
    made[0].is_broken = True
    for _ in range(3):
        answer = plane.http.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 503
        assert plane.check_envelope(answer)["code"] == "storage_unavailable"
        assert answer.headers["retry-after"] == "1"
    assert plane.http.get("/readyz").status_code == 503
    assert plane.http.get("/healthz").status_code == 200
    assert plane.http.get("/v1/plane").json()["read_only"] is True
    assert plane.job(job["id"])["id"] == job["id"]
    assert worker.try_report().status_code == 503
    made[0].is_broken = False
    plane.until(lambda: plane.http.get("/readyz").status_code == 200)
    assert plane.http.post("/v1/jobs", json=body, headers=headers).status_code == 201
    assert len(plane.http.get("/v1/jobs").json()["jobs"]) == 2
    worker.report()
    assert len(worker.commands(after="")) == 2
