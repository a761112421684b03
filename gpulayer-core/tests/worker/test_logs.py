"""One log's way, against a control plane that answers as it pleases."""

import asyncio

import pytest

from gpulayer.errors import Conflict, StaleAttempt
from gpulayer.ids import Epoch
from gpulayer.spec.assignment import NodeKey
from gpulayer.worker.logs import PIECE, LogUploader


class Shelf:
    """The part of ``Plane`` that a log needs: it keeps what comes, by offset."""

    worker_path = "/v1/workers/w"

    def __init__(self, held=b""):
        self.held = bytearray(held)
        self.calls = []
        self.answers = []
        self.seen = asyncio.Event()

    async def until_answered(self, operation, *, what):
        return await operation()

    async def call(self, method, path, *, content=b""):
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
