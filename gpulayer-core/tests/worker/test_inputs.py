"""Inputs on their way in: each by its scheme's stager into a folder of its own, and who is to blame when one fails."""

import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.errors import Blame, DiskFull
from gpulayer.ids import Epoch, JobId
from gpulayer.plugins import StageFailed
from gpulayer.plugins.builtin.file import FileStager
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy
from gpulayer.worker import inputs as module
from gpulayer.worker.inputs import Inputs
from gpulayer.worker.journal import Journal
from gpulayer.worker.patience import Patience
from gpulayer.worker.unready import Unready

KEY = NodeKey(Epoch(1), 0)
JOB = Assignment(key=KEY, job_id=JobId("j"), attempt=1, command=("true",), inputs=(("a", "mine:1"), ("b", "mine:2")))


class Mine:
    scheme = "mine"

    def __init__(self, fetch):
        self._fetch = fetch

    def fetch(self, uri, site):
        return self._fetch(uri, site)


def copies(uri, site):
    assert list(site.folder.iterdir()) == []
    (site.folder / "content").write_text(uri)
    site.progress(1, None)
    return site.folder / "content"


@pytest.fixture
def world(host_of, tmp_path):
    """``world(main, stager, …)``: ``main`` gets a function that makes inputs as one life of a worker has them."""

    def run(main, *stagers, pauses_ms=(0,), **options):
        folders = Journal(tmp_path / "w", boot_id="b")
        try:
            folders.admit(JOB)

            def life():
                host = host_of(stagers=stagers)
                patience = Patience(host, SystemClock(), pauses_ms=pauses_ms)
                return Inputs(host, patience, folders, environment={}, **options)

            asyncio.run(main(life))
        finally:
            folders.close()

    return run


def failure(world, fetch, job=JOB, **options):
    seen = []

    async def main(life):
        with pytest.raises(Unready) as failed:
            await life().fetch(job)
        seen.append(failed.value)

    world(main, Mine(fetch), FileStager(), **options)
    assert seen[0].ended_by is EndedBy.STAGING
    return seen[0]


def test_inputs_lie_in_folders_of_their_own_outside_the_work_folder_and_the_next_life_finds_them(world, tmp_path):
    async def main(life):
        one = life()
        await one.fetch(JOB)
        places = await one.of(JOB)
        assert [(name, path.read_text()) for name, path in places] == [("a", "mine:1"), ("b", "mine:2")]
        attempt = tmp_path / "w" / "attempts" / "1.0"
        assert all(path.is_relative_to(attempt / "inputs") for _, path in places)
        assert list((attempt / "work").iterdir()) == list((attempt / "out").iterdir()) == []
        assert await life().of(JOB) == places
        await life().fetch(JOB)  # again, from the beginning: ``copies`` finds its folder empty

    world(main, Mine(copies))


def test_what_lies_on_the_worker_is_read_in_place(world, tmp_path):
    (tmp_path / "data set").touch()
    job = replace(JOB, inputs=(("data", f"FILE://{tmp_path}/data%20set"),))

    async def main(life):
        one = life()
        await one.fetch(job)
        assert await one.of(job) == (("data", tmp_path / "data set"),)

    world(main, FileStager())


@pytest.mark.parametrize(
    ("quoted", "name"), [("d%FFata", b"d\xffata"), ("d%C3%A4ta", "däta".encode()), ("däta", "däta".encode())]
)
def test_the_name_of_a_file_is_bytes_and_not_always_text(world, tmp_path, quoted, name):
    place = os.fsencode(tmp_path) + b"/" + name
    with open(place, "wb") as file:
        file.write(b"found")
    job = replace(JOB, inputs=(("data", f"file://{tmp_path}/{quoted}"),))

    async def main(life):
        await life().fetch(job)
        ((_, path),) = await life().of(job)  # as the next life reads it
        assert (os.fsencode(path), path.read_bytes()) == (place, b"found")

    world(main, FileStager())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "/nowhere is not on this worker"),
        ("file/below", "/file/below is not on this worker"),
        ("d%FFata", r"/d\udcffata is not on this worker"),
        ("a%0Ab", r"/a\nb is not on this worker"),
        ("n" * 256, "File name too long"),
        ("n/" * 3_000, "File name too long"),
        ("loop/x", "Too many levels of symbolic links"),
        ("a%00b", "no name of a file"),
    ],
)
def test_a_name_that_no_worker_has_or_could_have_is_the_users(world, tmp_path, name, words):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    ended = failure(world, copies, replace(JOB, inputs=(("data", f"file://{tmp_path}/{name}"),)))
    assert ended.blame is Blame.USER
    assert words in ended.evidence


def test_a_mount_that_is_away_is_the_machines(world, tmp_path, monkeypatch):
    def stale(path, **options):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("gpulayer.plugins.builtin.file.Path", type("Away", (type(tmp_path),), {"stat": stale}))
    ended = failure(world, copies, replace(JOB, inputs=(("data", "file:///mnt/data"),)))
    assert ended.blame is Blame.INFRASTRUCTURE


