"""Arrays over real HTTP: what each element is told, what is shown of them, and how what they made comes home."""

import json

import pytest

from gpulayer.spec.tree import Entry, EntryKind, encode_tree


class Elements:
    """A worker that is given elements of arrays."""

    def __init__(self, plane, cpus: int = 4) -> None:
        self.plane = plane
        self.worker = plane.worker(cpus=cpus)
        self.worker.report()
        self.epochs: dict[int, int] = {}
        self.told: dict[int, dict] = {}

    def take(self) -> list[int]:
        """The numbers of those that were assigned now."""
        found = []
        for command in self.worker.commands(hold_s=5):
            if command["type"] == "assign":
                index = int(command["env"]["GPULAYER_ARRAY_INDEX"])
                self.epochs[index], self.told[index] = command["epoch"], command
                found.append(index)
        self.worker.holding = list(self.epochs.values())
        return found

    def end(self, index: int, exit_code: int = 0, *, files: dict[str, str] | None = None, log: bytes = b"") -> None:
        epoch = self.epochs[index]
        self.worker.report(self.worker.running(epoch))
        if log:
            self.worker.put_log(epoch, 0, log)
            self.worker.put_log(epoch, len(log), b"", final=True)
        tree = self.tree(files) if files else None
        if tree:
            assert self.worker.put_outputs(epoch, tree).status_code == 200
        self.worker.report(self.worker.ended(epoch, exit_code, outputs=tree))
        del self.epochs[index]
        self.worker.holding = list(self.epochs.values())

    def tree(self, files: dict[str, str]) -> str:
        folders: dict[str, list[Entry]] = {"": []}
        for path, text in files.items():
            folder, _, name = path.rpartition("/")
            digest = self.plane.put_blob(text.encode())
            folders.setdefault(folder, []).append(Entry(name, EntryKind.FILE, 0o644, len(text), digest))
        for name, entries in folders.items():
            if name:
                folders[""].append(Entry(name, EntryKind.DIRECTORY, digest=self.plane.put_blob(encode_tree(entries))))
        return self.plane.put_blob(encode_tree(folders[""]))


