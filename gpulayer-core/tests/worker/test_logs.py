"""One log's way, against a control plane that answers as it pleases."""

import asyncio
import os

import pytest

from gpulayer.errors import Conflict, StaleAttempt, TooLarge
from gpulayer.ids import Epoch
from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.spec.assignment import NodeKey
from gpulayer.spec.logs import LogStream, not_whole, streams_not_whole
from gpulayer.worker.logs import PIECE, AttemptLogs, LogUploader, Written
from gpulayer.worker.masking import Masks


class Shelf:
    """The part of ``Plane`` that a log needs: it keeps what comes, by offset."""

    worker_path = "/v1/workers/w"

    def __init__(self, held=b""):
        self.held = bytearray(held)
        self.calls = []
        self.answers = []
        self.seen = asyncio.Event()

    async def until_answered(self, operation, *, what, gives_up=None):
        return await operation()

    async def call(self, method, path, *, content=b"", **how):
        assert method == "PUT"
        offset = int(path.split("offset=")[1].split("&")[0])
        self.calls.append((offset, len(content), path.endswith("final=1")))
        self.seen.set()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
        if offset > len(self.held):
            raise Conflict("a gap", details={"offset": len(self.held)})
        self.held += content[len(self.held) - offset :]
        return {"offset": len(self.held)}


def upload(tmp_path, content, *, held=b"", is_resumed=False, answers=()):
    async def main():
        path = tmp_path / "log"
        path.write_bytes(content)
        shelf = Shelf(held)
        shelf.answers += answers
        uploader = LogUploader(shelf, NodeKey(Epoch(1), 0), path, is_resumed=is_resumed)
        uploader.drain()
        await asyncio.wait_for(uploader.run(), 10)
        assert bytes(shelf.held) == content
        return shelf.calls

    return asyncio.run(main())


def test_a_log_goes_in_pieces_and_the_last_one_says_so(tmp_path):
    assert upload(tmp_path, b"x" * (PIECE + 5)) == [(0, PIECE, False), (PIECE, 5, True)]


def test_a_log_of_exactly_one_piece_is_final_at_once(tmp_path):
    assert upload(tmp_path, b"x" * PIECE) == [(0, PIECE, True)]


def test_an_empty_log_needs_no_word(tmp_path):
    assert upload(tmp_path, b"") == []


def test_a_resumed_log_asks_first_and_goes_on_from_there(tmp_path):
    assert upload(tmp_path, b"0123456789", held=b"0123", is_resumed=True) == [(0, 0, False), (4, 6, True)]


def test_a_resumed_log_that_is_all_there_is_only_made_final(tmp_path):
    assert upload(tmp_path, b"0123", held=b"0123", is_resumed=True) == [(0, 0, False), (4, 0, True)]


def test_a_gap_is_filled_from_where_the_control_plane_says(tmp_path):
    content = b"x" * (PIECE + 5)
    lost = Conflict("a gap", details={"offset": 7})

    async def main():
        path = tmp_path / "log"
        path.write_bytes(content)
        shelf = Shelf(content[:7])
        shelf.answers.append(lost)
        uploader = LogUploader(shelf, NodeKey(Epoch(1), 0), path, is_resumed=False)
        uploader.drain()
        await asyncio.wait_for(uploader.run(), 10)
        assert bytes(shelf.held) == content
        assert [offset for offset, _, _ in shelf.calls] == [0, 7]

    asyncio.run(main())


def test_it_sends_what_is_there_as_it_grows(tmp_path):
    async def main():
        path = tmp_path / "log"
        shelf = Shelf()
        uploader = LogUploader(shelf, NodeKey(Epoch(1), 0), path, is_resumed=False)
        task = asyncio.create_task(uploader.run())
        for size in (1, 2, 3):
            with open(path, "ab") as file:
                file.write(b"x")
            shelf.seen.clear()
            uploader.grown()
            await asyncio.wait_for(shelf.seen.wait(), 10)
            assert len(shelf.held) == size
        uploader.drain()
        await asyncio.wait_for(task, 10)
        assert shelf.calls[-1] == (3, 0, True)

    asyncio.run(main())


def test_a_stale_attempt_and_a_conflict_without_offset_are_answers(tmp_path):
    with pytest.raises(StaleAttempt):
        upload(tmp_path, b"x", answers=[StaleAttempt("no")])
    with pytest.raises(Conflict):
        upload(tmp_path, b"x", answers=[Conflict("no")])


def test_what_found_no_room_on_the_disk_is_told_by_a_last_line(tmp_path):
    line = b"[gpulayer: 12 bytes left out: the disk of the worker was full]\n"
    for spooled in (b"", b"whole\n", b"half"):
        path = tmp_path / "log"
        path.write_bytes(spooled)
        expected = spooled + (b"" if spooled in (b"", b"whole\n") else b"\n") + line
        for held in (b"", expected[: len(spooled) + 3], expected):  # it may have got so far before the agent died

            async def main(held=held, path=path):
                shelf = Shelf(held)
                uploader = LogUploader(shelf, NodeKey(Epoch(1), 0), path, is_resumed=bool(held))
                uploader.drain(unwritten=12)
                await asyncio.wait_for(uploader.run(), 10)
                return bytes(shelf.held)

            assert asyncio.run(main()) == expected


