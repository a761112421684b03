"""The limit of a log, its kept end, and two streams apart."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.spawner import messages as m
from gpulayer.spawner.spool import MIN_LIMIT_BYTES, Spool, beside_bytes, join_tail, tail_bytes
from tests.together import kill_together

LIMIT = 128 * 1024
TAIL = tail_bytes(LIMIT)
NOTICE = (
    b"[gpulayer: the log has reached its limit of 128 KiB; only the last 32 KiB from here on are kept, "
    b"and follow when the program ends]\n"
)


def counted(size):
    """Bytes of which any two far apart differ: numbered lines."""
    return b"".join(b"%011d\n" % number for number in range(size // 12 + 1))[:size]


def expected(content):
    """What a log of ``LIMIT`` keeps of it."""
    if len(content) <= LIMIT:
        return content, 0
    head, rest = content[:LIMIT], content[LIMIT:]
    left_out = max(0, len(rest) - TAIL)
    between = b"" if head.endswith(b"\n") else b"\n"
    word = b"%d bytes left out" % left_out if left_out else b"nothing was left out"
    return head + between + NOTICE + b"[gpulayer: " + word + b"]\n" + rest[left_out:], left_out


def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:  # it was dropped for a newer one just now
        return 0


def write(agent, key, content, **options):
    path = agent.harness.folder / f"{key}.content"
    path.write_bytes(content)
    return agent.run(key, "cat", str(path), limits=m.SpawnLimits(log_bytes=LIMIT), **options)


@pytest.mark.parametrize(
    "size",
    [LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + TAIL, LIMIT + TAIL + 1, LIMIT + 2 * TAIL, LIMIT + 2 * TAIL + 5, 3_000_000],
)
def test_a_log_keeps_its_beginning_and_its_end_and_says_what_is_missing(spawner, agent, size):
    content = counted(size)
    record = write(agent, "1.0", content)
    kept, left_out = expected(content)
    assert spawner.log("1.0").read_bytes() == kept
    assert (record.log_bytes, record.left_out_bytes, record.log_complete) == (len(kept), left_out, left_out == 0)
    assert record.unwritten_bytes == (0,)
    assert sorted(spawner.folder.glob("1.0.log*")) == [spawner.log("1.0")], "nothing is left beside it"


def test_a_program_that_prints_for_ever_fills_no_disk_and_its_end_is_kept(spawner, agent, until):
    """The limit is told at once, while the program goes on."""
    program = """
