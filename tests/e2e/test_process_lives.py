"""Agent, spawner, watchdog and control plane die or stop, alone and together: what becomes of the jobs, seen from
outside. A test's name begins with its case, where users met it elsewhere."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from gpulayer.spawner.state import StateDir
from tests.together import kill_together, stop_together

# A daemon that shed session and parent, and a count: what a job may leave, and what it must say whole. Its file is
# whole at all times: that of a second attempt may be ended while it writes over the first one's.
DAEMON = (
    "(setsid sh -c 'echo $$ > {pid}.$$; mv {pid}.$$ {pid}; exec sleep 600' &); "
    "while [ ! -s {pid} ]; do sleep 0.01; done"
)
COUNT = "i=0; while [ $i -lt {n} ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"
COUNTED = b"".join(b"%d\n" % number for number in range(1, 31))

UPGRADED = """
import sys
import gpulayer
gpulayer.__version__ = "0.1.999"
from gpulayer.cli.background import main
sys.exit(main(["worker", *sys.argv[1:]]))
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def spawner_of(story):
    return StateDir(str(story.state / "worker" / "spawner"))


def pids_of(story):
    pids = spawner_of(story).read_pids()
    return {"agent": story.agent_pid(), **pids}


def daemon_of(story):
    return int((story.here / "daemon").read_text())


def with_daemon(story, program):
    return DAEMON.format(pid=story.here / "daemon") + "; " + program


def detached(story, *argv):
    ended = story.run("submit", "--detach", *argv)
    assert ended.code == 0, ended.err
    return ended.out.decode().strip()


def log_of(story, job):
    return story.run("job", "logs", job).out


def until_log(story, job, text):
    story.until(lambda: text in log_of(story, job), f"{text!r} in the log")


def until_final(story, job):
    code = story.run("job", "wait", job).code
    return code, story.job(job)


def ends_of(record):
    return [attempt["ended_by"] for attempt in record["attempts"]]


def test_x2a_a_killed_agent_costs_no_byte_and_no_code_and_nothing_of_the_tree_is_left(story):
    job = detached(story, "--", "sh", "-c", with_daemon(story, COUNT.format(n=30)))
    until_log(story, job, b"2\n")
    before = pids_of(story)
    os.kill(before["agent"], signal.SIGKILL)
    code, record = until_final(story, job)
    assert (code, log_of(story, job)) == (7, COUNTED)
    assert ends_of(record) == ["program"]
    after = pids_of(story)
    assert after["agent"] != before["agent"]
    assert after["spawner"] == before["spawner"]
    story.until(lambda: not is_alive(daemon_of(story)), "the daemon has ended with its job")


def test_x2a_an_upgraded_agent_takes_over_what_runs(story):
    up = story.run("up", "--detach", "--no-worker", "--host", "127.0.0.1", "--port", free_port())
    assert up.code == 0, up.err
    join = up.out.decode().splitlines()[0].split()[1:]
    folder = story.state / "joined"
    first = story.start(*join, "--name", "box", "--work-dir", str(folder))
    job = detached(story, "--worker", "box", "--", "sh", "-c", COUNT.format(n=30))
    until_log(story, job, b"2\n")
    first.kill()
    story.end(first)
    arguments = ["--work-dir", str(folder), "--url", join[1], "--name", "box"]
    second = subprocess.Popen([sys.executable, "-c", UPGRADED, *arguments], env=story.environment)
    try:
        code, record = until_final(story, job)
        assert (code, log_of(story, job), ends_of(record)) == (7, COUNTED, ["program"])
        (worker,) = story.run("worker", "list", "--json").json["workers"]
        assert (worker["name"], worker["version"]) == ("box", "0.1.999")
    finally:
        second.terminate()
        assert second.wait(60) == 0


def test_x2b_what_agent_spawner_and_watchdog_left_is_ended_before_the_job_runs_again(story):
    # A zombie, which is dead, has no command line.
    look = 'if [ -n "$(tr -d "\\0" < /proc/$(cat {0})/cmdline)" ]; then echo leftover; else echo clean; fi'
    again = f"if [ -s {{0}} ]; then {look}; exit; fi; "
    script = again.format(story.here / "daemon") + with_daemon(story, "echo first; exec sleep 601")
    job = detached(story, "--", "sh", "-c", script)
    until_log(story, job, b"first\n")
    kill_together(pids_of(story).values())
    assert is_alive(daemon_of(story)), "nobody is there to end it"
    code, record = until_final(story, job)
    assert code == 0
    assert ends_of(record) == ["worker_lost", "program"]
    assert "died while it ran" in record["attempts"][0]["evidence"]
    assert log_of(story, job).endswith(b"clean\n")
    assert not is_alive(daemon_of(story))


