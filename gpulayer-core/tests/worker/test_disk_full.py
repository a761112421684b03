"""Real workers on a disk of their own that is full: jobs end for that reason, and the worker goes on."""

import errno
import os
import re
import signal
import sys

import pytest

from gpulayer.protocol.messages import Phase, ProcessExited, ProcessLost, Progress
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy
from gpulayer.spec.tree import Entry, EntryKind, digest_of, encode_tree
from gpulayer.worker.disk import RESERVE_BYTES, Reserve, full_text, is_full, used_bytes
from gpulayer.worker.journal import Journal
from gpulayer.worker.keeping import Keeper

MIB = 1 << 20


def outcome(item):
    fields = item["outcome"]
    return fields["ended_by"], fields["exit_code"], fields["signal"], fields["blame"]


@pytest.fixture
def on_disk(scene, disk_of):
    """``on_disk(main, mib)``: the worker's folder is on a file system of that size, which ``main`` gets as well."""

    def run(main, mib=20):
        disk = disk_of(mib * 1024)

        async def play(plane, worker):
            worker.folder = disk / "w"
            await main(plane, worker, disk)

        scene(play)

    return run


def test_a_program_that_fills_the_disk_with_files_ends_as_disk_full_and_the_next_one_runs(on_disk):
    async def main(plane, worker, disk):
        worker.start()
        plane.assign(1, "sh", "-c", "echo begun; dd if=/dev/zero of=big bs=1M count=50 || { echo no room; exit 3; }")
        item = await plane.end_of(1)
        assert outcome(item) == ("disk_full", 3, None, "infrastructure")
        name = next(iter(plane.enrolled.values()))[1]
        assert f"the disk of worker {name} is full" in item["outcome"]["evidence"]
        assert str(worker.folder) in item["outcome"]["evidence"]
        log = bytes(plane.logs[1])
        assert log.startswith(b"begun\n")
        assert log.endswith(b"no room\n"), "the tail of the log is kept"
        await plane.until(lambda: worker.attempts() == [])
        plane.assign(2, "sh", "-c", "echo next > file; cat file")
        assert outcome(await plane.end_of(2))[:2] == ("program", 0)
        assert bytes(plane.logs[2]) == b"next\n"
        await worker.stop()

    on_disk(main)


