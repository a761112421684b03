"""What the watchdog notices, what it saves, and how it is told."""

import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpulayer.clock import SystemClock
from gpulayer.spawner import messages as m
from gpulayer.spawner import tree
from gpulayer.spawner.lifeline import Lifeline, Patience, Watch, packet_pair
from gpulayer.spawner.reactor import Reactor
from gpulayer.spawner.salvage import salvage
from gpulayer.spawner.spool import MIN_LIMIT_BYTES, Spool, join_tail
from gpulayer.spawner.state import read_exit_record
from tests.together import is_alive

WRITES = """
import os, sys, time
for number in range(int(sys.argv[1])):
    os.write(1, b"%09d\\n" % number)
open(sys.argv[2], "w").close()
time.sleep(600)
"""


def continuous_ms():
    return SystemClock().monotonic_ms()


def loans_of(watchdog_pid):
    """How many read ends of pipes it holds beside its own two."""
    folder = Path(f"/proc/{watchdog_pid}/fd")
    return sum(1 for entry in folder.iterdir() if os.readlink(entry).startswith("pipe:"))


def test_a_spawner_that_is_stopped_when_a_job_must_be_over_is_ended_and_its_jobs_with_it(spawner, agent, until):
    agent.spawn("late", "sh", "-c", "setsid sleep 600 & sleep 601", kill_by_ms=continuous_ms() + 500)
    agent.spawn("other", "sleep", "600")
    os.kill(spawner.spawner_pid, signal.SIGSTOP)
    until(lambda: not spawner.running(), "the watchdog has ended spawner and jobs")
    until(spawner.exit_path("other").exists, "the records are written")
    for key in ("late", "other"):
        record = read_exit_record(str(spawner.exit_path(key)))
        assert (record.reason, record.message) == ("spawner_lost", "the spawner was stuck (state T) and was ended")
        assert record.tree_clean


def test_a_stopped_spawner_whose_jobs_may_go_on_is_left_alone(spawner, agent, until):
    agent.spawn("1.0", "sh", "-c", "sleep 0.1; exit 4", kill_by_ms=continuous_ms() + 3_600_000)
    os.kill(spawner.spawner_pid, signal.SIGSTOP)
    until(lambda: tree.process(spawner.spawner_pid).state == "T", "it is stopped")
    silent_until = time.monotonic() + 3
    until(lambda: time.monotonic() > silent_until, "longer than a watchdog waits for a job that is overdue")
    os.kill(spawner.spawner_pid, signal.SIGCONT)
    assert agent.exited("1.0").exit_code == 4


def test_a_stopped_watchdog_is_no_silent_spawner(spawner, agent, until):
    agent.spawn("1.0", "sleep", "600", kill_by_ms=continuous_ms() + 500)
    for pid in (spawner.watchdog_pid, spawner.spawner_pid):
        os.kill(pid, signal.SIGSTOP)
    stopped_until = time.monotonic() + 4
    until(lambda: time.monotonic() > stopped_until, "the job's time has long passed")
    for pid in (spawner.watchdog_pid, spawner.spawner_pid):
        os.kill(pid, signal.SIGCONT)
    assert agent.exited("1.0").reason == "expired", "ended by the spawner, which lives"


def test_a_stopped_spawner_that_is_told_to_end_is_ended(spawner, agent, until):
    agent.spawn("1.0", "sleep", "600")
    os.kill(spawner.spawner_pid, signal.SIGSTOP)
    os.kill(spawner.watchdog_pid, signal.SIGTERM)
    until(spawner.exit_path("1.0").exists, "the watchdog has lost patience and has written the record")
    assert not spawner.running()
    assert read_exit_record(str(spawner.exit_path("1.0"))).reason == "spawner_lost"