def test_after_an_unfinished_try_nobody_takes_its_places_for_whole(world):
    async def main(life):
        await life().fetch(JOB)
        broken = life()
        broken._host.registry.stagers["mine"].thing._fetch = lambda uri, site: 1 / 0
        with pytest.raises(Unready):
            await broken.fetch(JOB)
        with pytest.raises(Unready) as unknown:
            await life().of(JOB)
        assert unknown.value.blame is Blame.INFRASTRUCTURE

    world(main, Mine(copies))


def test_what_is_not_there_is_the_users_and_a_network_is_not(world):
    def fails(**how):
        def fetch(uri, site):
            raise StageFailed("not there", hint="look again", **how)

        return fetch

    one = replace(JOB, inputs=JOB.inputs[:1])
    users = failure(world, fails(), one)
    assert users.blame is Blame.USER
    assert users.evidence == "input a can't be fetched\nnot there\nlook again"
    assert failure(world, fails(is_users=False), one).blame is Blame.INFRASTRUCTURE


@pytest.mark.parametrize(
    "fetch",
    [
        lambda uri, site: 1 / 0,
        lambda uri, site: None,
        lambda uri, site: str(site.folder),
        lambda uri, site: Path("relative"),
        lambda uri, site: site.folder / "nothing",
    ],
)
def test_a_stager_that_breaks_or_lies_is_the_plugins(world, fetch):
    assert failure(world, fetch).blame is Blame.PLUGIN


def test_a_scheme_that_is_not_here_any_more_is_this_workers_lack(world):
    job = replace(JOB, inputs=(("a", "s3://bucket/x"),))
    assert failure(world, copies, job).blame is Blame.INFRASTRUCTURE


def test_a_full_disk_is_told_as_one(world):
    def full(uri, site):
        raise OSError(28, "No space left on device")

    async def main(life):
        with pytest.raises(DiskFull):
            await life().fetch(JOB)

    world(main, Mine(full))


def test_silence_ends_a_fetch_and_signs_of_life_keep_it(world):
    is_told, go = threading.Event(), threading.Event()

    def silent(uri, site):
        while not site.is_cancelled():
            assert not go.wait(0.01)
        is_told.set()
        return site.folder

    assert failure(world, silent, silence_s=0.2).blame is Blame.PLUGIN
    assert is_told.wait(30)

    def slow(uri, site):
        for done in range(40):
            site.progress(done, 40)
            go.wait(0.02)
        return site.folder

    async def main(life):
        await life().fetch(JOB)

    world(main, Mine(slow), silence_s=0.4)


def test_what_is_not_wanted_any_more_is_told_so(world):
    begun, is_told = threading.Event(), threading.Event()

    def fetch(uri, site):
        begun.set()
        while not site.is_cancelled():
            is_told.wait(0.01)
        is_told.set()
        return site.folder

    async def main(life):
        fetching = asyncio.create_task(life().fetch(JOB))
        assert await asyncio.to_thread(begun.wait, 30)
        fetching.cancel()
        assert await asyncio.to_thread(is_told.wait, 30)

    world(main, Mine(fetch))


def test_good_jobs_behind_a_stager_that_rests_wait_for_it_and_all_are_fetched(host_of, tmp_path, caplog):
    """Others' bad jobs, or an outage, have made it rest: that ends no attempt that has not even asked."""
    caplog.set_level("INFO", logger="gpulayer")
    asked = []

    def fetch(uri, site):
        asked.append(uri)
        if uri == "mine:down":
            raise ConnectionError("no route to host")
        return site.folder

    clock = ManualClock()
    host = host_of(stagers=[Mine(fetch)], clock=clock)
    folders = Journal(tmp_path / "w", boot_id="b")
    jobs = [replace(JOB, key=NodeKey(Epoch(epoch), 0), inputs=(("a", "mine:up"),)) for epoch in range(2, 5)]
    bad = replace(JOB, inputs=(("a", "mine:down"),))

    async def main():
        inputs = Inputs(host, Patience(host, clock), folders, environment={})
        for pause_ms in (1_000, 5_000, 0):
            with pytest.raises(Unready) as failed:
                await inputs.fetch(bad)
            assert failed.value.blame is Blame.PLUGIN
            clock.advance(pause_ms)
        waiting = [asyncio.create_task(inputs.fetch(one)) for one in jobs]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not done
        assert asked == ["mine:down"] * 3
        clock.advance(30_000)
        await asyncio.gather(*waiting)
        assert asked[3:] == ["mine:up"] * 3

    try:
        for one in (bad, *jobs):
            folders.admit(one)
        asyncio.run(main())
    finally:
        folders.close()
    assert caplog.text.count("input a waits: plugin mine is not asked (Stager.fetch): it has just failed") == 3


def test_an_input_that_waits_for_its_stager_is_given_up_when_it_is_not_wanted(world):
    async def main(life):
        one = life()
        with pytest.raises(Unready):
            await one.fetch(JOB)
        waiting = asyncio.create_task(one.fetch(JOB))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    world(main, Mine(lambda uri, site: 1 / 0), pauses_ms=(60_000,))


def test_what_is_wrong_with_our_own_disk_is_not_the_stagers(world, monkeypatch):
    def fails(folder):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "emptied", fails)

    async def main(life):
        one = life()
        with pytest.raises(OSError, match="Input/output error"):
            await one.fetch(JOB)
        assert one._host._guard.faults_of("mine")[0] == 0

    world(main, Mine(copies))
