"""Logs as people see them, through the whole program: bytes, progress, size, readers of every kind."""

import hashlib
import json
import os
import subprocess
import sys
import threading

MEGABYTE = 1_000_000

# It stops after a few updates until the file exists, so that who looks must see them without any newline.
BARS = """
import os, sys, time
out = sys.stdout
def bar(n):
    print(f"\\r{n}", end="", flush=n % 1000 == 0)
for n in range(1001):
    bar(n)
ends = time.monotonic() + 60
while not os.path.exists(sys.argv[1]) and time.monotonic() < ends:
    time.sleep(0.01)
for n in range(1001, 200_000):
    bar(n)
print()
for outer in range(3):  # nested bars, as tqdm draws them
    out.write(f"\\router {outer}")
    for inner in range(100):
        out.write(f"\\n\\rinner {inner}\\x1b[A")
out.flush()
"""


def test_l1_progress_without_newlines_is_seen_as_it_comes_and_unchanged_at_the_end(story):
    gate = story.here / "gate"
    bars = story.here / "app" / "bars.py"
    bars.parent.mkdir()
    bars.write_text(BARS)
    process = story.start("submit", "--quiet", "--no-outputs", "--", sys.executable, "app/bars.py", str(gate))
    seen = b""
    while not seen.endswith(b"\r1000"):
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, seen
        seen += piece
    assert b"\n" not in seen
    gate.touch()
    ended = story.end(process)
    assert ended.code == 0, ended.err
    expected = subprocess.run([sys.executable, bars, gate], check=True, capture_output=True).stdout
    assert seen + ended.out == expected
    assert story.run("job", "logs", newest(story)).out == expected
    last = story.run("job", "logs", "--grep", "^199999$", "--tail", "1", newest(story))
    assert last.out == b"199999\n"


NASTY = bytes(range(256)) + b"\r\n\xff\xfe\x00no newline at the end\xc3"


def test_every_byte_comes_through_each_way_to_read_it(shared):
    program = f"import sys; sys.stdout.buffer.write({NASTY!r})"
    assert shared.run("submit", "--quiet", "--no-outputs", "--", sys.executable, "-c", program).out == NASTY
    job = newest(shared)
    for options in ([], ["--follow"], ["--tail", "99"], ["--since", "1h"], ["--grep", ""], ["--attempt", "1"]):
        ended = shared.run("job", "logs", *options, job)
        assert ended.code == 0, ended.err
        if options != ["--grep", ""]:  # which shows the last state of a line that was written over
            assert ended.out == NASTY, options
    last_line = NASTY[NASTY.rindex(b"\n") + 1 :]
    assert shared.run("job", "logs", "--tail", "1", "--follow", job).out == last_line
    assert shared.run("job", "logs", "--since", "2999-01-01", job).out == b""
    ended = shared.run("job", "logs", "--rank", "1", job)
    assert (ended.code, ended.out) == (2, b"")
    assert "ran on 1 node: there is no rank 1" in ended.err


def test_a_job_that_removes_its_own_log_before_anybody_has_read_it_is_told_that_it_is_missing(shared):
    said = shared.run("submit", "--quiet", "--no-outputs", "--", "sh", "-c", "rm ../log; echo gone")
    assert (said.code, said.out) == (0, b"[gpulayer: the rest of the log is missing]\n")
    record = json.loads(shared.run("job", "show", "--json", newest(shared)).out)
    assert record["state"] == "succeeded"
    (attempt,) = record["attempts"]
    why = "5 bytes were gone from the worker's disk before they had been sent"
    assert attempt["evidence"] == f"its log did not come home whole: {why}"


COUNT = 1_000_000
NUMBERS = f"""
import sys
for start in range(0, {COUNT}, 10_000):
    sys.stdout.buffer.write(b"".join(b"%099d\\n" % n for n in range(start, start + 10_000)))
"""


