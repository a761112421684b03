"""Output: exact bytes, live, bounded, and patient with a full disk."""

import sys

import pytest

from gpulayer.spawner import messages as m


def _python(agent, key, program, **options):
    return agent.run(key, sys.executable, "-I", "-S", "-c", program, **options)


def test_bytes_are_kept_as_they_are(spawner, agent):
    content = b"a\rb\r\r\nc\0d\xff\xfe\x80 no newline \xc3"
    record = _python(agent, "1.0", f"import os; os.write(1, {content!r})")
    assert spawner.log("1.0").read_bytes() == content
    assert (record.log_bytes, record.log_complete) == (len(content), True)


def test_five_megabytes_without_a_newline_on_both_streams_at_once(spawner, agent):
    program = """
import sys, threading
t = threading.Thread(target=lambda: print("y" * 5_000_000, end="", file=sys.stderr))
t.start()
print("x" * 5_000_000, end="")
sys.stdout.flush()
t.join()
"""
    record = _python(agent, "1.0", program)
    content = spawner.log("1.0").read_bytes()
    assert (record.exit_code, record.log_bytes) == (0, 10_000_000)
    assert (content.count(b"x"), content.count(b"y"), len(content)) == (5_000_000, 5_000_000, 10_000_000)


def test_output_is_appended_to_a_spool_that_exists(spawner, agent):
    spawner.log("1.0").write_bytes(b"before\n")
    record = agent.run("1.0", "echo", "after")
    assert spawner.log("1.0").read_bytes() == b"before\nafter\n"
    assert record.log_bytes == 13


def test_output_is_told_while_the_job_runs_and_coalesced(spawner, agent):
    agent.spawn("1.0", "sh", "-c", "echo one; exec sleep 600")
    while not (isinstance(event := agent.receive(), m.Output) and event.log_bytes == 4):
        pass
    assert spawner.log("1.0").read_bytes() == b"one\n"
    agent.ask(lambda number: m.Kill(number, "1.0"))
    agent.exited("1.0")
    _python(agent, "2.0", "import os\nfor i in range(20000): os.write(1, b'line\\n')")
    told = [event for event in agent.events if isinstance(event, m.Output) and event.key == "2.0"]
    assert spawner.log("2.0").stat().st_size == 100_000
    assert len(told) < 500
    assert [event.log_bytes for event in told] == sorted(event.log_bytes for event in told)


def test_a_job_that_closes_its_output_goes_on(spawner, agent):
    assert (
        _python(
            agent, "1.0", "import os, time; os.write(1, b'x'); os.close(1); os.close(2); time.sleep(0.05); os._exit(9)"
        ).exit_code
        == 9
    )
    assert spawner.log("1.0").read_bytes() == b"x"


def test_a_spool_that_can_not_be_opened_fails_the_start_and_is_not_remembered(spawner, agent):
    reply = agent.spawn("1.0", "true", log=spawner.folder / "no" / "log")
    assert isinstance(reply, m.SpawnFailed)
    assert reply.exit_code is None
    assert agent.run("1.0", "true").exit_code == 0


@pytest.fixture
def small_disk(disk_of):
    return disk_of(256)


def test_a_full_disk_stalls_the_output_and_loses_none_of_it(spawner, agent, small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    log = small_disk / "log"
    program = "import os\nfor i in range(150): os.write(1, (b'%03d' % i) * 333 + b'\\n')\nos._exit(3)"
    reply = agent.spawn("1.0", sys.executable, "-I", "-S", "-c", program, log=log)
    assert isinstance(reply, m.Spawned)
    while not isinstance(event := agent.receive(), m.Stalled):
        pass
    assert event.key == "1.0"
    before = _cpu_ticks(spawner.spawner_pid)
    agent.rows()
    ballast.unlink()
    record = agent.exited("1.0")
    assert (record.exit_code, record.log_bytes, record.log_complete) == (3, 150_000, True)
    assert log.read_bytes() == b"".join((b"%03d" % i) * 333 + b"\n" for i in range(150))
    assert _cpu_ticks(spawner.spawner_pid) - before < 50, "it does not spin"


def test_a_job_may_end_while_its_disk_is_full(spawner, agent, small_disk, fill):
    ballast = small_disk / "ballast"
    log = small_disk / "log"
    log.touch()
    fill(ballast)
    agent.spawn("1.0", "sh", "-c", "echo hello; exit 6", log=log)
    while not isinstance(agent.receive(), m.Stalled):
        pass
    ballast.unlink()
    record = agent.exited("1.0")
    assert (record.exit_code, record.log_complete, log.read_bytes()) == (6, True, b"hello\n")


def _cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_where_a_job_cuts_its_own_spool_short_a_line_stands_for_what_is_gone(spawner, agent):
    """Readers by offset stay right, and see no zeros that nobody printed."""
    program = f"""
import os, sys, time
def settled(size):
    ends = time.monotonic() + 60
    while os.stat({str(spawner.log("1.0"))!r}).st_size != size and time.monotonic() < ends:
        time.sleep(0.005)
os.write(1, b"x" * 1000)
settled(1000)
os.truncate({str(spawner.log("1.0"))!r}, 100)
os.write(1, b"more\\n")
settled(1005)
os.truncate({str(spawner.log("1.0"))!r}, 1000)
"""
    record = _python(agent, "1.0", program)
    content = spawner.log("1.0").read_bytes()
    assert content[:100] == b"x" * 100
    assert content[1000 - 49 : 1000] == b"\n[gpulayer: 900 bytes of the log are missing here]\n"[-49:]
    assert len(content) == record.log_bytes == 1005
    assert (record.cut_bytes, record.log_complete, record.exit_code) == (905, False, 0)