import os, signal
def bye(*_):
    os.write(1, b"bye\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, bye)
while True: os.write(1, b"y\\n" * 4096)
"""
    agent.spawn("1.0", sys.executable, "-I", "-S", "-c", program, limits=m.SpawnLimits(log_bytes=1))
    limit = MIN_LIMIT_BYTES  # a smaller one counts as that
    until(lambda: b"reached its limit of 64 KiB" in spawner.log("1.0").read_bytes()[limit:], "the notice")
    until(lambda: any(re.search(r"tail\.\d{3,}", path.name) for path in spawner.folder.iterdir()), "some megabytes")
    disk = sum(map(size_of, spawner.folder.glob("1.0.log*")))
    assert disk <= limit + 2 * tail_bytes(limit) + 1000
    agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM))
    record = agent.exited("1.0")
    content = spawner.log("1.0").read_bytes()
    assert record.exit_code == 0
    assert content.endswith(b"bye\n")
    assert len(content) <= limit + tail_bytes(limit) + 1000
    (told,) = re.findall(rb"\[gpulayer: (\d+) bytes left out\]", content)
    assert int(told) == record.left_out_bytes > 1_000_000


def test_streams_apart_have_a_spool_a_count_and_a_limit_each(spawner, agent):
    err = spawner.folder / "1.0.err"
    program = """
import os
os.write(1, b"out\\n")
os.write(2, b"err\\n")
for i in range(20000): os.write(2, b"x" * 99 + b"\\n")
os.write(1, b"end")
"""
    record = agent.run("1.0", sys.executable, "-I", "-S", "-c", program, err=err, limits=m.SpawnLimits(log_bytes=LIMIT))
    assert spawner.log("1.0").read_bytes() == b"out\nend"
    content = err.read_bytes()
    assert content.startswith(b"err\nxxx")
    assert content.count(b"[gpulayer: ") == 2
    assert (record.log_bytes, record.err_bytes, record.left_out_bytes) == (7, len(content), 2_000_004 - LIMIT - TAIL)
    told = {event.stream for event in agent.events if isinstance(event, m.Output)}
    assert told == {"stdout", "stderr"}


def test_a_stream_that_is_closed_ends_alone(spawner, agent):
    err = spawner.folder / "1.0.err"
    record = agent.run("1.0", "sh", "-c", "echo a; exec >&-; sleep 0.05; echo b >&2; exit 4", err=err)
    assert (record.exit_code, spawner.log("1.0").read_bytes(), err.read_bytes()) == (4, b"a\n", b"b\n")


def test_a_spool_for_stderr_that_can_not_be_opened_fails_the_start(spawner, agent):
    reply = agent.spawn("1.0", "true", err=spawner.folder / "no" / "log")
    assert isinstance(reply, m.SpawnFailed)
    assert agent.run("1.0", "true").exit_code == 0


def test_a_closed_pipe_of_its_own_kills_a_program_by_sigpipe_as_anywhere(spawner, agent):
    program = "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nr, w = os.pipe(); os.close(r)\n"
    record = agent.run("1.0", sys.executable, "-I", "-S", "-c", program + "os.write(w, b'x')")
    assert (record.exit_code, record.signal) == (None, signal.SIGPIPE)
    assert agent.run("2.0", "sh", "-c", "yes | head -n 1; echo ${PIPESTATUS:-done}").exit_code == 0
    assert spawner.log("2.0").read_bytes() == b"y\ndone\n", "and SIGPIPE is not ignored in a job"


@pytest.mark.parametrize("killed", ["spawner", "both"])
def test_the_end_of_a_cut_log_is_joined_on_when_its_spawner_dies(spawner, agent, until, killed):
    err = spawner.folder / "1.0.err"
    script = "echo begun; cat content >&2; echo done; exec sleep 600"
    content = counted(1_000_000)
    (spawner.work / "content").write_bytes(content)
    agent.spawn("1.0", "sh", "-c", script, err=err, limits=m.SpawnLimits(log_bytes=LIMIT))
    until(lambda: spawner.log("1.0").read_bytes() == b"begun\ndone\n", "all is printed")
    until(lambda: beside_bytes(str(err)) == len(content) - LIMIT, "all is in the files")
    if killed == "both":
        kill_together(spawner.state.read_pids().values())
        until(lambda: spawner.start() == 0, "another spawner")
    else:
        os.kill(spawner.spawner_pid, signal.SIGKILL)
        until(spawner.exit_path("1.0").exists, "the watchdog's record")
    record = m.decode_record(spawner.exit_path("1.0").read_bytes())
    kept, left_out = expected(content)
    assert err.read_bytes() == kept
    assert (record.reason, record.err_bytes, record.left_out_bytes) == ("spawner_lost", len(kept), left_out)
    assert sorted(spawner.folder.glob("1.0.err*")) == [err]


# The files alone ------------------------------------------------------------------------------------------------------


def fed(path, content, *, step):
    """A spool that was given ``content`` and then abandoned, as by a death."""
    spool = Spool(str(path), limit_bytes=LIMIT)
    left = memoryview(content)
    while left:
        fd, room = spool.target()
        written = os.write(fd, left[: min(room, step)])
        spool.took(written)
        left = left[written:]
    spool.close()
    return spool


@given(size=st.integers(0, LIMIT + 4 * TAIL), step=st.integers(1000, 70_000))
def test_any_content_in_any_pieces_is_kept_the_same_way(tmp_path_factory, size, step):
    path = tmp_path_factory.mktemp("spool") / "log"
    content = counted(size)
    spool = fed(path, content, step=step)
    kept, left_out = expected(content)
    assert spool.beside_bytes == max(0, size - LIMIT)
    assert beside_bytes(str(path)) == max(0, size - LIMIT)
    assert join_tail(str(path)) == left_out
    assert path.read_bytes() == kept
    assert join_tail(str(path)) == 0, "there is nothing left to join"


@pytest.mark.parametrize("size", [LIMIT + 5, LIMIT + TAIL, LIMIT + TAIL + 5, LIMIT + 3 * TAIL + 700])
def test_joining_that_is_cut_off_anywhere_is_done_to_its_end_by_the_next(tmp_path, monkeypatch, size):
    content = counted(size)
    kept, _ = expected(content)
    calls = ["rename", "pwrite", "unlink"]
    for fails_at in range(20):
        path = tmp_path / f"log{fails_at}"
        fed(path, content, step=50_000)
        left = [fails_at]

        def failing(real, left=left):
            def call(*args):
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(28, "No space left on device")
                return real(*args)

            return call

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, failing(getattr(os, name)))
            try:
                join_tail(str(path))
            except OSError:
                pass
        join_tail(str(path))
        assert path.read_bytes() == kept, fails_at
        assert sorted(tmp_path.glob(f"log{fails_at}.*")) == []


# Full disks -----------------------------------------------------------------------------------------------------------


def test_what_finds_no_room_after_the_end_is_counted(spawner, agent, disk_of, fill):
    disk = disk_of(512)
    log = disk / "log"
    log.touch()
    fill(disk / "ballast")
    agent.spawn("1.0", "sh", "-c", "echo hello; exit 6", log=log)
    record = agent.exited("1.0")
    assert (record.exit_code, record.log_bytes, record.log_complete) == (6, 0, False)
    assert (record.left_out_bytes, record.unwritten_bytes) == (6, (6,))
    stalls = [event for event in agent.events if isinstance(event, m.Stalled)]
    assert stalls[-1].is_draining


def test_a_little_room_is_for_the_end_and_not_for_the_flood(spawner, agent, disk_of, fill, until):
    """What is set free when the disk is full is an eighth of it or less: the running program does not get it."""
    disk = disk_of(1024)
    log, reserve = disk / "log", disk / "reserve"
    log.touch()
    reserve.write_bytes(bytes(100_000))
    fill(disk / "ballast")
    shell = agent.spawn("1.0", "sh", "-c", "trap 'exit 7' TERM; yes 123456789012345 & wait", log=log)
    while not isinstance(agent.receive(), m.Stalled):
        pass
    children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
    stat = Path(f"/proc/{children[0]}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "the pipe is full: who floods it stands still")
    reserve.unlink()
    agent.ask(lambda number: m.Signal(number, "1.0", signal.SIGTERM))
    record = agent.exited("1.0")
    assert record.exit_code == 7
    assert record.log_complete
    assert 60_000 < record.log_bytes < 80_000, "what had been in the pipe"


def test_a_survivor_that_prints_for_ever_does_not_hold_up_the_end(spawner, agent, until):
    """A process outside the tree may be handed the pipe: only what the tree wrote is waited for."""
    other = agent.spawn("2.0", "sh", "-c", "while [ ! -e fd ]; do sleep 0.01; done; exec yes > $(cat fd)")
    assert isinstance(other, m.Spawned)
    reply = agent.spawn("1.0", "sh", "-c", "echo mine; exec sleep 600")
    until(lambda: spawner.log("1.0").read_bytes() == b"mine\n", "it runs")
    (spawner.work / "fd.new").write_text(f"/proc/{reply.pid}/fd/1")
    (spawner.work / "fd.new").rename(spawner.work / "fd")
    until(lambda: spawner.log("1.0").stat().st_size > 1_000_000, "the other one prints")
    agent.ask(lambda number: m.Kill(number, "1.0"))
    assert agent.exited("1.0").signal == signal.SIGKILL
    agent.ask(lambda number: m.Kill(number, "2.0"))
    agent.exited("2.0")