def test_a_killed_spawner_loses_no_byte_of_a_log_though_nobody_else_is_there(spawner, agent, until):
    done = spawner.folder / "done"
    agent.spawn("1.0", sys.executable, "-I", "-S", "-c", WRITES, "6000", str(done))
    agent.spawn("2.0", "sleep", "600")
    until(lambda: loans_of(spawner.watchdog_pid) >= 4, "both read ends are lent")
    agent.close()
    os.kill(spawner.spawner_pid, signal.SIGSTOP)
    until(done.exists, "all is written, and some of it still in the pipe")
    os.kill(spawner.spawner_pid, signal.SIGKILL)
    until(spawner.exit_path("1.0").exists, "the record")
    record = read_exit_record(str(spawner.exit_path("1.0")))
    assert record.log_complete
    assert spawner.log("1.0").read_bytes() == b"".join(b"%09d\n" % number for number in range(6000))
    assert record.log_bytes == 60_000


def test_the_watchdog_gives_back_what_it_was_lent(spawner, agent, until):
    before = loans_of(spawner.watchdog_pid)
    for number in range(8):
        agent.spawn(f"{number}.0", "sleep", "600")
    until(lambda: loans_of(spawner.watchdog_pid) == before + 8, "eight read ends are lent")
    for number in range(8):
        agent.ask(lambda asked, number=number: m.Kill(asked, f"{number}.0"))
        agent.exited(f"{number}.0")
    until(lambda: loans_of(spawner.watchdog_pid) == before, "they are closed")


def test_tiny_jobs_are_not_lent(spawner, agent):
    before = loans_of(spawner.watchdog_pid)
    for number in range(20):
        agent.run(f"{number}.0", "true")
    assert loans_of(spawner.watchdog_pid) == before


def test_a_word_that_was_left_is_the_story_of_the_jobs(spawner, agent, until):
    agent.spawn("1.0", "sleep", "600")
    spawner.state.say_why("a brick fell on it")
    os.kill(spawner.spawner_pid, signal.SIGKILL)
    until(spawner.exit_path("1.0").exists, "the record")
    assert read_exit_record(str(spawner.exit_path("1.0"))).message == "a brick fell on it"
    assert spawner.state.take_why() == ""


def test_who_holds_the_folder_is_known_by_number_and_time_of_start(spawner, until):
    state = spawner.state
    assert (state.holder("spawner").pid, state.holder("watchdog").pid) == (spawner.spawner_pid, spawner.watchdog_pid)
    lock = Path(state.path) / "spawner.lock"
    written = lock.read_text()
    lock.write_text(written.replace(f'"spawner": {spawner.spawner_pid},', f'"spawner": {os.getpid()},', 1))
    assert state.holder("spawner") is None, "another process of the number that was written"
    lock.write_text(written)
    os.kill(spawner.watchdog_pid, signal.SIGTERM)
    until(lambda: not state.is_held(), "both have gone")
    assert state.holder("watchdog") is None


def test_a_job_that_ended_in_the_moment_the_spawner_was_told_to_end_keeps_its_code(spawner, agent, until):
    pid = agent.spawn("1.0", "sh", "-c", "read x < /dev/null; exit 6").pid
    record = agent.exited("1.0")
    assert (record.reason, record.exit_code) == ("exited", 6)
    agent.spawn("2.0", "sleep", "600")
    os.kill(spawner.watchdog_pid, signal.SIGTERM)
    until(spawner.exit_path("2.0").exists, "the record")
    record = read_exit_record(str(spawner.exit_path("2.0")))
    assert (record.reason, record.signal, record.message) == ("stopped", 9, "its spawner was told to end")
    assert pid > 0


# By value -------------------------------------------------------------------------------------------------------------


def test_silence_is_no_reason_while_no_job_is_overdue():
    patience = Patience()
    assert patience.wait_s(1_000) is None
    patience.heard(60_000)
    patience.waited(3_600)
    assert (patience.wait_s(59_999), patience.is_over(59_999)) == (1.0, False)
    assert (patience.wait_s(60_000), patience.is_over(60_500)) == (0.25, False)
    assert patience.is_over(61_000)


def test_an_overdue_job_is_no_reason_while_the_spawner_is_heard():
    patience = Patience()
    patience.heard(60_000)
    patience.waited(1.0)
    assert not patience.is_over(3_600_000), "suspended for an hour: one turn of waiting is no silence"
    patience.heard(0)
    patience.waited(100)
    assert not patience.is_over(3_600_000)