@pytest.mark.timeout(240)
def test_x2c_an_exclusive_job_of_a_stopped_agent_and_spawner_is_dead_before_another_may_begin(story):
    up = story.run("up", "--detach", "--port", free_port())
    assert up.code == 0, up.err
    join = up.out.decode().splitlines()[0].split()[1:]
    beats = story.here / "beats"
    program = (
        f"n=$(ls {beats}.* 2>/dev/null | wc -l); [ $n -lt 1 ] || stop=yes; "
        f"while :; do cut -d' ' -f1 /proc/uptime >> {beats}.$n; [ -z $stop ] || exit 0; sleep 0.05; done"
    )
    job = detached(story, "--exclusive", "--", "sh", "-c", with_daemon(story, program))
    first = story.here / "beats.0"
    story.until(first.exists, "it runs")
    pids = pids_of(story)
    stop_together((pids["agent"], pids["spawner"]))
    other = story.start(*join, "--name", "other", "--work-dir", str(story.state / "other"))
    code, record = until_final(story, job)
    last_ms, next_ms = (float((story.here / f"beats.{n}").read_text().split()[at]) for n, at in ((0, -1), (1, 0)))
    assert code == 0
    assert ends_of(record) == ["worker_lost", "program"]
    assert last_ms < next_ms
    assert not is_alive(pids["spawner"]), "its watchdog has ended it"
    assert not is_alive(daemon_of(story))
    os.kill(pids["agent"], signal.SIGCONT)
    other.terminate()
    assert story.end(other).code == 0


@pytest.mark.timeout(240)
def test_x2d_a_stopped_spawner_is_noticed_and_its_job_runs_again(story):
    script = f"[ ! -e {story.here}/ran ] || exit 0; touch {story.here}/ran; exec sleep 600"
    job = detached(story, "--", "sh", "-c", script)
    story.until((story.here / "ran").exists, "it runs")
    pids = pids_of(story)
    os.kill(pids["spawner"], signal.SIGSTOP)
    code, record = until_final(story, job)
    assert code == 0
    assert ends_of(record) == ["worker_lost", "program"]
    assert "the spawner was stuck (state T) and was ended" in record["attempts"][0]["evidence"]
    assert story.agent_pid() == pids["agent"]


def test_c5_a_control_plane_that_comes_back_soon_gets_every_line_once(story):
    job = detached(story, "--", "sh", "-c", COUNT.format(n=30))
    until_log(story, job, b"2\n")
    os.kill(story.plane_pid(), signal.SIGKILL)
    code, record = until_final(story, job)
    assert (code, log_of(story, job), ends_of(record)) == (7, COUNTED, ["program"])


def test_c5_a_job_that_ended_while_the_control_plane_was_away_is_told_when_it_is_back(story):
    done = story.here / "done"
    job = detached(story, "--", "sh", "-c", f"trap 'touch {done}' EXIT; " + COUNT.format(n=30))
    until_log(story, job, b"2\n")
    os.kill(story.plane_pid(), signal.SIGKILL)
    story.until(done.exists, "the job has ended")
    code, record = until_final(story, job)
    assert (code, log_of(story, job), ends_of(record)) == (7, COUNTED, ["program"])


@pytest.mark.parametrize("agent_dies", [False, True])
def test_c5_a_job_is_ended_when_the_control_plane_is_away_for_longer_than_it_is_kept_for(story, agent_dies):
    script = f"[ ! -e {story.here}/daemon ] || exit 0; " + with_daemon(story, "echo first; sleep 602")
    job = detached(story, "--keep-for", "3s", "--grace", "1s", "--", "sh", "-c", script)
    until_log(story, job, b"first\n")
    kill_together([story.plane_pid(), *([story.agent_pid()] if agent_dies else [])])
    story.until(lambda: not is_alive(daemon_of(story)), "it has been kept for three seconds, and no longer")
    code, record = until_final(story, job)
    assert code == 0
    assert ends_of(record) == ["worker_lost", "program"]
    if agent_dies:
        assert "(3.0 s): ended by its spawner" in record["attempts"][0]["evidence"]


@pytest.mark.parametrize("harm", ["agent stopped", "agent killed", "plane killed", "plane and agent killed"])
def test_nothing_survives_down(story, harm):
    job = detached(story, "--", "sh", "-c", with_daemon(story, "echo up; exec sleep 603"))
    until_log(story, job, b"up\n")
    pids = pids_of(story)
    if harm == "agent stopped":
        os.kill(pids["agent"], signal.SIGSTOP)
    else:
        kill_together(pid for name, pid in {**pids, "plane": story.plane_pid()}.items() if name in harm)
    ended = story.run("down")
    assert ended.code == 0, ended.err
    assert not is_alive(daemon_of(story))
    assert not spawner_of(story).is_held()
    story.until(lambda: not any(map(is_alive, pids.values())), "agent, spawner and watchdog have gone")