def test_l4_a_hundred_megabytes_are_followed_read_and_left_unread_in_bounded_memory(story):
    """Two who follow, one who follows and reads nothing, then whole and tail: nobody grows, none waits for another."""
    assert story.run("submit", "--quiet", "--", "echo", "warm").out == b"warm\n"
    small = story.start("job", "logs", newest(story))
    baseline = finished(small)[1]
    before = {pid: resident(pid) for pid in (story.plane_pid(), story.agent_pid())}

    submitted = story.run("submit", "--detach", "--no-outputs", "--", sys.executable, "-c", NUMBERS)
    job = submitted.out.decode().strip()
    sleeper = story.start("job", "logs", "--follow", job)
    followers = [story.start("job", "logs", "--follow", job) for _ in range(2)]
    peaks: dict[int, int] = {}
    done = threading.Event()
    watching = threading.Thread(target=watch, args=(before, peaks, done))
    watching.start()
    try:
        expected = hashlib.sha256()
        for start in range(0, COUNT, 10_000):
            expected.update(b"".join(b"%099d\n" % n for n in range(start, start + 10_000)))
        read = [finished(follower) for follower in followers]
        read.append(finished(story.start("job", "logs", job)))
    finally:
        done.set()
        watching.join()
        sleeper.kill()
        sleeper.communicate()
    for digest, peak in read:
        assert digest == expected.hexdigest()
        assert peak - baseline < 50 * MEGABYTE
    for pid, peak in peaks.items():
        assert peak - before[pid] < 50 * MEGABYTE, f"{peak - before[pid]:,} bytes"
    tail = story.run("job", "logs", "--tail", "10", job)
    assert tail.out == b"".join(b"%099d\n" % n for n in range(COUNT - 10, COUNT))
    found = story.run("job", "logs", "--grep", "77777$", "--tail", "2", job)
    assert found.out == b"".join(b"%099d\n" % n for n in (COUNT - 122_223, COUNT - 22_223))


def test_a_log_that_was_removed_says_when_and_the_record_stays(story):
    assert story.run("up", "--detach", "--port", "0", "--keep-logs", "1s").code == 0
    story.run("submit", "--quiet", "--no-outputs", "--", "echo", "gone")
    job = newest(story)
    ended = story.until(lambda: (found := story.run("job", "logs", job)).code and found, "the log is removed")
    assert (ended.code, ended.out) == (2, b"")
    assert f"the log of job {job} was removed on 2" in ended.err
    for options in (["--follow"], ["--tail", "5"]):
        again = story.run("job", "logs", *options, job)
        assert (again.code, again.err) == (2, ended.err)
    assert story.job(job)["attempts"][0]["ended_at"]


def newest(story):
    return story.run("job", "list", "--json", "--limit", "1").json["jobs"][0]["id"]


def finished(process):
    """The digest of what it printed and the most memory it had; it must have succeeded."""
    digest = hashlib.sha256()
    while piece := os.read(process.stdout.fileno(), 1 << 20):
        digest.update(piece)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    err = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert process.returncode == 0, err
    return digest.hexdigest(), usage.ru_maxrss * 1024


def watch(before, peaks, done):
    while True:
        is_last = done.wait(0.05)
        for pid in before:
            peaks[pid] = max(peaks.get(pid, 0), resident(pid))
        if is_last:
            return


def resident(pid):
    """Bytes of its own memory; pages of files that it shares with the cache do not count."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file if line.startswith("RssAnon"))
    return int(fields["RssAnon"].split()[0]) * 1024


BOTH = """
import os, sys, threading
def write(descriptor, text):
    left = memoryview(text)
    while left:
        left = left[os.write(descriptor, left):]
threads = [threading.Thread(target=write, args=(n, b"oe"[n - 1 : n] * 5_000_000)) for n in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_l3_five_megabytes_in_one_line_on_each_of_two_streams_come_out_on_their_own(shared):
    command = ("--split-streams", "--no-outputs", "--", sys.executable, "-c", BOTH)
    ended = shared.run("submit", "--quiet", *command)
    assert ended.code == 0
    assert ended.out == b"o" * 5_000_000
    assert ended.err == "e" * 5_000_000
    job = newest(shared)
    assert shared.job(job)["split_streams"] is True
    for options in ([], ["--follow"], ["--tail", "1"]):
        again = shared.run("job", "logs", *options, job)
        assert (again.code, again.out, again.err) == (0, ended.out, ended.err), options
    both = shared.run("submit", "--quiet", "--json", *command)
    assert both.json["split_streams"] is True
    assert (both.err.count("e"), both.err.count("o"), len(both.err)) == (5_000_000, 5_000_000, 10_000_000)