def elements(plane, job_id: str, **query) -> dict:
    answer = plane.http.get(f"/v1/jobs/{job_id}/elements", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_element_is_told_its_number_and_how_many_there_are(plane) -> None:
    worker = Elements(plane)
    job = plane.submit(array=3, array_limit=2, env={"A": "1"})
    assert job["array"] == {"count": 3, "limit": 2, "states": {"queued": 1, "staging": 2}, "first_failed": None}
    assert job["options"]["array"] == 3
    assert worker.take() == [0, 1]
    assert worker.told[1]["env"] == {"A": "1", "GPULAYER_ARRAY_INDEX": "1", "GPULAYER_ARRAY_COUNT": "3"}
    waiting = plane.job(job["id"], index=2)
    assert (waiting["state"], waiting["reason"]["code"]) == ("queued", "array_limit")
    assert waiting["reason"]["message"] == "waits for other elements: 2 of 2 at once are under way"
    worker.end(1)
    assert worker.take() == [2]


def test_the_record_counts_and_each_element_has_one_of_its_own(plane) -> None:
    worker = Elements(plane)
    job_id = plane.submit(array=4, name="many")["id"]
    worker.take()
    worker.end(2, 7, log=b"two\n")
    worker.end(0, log=b"zero\n")
    job = plane.job(job_id)
    assert job["state"] == "staging"
    assert job["array"]["states"] == {"staging": 2, "succeeded": 1, "failed": 1}
    assert job["array"]["first_failed"] == 2
    assert [(attempt["index"], attempt["number"]) for attempt in job["attempts"]] == [(0, 1), (1, 1), (2, 1), (3, 1)]
    two = plane.job(job_id, index=2)
    assert (two["index"], two["state"], two["exit_code"], two["reason"]["message"]) == (2, "failed", 7, "exit code 7")
    assert [attempt["log_tail"] for attempt in two["attempts"]] == ["two"]
    assert "array" not in two
    assert plane.http.get(f"/v1/jobs/{job_id}/logs", params={"index": 2}).content == b"two\n"
    assert plane.http.get(f"/v1/jobs/{job_id}/logs").content == b"zero\n"
    worker.end(1, 3)
    worker.end(3)
    job = plane.job(job_id)
    assert (job["state"], job["exit_code"], job["reason"]["message"]) == ("failed", 3, "element 1: exit code 3")
    assert job["array"]["states"] == {"succeeded": 2, "failed": 2}
    (listed,) = plane.http.get("/v1/jobs").json()["jobs"]
    assert listed["array"] == job["array"]


def test_elements_come_by_page_and_the_failed_ones_alone(plane) -> None:
    worker = Elements(plane, cpus=3)
    job_id = plane.submit(array=7)["id"]
    worker.take()
    worker.end(1, 9)
    worker.take()
    page = elements(plane, job_id, limit=3)
    assert [element["index"] for element in page["elements"]] == [0, 1, 2]
    assert page["elements"][1] == {
        "index": 1,
        "state": "failed",
        "attempts": 1,
        "worker": "box",
        "started_at": page["elements"][1]["started_at"],
        "ended_at": page["elements"][1]["ended_at"],
        "exit_code": 9,
        "signal": None,
        "ended_by": "program",
        "output_tree": None,
    }
    assert page["next"] == 3
    rest = elements(plane, job_id, after=3)
    assert [(element["index"], element["state"]) for element in rest["elements"]][2:] == [(5, "queued"), (6, "queued")]
    assert rest["next"] is None
    failed = elements(plane, job_id, failed=1)
    assert [element["index"] for element in failed["elements"]] == [1]
    assert failed["next"] is None


def test_what_they_made_comes_home_as_one_tree_in_which_the_first_of_a_name_counts(plane) -> None:
    worker = Elements(plane)
    job_id = plane.submit(array=3)["id"]
    worker.take()
    worker.end(1, files={"frames/1.png": "one", "log.txt": "from one", "same": "same"})
    assert plane.job(job_id)["output_tree"] is None
    worker.end(0, files={"frames/0.png": "zero", "log.txt": "from zero", "same": "same"})
    worker.end(2, files={"frames/2.png": "two", "frames/1.png": "from two"})
    job = plane.job(job_id)
    found = {output["path"]: output["size"] for output in job["outputs"]}
    assert found == {"frames/0.png": 4, "frames/1.png": 3, "frames/2.png": 3, "log.txt": 9, "same": 4}
    assert job["clashes"] == 2
    reply = plane.http.get(f"/v1/jobs/{job_id}/outputs").json()
    assert reply == {"tree": job["output_tree"], "outputs": job["outputs"]}
    own = plane.http.get(f"/v1/jobs/{job_id}/outputs", params={"index": 2}).json()
    assert {output["path"]: output["size"] for output in own["outputs"]} == {"frames/1.png": 8, "frames/2.png": 3}


def test_after_a_restart_all_of_it_is_there(make_plane) -> None:
    plane = make_plane().start()
    worker = Elements(plane)
    job_id = plane.submit(array=5, array_limit=2)["id"]
    worker.take()
    worker.end(0, 4, files={"a": "a"})
    worker.take()
    plane.stop()
    plane.start()
    job = plane.job(job_id)
    assert job["array"]["states"] == {"queued": 2, "staging": 2, "failed": 1}
    plane.http.post(f"/v1/jobs/{job_id}:cancel")
    assert plane.job(job_id)["array"]["states"] == {"cancelled": 2, "ending": 2, "failed": 1}


def test_a_cancel_ends_those_that_never_began_without_a_word_for_each(plane) -> None:
    worker = Elements(plane)
    job_id = plane.submit(array=10_000)["id"]
    worker.take()
    plane.http.post(f"/v1/jobs/{job_id}:cancel")
    for index in list(worker.epochs):
        epoch = worker.epochs.pop(index)
        worker.worker.report(worker.worker.ended(epoch, None, of_outcome={"ended_by": "cancel"}))
    job = plane.job(job_id)
    assert (job["state"], job["array"]["states"]) == ("cancelled", {"cancelled": 10_000})
    assert plane.job(job_id, index=9_999)["state"] == "cancelled"
    assert elements(plane, job_id, after=9_998)["elements"][1]["state"] == "cancelled"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"array": 0}, "array: Input should be greater than or equal to 1"),
        ({"array": 10_001}, "array: Input should be less than or equal to 10000"),
        ({"array_limit": 2}, "array_limit: there is no array"),
        ({"array": 2, "env": {"GPULAYER_ARRAY_INDEX": "7"}}, "env: GPULAYER_ARRAY_INDEX is set for each element"),
    ],
)
def test_what_can_t_be_an_array_is_refused(shared_plane, fields, said) -> None:
    answer = shared_plane.http.post("/v1/jobs", json={"schema": 1, "command": ["true"], **fields})
    assert answer.status_code == 400
    assert said in shared_plane.check_envelope(answer)["message"]


def test_an_element_that_is_not_there_is_not_found(shared_plane) -> None:
    array, single = shared_plane.submit(array=2)["id"], shared_plane.submit()["id"]
    for url, said in (
        (f"/v1/jobs/{array}?index=2", "is an array of 2 elements: there is no element 2"),
        (f"/v1/jobs/{array}/logs?index=2", "there is no element 2"),
        (f"/v1/jobs/{array}/elements?after=2", "there is no element 2"),
        (f"/v1/jobs/{single}?index=1", "is no array: there is no element 1"),
    ):
        answer = shared_plane.http.get(url)
        assert answer.status_code == 404, url
        assert said in shared_plane.check_envelope(answer)["message"]
    assert shared_plane.job(single, index=0)["state"] == "queued"


def test_its_events_say_which_element_they_are_of(plane) -> None:
    worker = Elements(plane)
    job_id = plane.submit(array=2)["id"]
    worker.take()
    worker.end(1)
    events = plane.http.get(f"/v1/jobs/{job_id}/events").json()["events"]
    ended = [event["details"] for event in events if event["event"] == "attempt_ended"]
    assert [details["index"] for details in ended] == [1]
    assert json.dumps(events)