class TwoShelves(Shelf):
    """stderr's answer may be an error; each stream has a shelf of its own."""

    def __init__(self, error=None):
        super().__init__()
        self.err = Shelf()
        self.err.answers = [error] if error else []

    async def call(self, method, path, *, content=b"", **how):
        if "&stream=stderr" in path:
            return await self.err.call(method, path.replace("&stream=stderr", ""), content=content, **how)
        return await super().call(method, path, content=content, **how)


def both(tmp_path, shelf):
    async def main():
        site = LaunchSite(tmp_path, tmp_path, tmp_path / "log", tmp_path / "exit.json", tmp_path / "log.err")
        site.log_path.write_bytes(b"out")
        site.err_path.write_bytes(b"err")
        logs = AttemptLogs(shelf, NodeKey(Epoch(1), 0), site, is_resumed=False)
        task = asyncio.create_task(logs.run())
        logs.grown("stderr")
        await asyncio.sleep(0)
        assert not task.done()
        logs.drain(Written((3, 3), (0, 7)))
        return await asyncio.wait_for(task, 10)

    return asyncio.run(main())


WHY = "bytes were gone from the worker's disk before they had been sent"


def gone(path):
    path.unlink()


def replaced(path):
    path.unlink()
    path.write_bytes(b"another\n")


def cut(path):
    os.truncate(path, 3)


def folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("wreck", [gone, replaced, folder])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_spool_that_is_removed_while_it_is_read_comes_home_whole(tmp_path, wreck, is_masked):
    async def main():
        path, shelf = tmp_path / "log", Shelf()
        uploader = LogUploader(shelf, NodeKey(Epoch(1), 0), path, is_resumed=False)
        if is_masked:
            uploader.mask(Masks(["secret"]))
        with open(path, "ab", buffering=0) as file:
            file.write(b"one\n")
            task = asyncio.create_task(uploader.run())
            await asyncio.wait_for(shelf.seen.wait(), 10)
            wreck(path)
            file.write(b"two\n")
            uploader.drain(size=8)
            await asyncio.wait_for(task, 10)
        assert (bytes(shelf.held), uploader.missing) == (b"one\ntwo\n", 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wreck", "sent", "expected"),
    [
        (gone, b"", b""),
        (gone, b"one\n", b"one\n"),
        (cut, b"", b"one"),
        (cut, b"one\nt", b"one\nt"),
        (gone, b"one\ntwo\n", b"one\ntwo\n"),
        (cut, b"one\ntwo\n", b"one\ntwo\n"),
    ],
)
def test_what_is_gone_from_the_spool_before_it_was_sent_is_told(tmp_path, wreck, sent, expected):
    async def main():
        path, shelf = tmp_path / "log", Shelf(sent)
        path.write_bytes(b"one\ntwo\n")
        wreck(path)
        site = LaunchSite(tmp_path, tmp_path, path, tmp_path / "exit.json")
        logs = AttemptLogs(shelf, NodeKey(Epoch(1), 0), site, is_resumed=bool(sent))
        assert not logs.is_needless(Written((8, 0)))
        logs.drain(Written((8, 0)))
        told = await asyncio.wait_for(logs.run(), 10)
        missing = 8 - len(expected)
        assert bytes(shelf.held) == expected
        assert told == ((not_whole(f"{missing} {WHY}"),) if missing else ())
        assert any(is_final for _, _, is_final in shelf.calls) is not bool(missing)

    asyncio.run(main())


@pytest.mark.parametrize("is_masked", [False, True])
def test_a_spool_that_can_not_be_read_is_told_when_its_program_has_ended_and_not_before(tmp_path, is_masked):
    async def main():
        async def masks():
            return Masks(["secret"])

        site = LaunchSite(tmp_path, tmp_path, tmp_path / "log", tmp_path / "exit.json")
        site.log_path.mkdir()
        key = NodeKey(Epoch(1), 0)
        logs = AttemptLogs(Shelf(), key, site, is_resumed=False, masks=masks if is_masked else None)
        task = asyncio.create_task(logs.run())
        logs.grown()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        logs.drain(Written((4, 0)))
        (told,) = await asyncio.wait_for(task, 10)
        assert "Is a directory" in told
        assert streams_not_whole(told) == (LogStream.STDOUT,)

    asyncio.run(main())


def test_split_streams_go_their_own_ways_and_end_together(tmp_path):
    shelf = TwoShelves()
    assert both(tmp_path, shelf) == ()
    assert bytes(shelf.held) == b"out"
    assert bytes(shelf.err.held) == b"err\n[gpulayer: 7 bytes left out: the disk of the worker was full]\n"


def test_one_stream_that_is_refused_for_good_does_not_keep_the_other_from_home(tmp_path):
    shelf = TwoShelves(TooLarge("enough"))
    (told,) = both(tmp_path, shelf)
    assert streams_not_whole(told) == (LogStream.STDERR,)
    assert bytes(shelf.held) == b"out"


def test_a_stale_attempt_ends_both_streams(tmp_path):
    with pytest.raises(StaleAttempt):
        both(tmp_path, TwoShelves(StaleAttempt("no")))