def test_a_program_that_fills_the_disk_with_output_is_ended_and_all_it_wrote_is_kept(on_disk):
    async def main(plane, worker, disk):
        worker.start()
        plane.assign(1, "yes", "0123456789abcde", keep_outputs=False)
        item = await plane.end_of(1)
        assert outcome(item) == ("disk_full", None, signal.SIGTERM, "infrastructure")
        log = bytes(plane.logs[1])
        assert 15 * MIB < len(log) < 20 * MIB
        assert log == (b"0123456789abcde\n" * (len(log) // 16 + 1))[: len(log)]
        await plane.until(lambda: worker.attempts() == [])
        plane.assign(2, "echo", "next")
        assert outcome(await plane.end_of(2))[:2] == ("program", 0)
        await worker.stop()

    on_disk(main)


def test_a_program_that_ignores_sigterm_on_a_full_disk_is_killed_after_the_short_grace(on_disk, fill):
    async def main(plane, worker, disk):
        worker.start()
        plane.assign(1, "sh", "-c", "trap '' TERM; echo up; until [ -e go ]; do sleep 0.05; done; yes", grace_ms=300)
        await plane.until(lambda: bytes(plane.logs.get(1, b"")) == b"up\n")
        fill(disk / "ballast")
        (worker.folder / "attempts" / "1.0" / "work" / "go").symlink_to("x")
        (worker.folder / "attempts" / "1.0" / "work" / "x").touch()
        item = await plane.end_of(1)
        assert outcome(item) == ("disk_full", None, signal.SIGKILL, "infrastructure")
        (disk / "ballast").unlink()
        await worker.stop()

    on_disk(main)


def test_a_worker_on_a_full_disk_ends_reports_goes_on_and_leaves(on_disk, fill):
    async def main(plane, worker, disk):
        worker.start()
        plane.assign(1, "sh", "-c", "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exit 5")
        plane.assign(2, "sh", "-c", "echo up; exec sleep 600")
        await plane.until(lambda: plane.logs.get(1) == b"one\n" and plane.logs.get(2) == b"up\n")
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        fill(disk / "ballast")
        (worker.folder / "reserve").unlink(missing_ok=True)
        fill(disk / "ballast")
        plane.assign(3, "true")
        plane.assign(4, "true", source=source(plane, 3 * MIB))
        item = await plane.end_of(3)
        assert outcome(item) == ("disk_full", None, None, "infrastructure")
        assert "is full" in item["outcome"]["evidence"]
        assert outcome(await plane.end_of(4))[0] == "disk_full"
        ended = await plane.end_of(1)
        assert ended["outcome"]["exit_code"] == 5
        (disk / "ballast").unlink()
        plane.assign(5, "sh", "-c", "cat data | wc -c", source=source(plane, 3 * MIB))
        assert outcome(await plane.end_of(5))[:2] == ("program", 0)
        assert bytes(plane.logs[5]).strip() == str(3 * MIB).encode()
        fill(disk / "ballast")
        assert await worker.stop() == 0, "and it leaves on a full disk, its job ended"
        assert outcome(plane.ended[2])[0] == "worker_stopped"
        assert not (worker.folder / "spawner" / "spawner.sock").exists()

    on_disk(main)


def test_a_worker_that_starts_on_a_full_disk_says_so(on_disk, fill):
    async def main(plane, worker, disk):
        fill(disk / "ballast")
        worker.folder.mkdir()
        worker.start()
        assert await worker.ended() != 0
        assert "DiskFull" in worker.said.splitlines()[-1]
        assert os.strerror(errno.ENOSPC) in worker.said
        assert str(worker.folder) in worker.said

    on_disk(main)


def test_a_worker_that_was_killed_comes_back_on_a_full_disk_by_its_reserve(on_disk, fill):
    async def main(plane, worker, disk):
        worker.start()
        plane.assign(1, "sh", "-c", "echo up; exec sleep 600")
        await plane.until(lambda: plane.logs.get(1) == b"up\n")
        await plane.until((worker.folder / "reserve").exists)
        worker.kill()
        fill(disk / "ballast")
        worker.start()
        await plane.until(lambda: any(report.get("recovered") == [1] for report in plane.reports))
        plane.stop(1)
        assert outcome(await plane.end_of(1))[0] == "cancel"
        (disk / "ballast").unlink()
        await worker.stop()

    on_disk(main)


def test_an_agent_that_comes_back_hears_of_a_full_disk_that_was_told_to_its_predecessor(on_disk, fill):
    async def main(plane, worker, disk):
        worker.start()
        plane.assign(1, "sh", "-c", "echo up; until [ -e go ]; do sleep 0.05; done; exec yes")
        await plane.until(lambda: plane.logs.get(1) == b"up\n" and (worker.folder / "reserve").exists())
        worker.kill()
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        fill(disk / "ballast")
        await plane.until(lambda: os.statvfs(disk).f_bfree == 0)
        worker.start()
        assert outcome(await plane.end_of(1))[0] == "disk_full"
        (disk / "ballast").unlink()
        await worker.stop()

    on_disk(main)


def test_a_job_that_outgrows_its_own_disk_limit_is_to_blame_itself(scene):
    async def main(plane, worker):
        worker.start()
        limits = {"disk_bytes": 5_000_000}
        program = "dd if=/dev/zero of=$GPULAYER_OUTPUT_DIR/big bs=1M count=8 2>&-; exec sleep 600"
        plane.assign(1, "sh", "-c", program, limits=limits, keep_outputs=False)
        plane.assign(2, "sh", "-c", "dd if=/dev/zero of=big bs=1M count=4 2>&-; echo fits", limits=limits)
        item = await plane.end_of(1)
        assert outcome(item) == ("disk_full", None, signal.SIGTERM, "user")
        assert re.match(r"it used [5-8][.\d]* MB of its --disk 5 MB", item["outcome"]["evidence"])
        assert outcome(await plane.end_of(2))[:2] == ("program", 0)
        await worker.stop()

    scene(main)


def test_split_streams_come_home_apart_and_survive_the_agent(scene):
    async def main(plane, worker):
        worker.start()
        program = "echo out; echo err >&2; until [ -e go ]; do sleep 0.01; done; echo more; echo oops >&2; exit 3"
        plane.assign(1, "sh", "-c", program, split_streams=True)
        await plane.until(lambda: plane.logs.get(1) == b"out\n" and plane.logs.get((1, "stderr")) == b"err\n")
        worker.kill()
        (worker.folder / "attempts" / "1.0" / "work" / "go").touch()
        worker.start()
        assert outcome(await plane.end_of(1))[:2] == ("program", 3)
        assert (plane.logs[1], plane.logs[1, "stderr"]) == (b"out\nmore\n", b"err\noops\n")
        assert plane.final == {1, (1, "stderr")}
        await worker.stop()

    scene(main)


def test_a_log_past_its_limit_comes_home_with_its_end(scene):
    async def main(plane, worker):
        worker.start()
        program = "import sys\nfor i in range(50_000): sys.stdout.write('%09d\\n' % i)"
        plane.assign(1, sys.executable, "-c", program, limits={"log_bytes": 100_000})
        item = await plane.end_of(1)
        assert outcome(item)[:2] == ("program", 0)
        log = bytes(plane.logs[1])
        assert log.startswith(b"000000000\n")
        assert log.endswith(b"000049999\n")
        assert log.count(b"[gpulayer: ") == 2
        assert b"[gpulayer: 375000 bytes left out]\n" in log
        await worker.stop()

    scene(main)


def source(plane, size):
    content = os.urandom(size)
    tree = encode_tree([Entry("data", EntryKind.FILE, 0o644, size, digest_of(content))])
    plane.blobs |= {digest_of(content): content, digest_of(tree): tree}
    return digest_of(tree)


# Parts ----------------------------------------------------------------------------------------------------------------


def test_used_bytes_counts_blocks_once_and_follows_nothing(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside, inside / "deep"):
        folder.mkdir()
    empty = used_bytes([inside], limit_bytes=1 << 40)
    (outside / "big").write_bytes(bytes(5 * MIB))
    (inside / "link").symlink_to(outside / "big")
    (inside / "folder-link").symlink_to(outside)
    assert used_bytes([inside], limit_bytes=1 << 40) - empty < MIB
    (inside / "deep" / "file").write_bytes(os.urandom(2 * MIB))
    os.link(inside / "deep" / "file", inside / "again")
    with (inside / "sparse").open("wb") as file:
        file.truncate(1 << 32)
    assert 2 * MIB <= used_bytes([inside, tmp_path / "gone"], limit_bytes=1 << 40) - empty < 3 * MIB
    assert used_bytes([inside], limit_bytes=10) < 2 * MIB + empty, "enough is enough"


def test_the_reserve_is_really_there_given_up_once_and_made_again_where_there_is_plenty(disk_of, fill):
    disk = disk_of(12 * 1024)
    reserve = Reserve(disk)
    reserve.renew()
    assert reserve.is_held
    assert (disk / "reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    fill(disk / "ballast")
    assert is_full(disk)
    assert "is full (0 B free in" in full_text("w", disk)
    reserve.write(lambda: (disk / "words").write_bytes(bytes(500_000)))
    assert not reserve.is_held
    reserve.renew()
    assert not reserve.is_held, "there is no plenty"
    with pytest.raises(OSError, match="No space"):
        reserve.write(lambda: (disk / "more").write_bytes(bytes(5_000_000)))
    (disk / "ballast").unlink()
    reserve.renew()
    assert reserve.is_held


def test_a_journal_line_that_finds_no_room_leaves_the_former_one_whole_and_is_written_later(disk_of, fill):
    disk = disk_of(1024)
    journal = Journal(disk, boot_id="b")
    keeper = Keeper(journal, Reserve(disk), disk, worker_name=lambda: "w")
    first, second = (Assignment(key=NodeKey(epoch, 0), job_id="j", attempt=1, command=("true",)) for epoch in (1, 2))
    keeper.admit(first)
    phases = 0
    fill(disk / "ballast")
    while keeper.why_not(first.key) is None:
        keeper.write(first.key, Progress(Phase.SPAWNING, started_ms=phases))
        phases += 1
        assert phases < 1000
    keeper.admit(second)
    assert keeper.why_not(second.key) is not None, "what can't be found again is not begun"
    ((kept, progress),) = journal.load()
    assert (kept, progress.started_ms) == (first, phases - 2)
    keeper.write(first.key, Progress(Phase.RUNNING, stop=EndedBy.DISK_FULL, stop_evidence="e"))
    assert keeper.why_not(first.key) is None, "it runs already"
    (disk / "ballast").unlink()
    keeper._try_again()
    ((_, progress),) = journal.load()
    assert progress == Progress(Phase.RUNNING, stop=EndedBy.DISK_FULL, stop_evidence="e")


@pytest.mark.parametrize(
    ("end", "is_explained"),
    [
        ({"exit_code": 1}, True),
        ({"exit_code": 0}, False),
        ({"signal": signal.SIGBUS}, True),  # a mapped file that found no room
        ({"signal": signal.SIGSEGV}, False),
    ],
)
def test_a_failure_on_a_full_disk_is_explained_by_it(disk_of, fill, end, is_explained):
    disk = disk_of(1024)
    keeper = Keeper(Journal(disk, boot_id="b"), Reserve(disk), disk, worker_name=lambda: "w")
    assignment = Assignment(key=NodeKey(1, 0), job_id="j", attempt=1, command=("true",))
    keeper.admit(assignment)
    fill(disk / "ballast")
    explained = keeper.explained(ProcessExited(assignment.key, **end))
    assert explained.is_disk_full is is_explained
    assert explained.evidence.startswith("the disk of worker w is full") is is_explained
    lost = ProcessLost(assignment.key, "the spawner died")
    assert keeper.explained(lost) is lost