def test_one_that_was_told_to_end_may_be_silent_for_five_seconds():
    patience = Patience(is_ending=True)
    patience.waited(4.5)
    assert not patience.is_over(0)
    patience.waited(0.5)
    assert patience.is_over(0)
    patience.heard(0)
    assert not patience.is_over(0)


class Bench:
    """Both ends of a lifeline, and a clock by hand."""

    def __init__(self):
        ours, theirs = packet_pair()
        self.now = 0.0
        self.earliest = 0
        self.reactor = Reactor(lambda: self.now)
        self.ours, self.theirs = ours, theirs
        self.lifeline = Lifeline(ours, reactor=self.reactor, earliest=lambda: self.earliest)
        self.watch = Watch(theirs)

    def pass_time(self, seconds):
        self.now += seconds
        self.reactor.later(0, lambda: None)
        self.reactor.run_once()

    def close(self):
        for loans in self.watch.loans.values():
            for loan in loans:
                os.close(loan.read_fd)
        self.ours.close()
        self.theirs.close()
        self.reactor.close()


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.close()


def test_the_first_time_is_told_at_once_and_later_ones_with_the_next_beat(bench):
    bench.earliest = 5_000
    bench.lifeline.due(5_000)
    assert bench.watch.receive()
    assert bench.watch.kill_by_ms == 5_000
    bench.lifeline.due(9_000)
    assert not bench.watch.receive()
    bench.earliest = 4_000
    bench.lifeline.due(4_000)
    assert bench.watch.receive()
    assert bench.watch.kill_by_ms == 4_000
    bench.earliest = 0
    bench.pass_time(1)
    assert bench.watch.receive()
    assert bench.watch.kill_by_ms == 0
    bench.pass_time(5)
    assert not bench.watch.receive(), "with nothing to watch nothing is said"


def test_a_full_queue_loses_no_loan_and_no_end_of_one(bench, tmp_path):
    read_fd, write_fd = os.pipe()
    for number in range(2_000):
        bench.lifeline.lend(f"{number}.0", read_fd, str(tmp_path / f"log-{number}"), 0)
    bench.lifeline.end("1999.0")  # still waiting: nothing is said of it at all
    bench.lifeline.end("0.0")
    for _ in range(100):
        if not bench.watch.receive() and len(bench.watch.loans) == 1_998:
            break
        bench.pass_time(1)
    assert sorted(bench.watch.loans, key=float) == [f"{number}.0" for number in range(1, 1_999)]
    (loan,) = bench.watch.loans["7.0"]
    assert loan.path == str(tmp_path / "log-7")
    assert os.path.samestat(os.fstat(loan.read_fd), os.fstat(read_fd))
    os.close(read_fd)
    os.close(write_fd)


def test_a_lost_watchdog_is_told_nothing_more_and_that_is_no_fault(bench):
    bench.theirs.close()
    bench.earliest = 5_000
    bench.lifeline.due(5_000)
    bench.lifeline.end("1.0")
    bench.pass_time(1)
    bench.theirs, _ = packet_pair()
    _.close()


def test_salvage_appends_all_and_says_when_it_can_not(tmp_path):
    spool = tmp_path / "log"
    spool.write_bytes(b"before ")
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"after")
    assert salvage(read_fd, str(spool))
    assert spool.read_bytes() == b"before after"
    assert salvage(read_fd, str(spool)), "nothing more"
    os.write(write_fd, b"lost")
    assert not salvage(read_fd, str(tmp_path / "none"))
    assert not salvage(read_fd, "/dev/full") or not Path("/dev/full").exists()
    os.close(read_fd)
    os.close(write_fd)


def test_salvage_goes_on_past_the_limit_as_the_spawner_would_have(tmp_path):
    path = str(tmp_path / "log")
    content = bytes(range(256)) * 400  # 100 KiB: past the least limit, and past one file beside it
    limit = MIN_LIMIT_BYTES
    whole = Spool(str(tmp_path / "whole"), limit_bytes=limit)
    for start in range(0, len(content), 1000):
        put(whole, content[start : start + 1000])
    whole.join()
    whole.close()
    for cut in (1_000, limit - 10, limit, limit + 10, limit + 20_000):
        first = Spool(path, limit_bytes=limit)
        put(first, content[:cut])
        first.close()
        for start in range(cut, len(content), 50_000):
            read_fd, write_fd = os.pipe()
            os.write(write_fd, content[start : start + 50_000])
            assert salvage(read_fd, path, limit_bytes=limit)
            os.close(read_fd)
            os.close(write_fd)
        join_tail(path)
        assert Path(path).read_bytes() == (tmp_path / "whole").read_bytes(), cut
        os.unlink(path)


def put(spool, content):
    while content:
        target, room = spool.target()
        written = os.write(target, content[:room])
        spool.took(written)
        content = content[written:]


def test_both_streams_of_a_killed_spawners_job_are_whole(spawner, agent, until):
    done = spawner.folder / "done"
    err = spawner.folder / "err"
    program = "import os\nfor n in range(4000): os.write(1, b'%07d\\n' % n); os.write(2, b'%07d\\n' % -n)\n"
    program += f"open({str(done)!r}, 'w').close(); import time; time.sleep(600)"
    order = replace(spawner.order(1, "1.0", (sys.executable, "-I", "-S", "-c", program)), err_path=str(err))
    before = loans_of(spawner.watchdog_pid)
    agent.ask(lambda number: replace(order, id=number))
    until(lambda: loans_of(spawner.watchdog_pid) == before + 2, "two read ends are lent")
    until(done.exists, "all is written")
    os.kill(spawner.spawner_pid, signal.SIGKILL)
    until(spawner.exit_path("1.0").exists, "the record")
    record = read_exit_record(str(spawner.exit_path("1.0")))
    assert (record.log_complete, record.log_bytes, record.err_bytes) == (True, 32_000, 32_000)
    assert spawner.log("1.0").read_bytes() == b"".join(b"%07d\n" % n for n in range(4000))
    assert err.read_bytes() == b"".join(b"%07d\n" % -n for n in range(4000))


def test_a_spawner_that_dies_after_its_folder_was_removed_leaves_no_process_behind(spawner, agent, until):
    started = agent.spawn("1.0", "sh", "-c", "(setsid env -i sleep 600 &) ; sleep 601")
    until(lambda: len(tree.members(tree.processes(), roots={started.pid}, markers=(), spare=())) > 1, "it has begun")
    marker = tree.marker_of(started.pid)
    spawner_pid, bases = spawner.spawner_pid, spawner.state.read_groups()
    shutil.rmtree(spawner.state.path)
    os.kill(spawner_pid, signal.SIGKILL)
    until(lambda: not marked(marker), "all that ran has been ended")
    until(lambda: not any(map(os.path.exists, bases)), "its control groups are gone")


def test_a_spawner_that_dies_after_its_folder_was_made_anew_spares_the_jobs_of_the_next_one(spawner, agent, until):
    started = agent.spawn("1.0", "sleep", "600")
    marker = tree.marker_of(started.pid)
    former, bases = spawner.spawner_pid, spawner.state.read_groups()
    os.rename(spawner.state.path, f"{spawner.state.path}.away")
    spawner.start()
    until(spawner.is_listening, "the next one is there")
    next_agent = spawner.client()
    other = next_agent.spawn("2.0", "sh", "-c", "sleep 0.3; exit 4")
    os.kill(former, signal.SIGKILL)
    until(lambda: not marked(marker), "what ran under the dead one has been ended")
    until(lambda: not any(map(os.path.exists, bases)), "its control groups are gone")
    assert next_agent.exited("2.0").exit_code == 4
    assert other.pid != started.pid
    assert spawner.is_listening()


def test_a_spawner_whose_folder_was_removed_goes_with_its_last_job_and_leaves_the_next_one_alone(spawner, agent, until):
    former = {spawner.watchdog_pid, spawner.spawner_pid}
    agent.spawn("1.0", "sh", "-c", "sleep 0.3; exit 4")
    shutil.rmtree(spawner.state.path)
    spawner.start()
    assert agent.exited("1.0").exit_code == 4
    until(lambda: not any(map(is_alive, former)), "it has left")
    assert spawner.is_listening()


def marked(marker):
    return tree.members(tree.processes(), roots=(), markers={marker}, spare=())
