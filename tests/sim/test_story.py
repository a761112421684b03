"""What is told of a world can be followed: names, times, and who did what; the rest only on request."""

import re

import pytest

from gpulayer.clock import Instant
from gpulayer.engine.effects import Assign, Void
from gpulayer.engine.events import LeaseExpired, NodePhase, NodeReport, WorkerReported, WorkerWentSilent
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.protocol import messages as m
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.testing.sim import Noise, Scenario, play
from gpulayer.testing.sim.scenario import Fault, HostPlan, JobPlan, Trouble
from gpulayer.testing.sim.story import Story
from gpulayer.testing.sim.troubles import fault_text, noise_text
from gpulayer.testing.sim.words import lasting, listed, with_job_names

AT = Instant(0, 0)
W1 = WorkerId("w1")
JOB = JobId(f"{3:016x}")


def given(number, epoch):
    return Assignment(NodeKey(Epoch(epoch), 0), JOB, number, ("program",))


def test_a_lease_that_passes_and_what_follows():
    story = Story()
    story.committed(1_000, WorkerReported(AT, W1, 1, 0, recovered=()), (), (Assign(W1, Epoch(7), 0, JOB),))
    story.heard(1_010, "w1", m.CommandsReceived(1_000, (given(1, 7),)))
    story.acted(1_020, "w1", m.Spawn(given(1, 7), 90_000))
    story.began(1_020, "w1", given(1, 7))
    story.struck(2_000, Fault(Trouble.CUT, 2_000, 1, 41_000))
    story.committed(
        34_000, LeaseExpired(AT, Epoch(7), W1), (), (Assign(WorkerId("w2"), Epoch(8), 0, JOB), Void(W1, (Epoch(7),)))
    )
    assert story.told() == [
        "    1.000 s  w1 reports: it has started (start 1) and knows of nothing",
        "    1.000 s  the control plane lends job 3 to w1: epoch 7",
        "    1.020 s  w1 starts attempt 1 of job 3",
        "    2.000 s  the network of w1 is cut (both ways) for 41 s",
        "   34.000 s  w1 has been silent for longer than its lease of attempt 1 of job 3",
        "   34.000 s  the control plane lends job 3 again to w2: epoch 8",
        "   34.000 s  the control plane answers w1: not yours any more: attempt 1 of job 3",
    ]


def test_what_nobody_misses_is_told_on_request_alone():
    story = Story()
    story.committed(1_000, WorkerReported(AT, W1, 1, 5), (), ())
    story.heard(1_005, "w1", m.Ticked())
    story.acted(1_010, "w1", m.Extend(given(1, 7).key, 90_000))
    assert story.told() == []
    assert story.told(in_full=True) == [
        "    1.000 s  w1 reports nothing new",
        "    1.010 s  w1: extend the attempt of epoch 7",
    ]


def test_ends_are_told_as_people_say_them():
    story = Story()
    story.heard(500, "w1", m.CommandsReceived(0, (given(2, 9),)))
    story.heard(600, "w1", m.ProcessExited(given(2, 9).key, exit_code=1))
    story.heard(700, "w1", m.ProcessExited(given(2, 9).key, signal=9))
    ended = NodeReport(Epoch(9), 0, NodePhase.ENDED, Outcome(EndedBy.PROGRAM, exit_code=1))
    story.committed(800, WorkerReported(AT, W1, 1, 6, items=(ended,)), (), ())
    assert story.told() == [
        "    0.600 s  w1 sees that the program of attempt 2 of job 3 exits with 1",
        "    0.700 s  w1 sees that the program of attempt 2 of job 3 is ended by signal 9",
        "    0.800 s  w1 reports: attempt 2 of job 3 has ended: exit code 1",
    ]


def test_answers_that_do_not_come_are_told_once_they_may_matter():
    story, failed = Story(), m.ReportFailed(0, 1_000)
    story.heard(1_000, "w1", m.ReportAnswered(900, ()))
    story.heard(7_700, "w1", failed)
    story.heard(12_000, "w1", failed)
    story.heard(18_000, "w1", failed)
    story.heard(19_000, "w1", m.ReportAnswered(18_500, ()))
    story.heard(20_000, "w1", failed)
    assert story.told() == [
        "   12.000 s  w1 has had no answer to its reports for 11 s",
        "   19.000 s  w1 has an answer again",
    ]


def test_who_was_silent_is_heard_again_once():
    story = Story()
    story.committed(40_000, WorkerWentSilent(AT, W1), (), ())
    story.committed(50_000, WorkerReported(AT, W1, 1, 6), (), ())
    story.committed(51_000, WorkerReported(AT, W1, 1, 7), (), ())
    assert story.told() == [
        "   40.000 s  w1 has been silent for so long that nothing more is lent to it",
        "   50.000 s  w1 is heard again",
    ]


def test_what_is_void_is_told_once_however_often_it_is_answered():
    story = Story()
    for at_ms in (1_000, 2_000):
        story.committed(at_ms, WorkerReported(AT, W1, 1, at_ms), (), (Void(W1, (Epoch(7),)),))
        story.heard(at_ms + 5, "w1", m.ReportAnswered(at_ms, (Epoch(7),)))
    assert story.told() == [
        "    1.000 s  the control plane answers w1: not yours any more: the attempt of epoch 7",
        "    1.005 s  w1 hears that the attempt of epoch 7 is not its own any more",
    ]


def test_a_start_that_is_reported_until_it_is_answered_is_told_once():
    story = Story()
    for seq in range(3):
        story.committed(1_000 + seq, WorkerReported(AT, W1, 1, seq, recovered=()), (), ())
    story.committed(9_000, WorkerReported(AT, W1, 2, 0, recovered=()), (), ())
    assert [line.partition("(")[2] for line in story.told()] == [
        "start 1) and knows of nothing",
        "start 2) and knows of nothing",
    ]


def test_ids_in_a_rule_become_the_names_of_the_story():
    ids = f"job {31:016x} ended twice; {3:016x} was acknowledged under key-3; {{JobId('{18:016x}')}}"
    assert with_job_names(ids) == "job 31 ended twice; job 3 was acknowledged under key-3; {JobId(job 18)}"


@pytest.mark.parametrize("kind", Trouble)
def test_every_trouble_has_a_sentence(kind):
    text = fault_text(Fault(kind, 0, 2 if kind.is_of_host else None, 41_000, 3_600_000))
    assert "{" not in text
    assert text[0].islower() or text[0].isalpha()
    assert ("w2" in text) is kind.is_of_host


@pytest.mark.parametrize(
    ("ms", "text"), [(7, "7 ms"), (41_000, "41 s"), (41_240, "41.2 s"), (150_000, "2.5 min"), (86_400_000, "24 h")]
)
def test_times_are_as_people_say_them(ms, text):
    assert lasting(ms) == text


QUIET = Noise(loss=0.0, doubling=0.0, stall=0.0, commit_failure=0.0)


ONE = (HostPlan(0, cpus=1, gpus=1, staging_failure=0.0),)


def told(*faults, hosts=ONE, jobs=(), **options):
    """The story of a world in which only this happens, without times."""
    scenario = Scenario(
        **{"hosts": hosts, "jobs": jobs, "faults": faults, "noise": QUIET, "trouble_ms": 200_000, **options}
    )
    story = Story()
    play(scenario, story=story)
    return [line.partition(" s  ")[2] for line in story.told()]


# What is told first, and how its end is told.
ENDS = [
    (Trouble.CUT, "the network of w0 is cut (both ways) for 20 s", "the network of w0 is whole again"),
    (Trouble.CUT_OUT, "the network of w0 is cut for 20 s: what it sends is lost", "the network of w0 is whole again"),
    (Trouble.HALF_OPEN, "the connections of w0 are dead, and it does not know", "w0 has new connections"),
    (Trouble.LOSES_POWER, "w0 loses power for 20 s", "w0 has power again"),
    (Trouble.ALL_STOP, "everything on w0 stands still for 20 s, programs too", "everything on w0 goes on"),
    (Trouble.SPAWNER_STOPS, "the spawner of w0 stands still for 20 s", "the spawner of w0 goes on"),
    (Trouble.SPAWNER_DIES, "the spawner of w0 dies", "w0 has a spawner again"),
    (Trouble.AGENT_DIES, "the agent of w0 dies, and is back after 20 s", "start 2 of the agent of w0"),
    (Trouble.DISK_FULL, "the disk of w0 is full for 20 s", "the disk of w0 has room again"),
    (Trouble.PROBE_LIES, "the probe of w0 goes wrong for 20 s: it misses a GPU", "the probe of w0 is right again"),
    (Trouble.STRANGER, "somebody who can't be seen has the devices of w0 for 20 s", "the devices of w0 are free again"),
    (Trouble.DRAINED, "somebody drains w0 for 20 s", "w0 is drained no longer"),
    (Trouble.PLANE_STOPS, "the control plane stands still for 20 s", "the control plane goes on"),
    (
        Trouble.PLANE_DISK_FULL,
        "the disk of the control plane is full for 20 s",
        "the disk of the control plane has room again",
    ),
    (
        Trouble.PLANE_SCORERS_CHANGE,
        "the control plane has other scorers for 20 s",
        "the control plane has its own scorers again",
    ),
]


@pytest.mark.parametrize(("kind", "begins", "ends"), ENDS, ids=[kind for kind, *_ in ENDS])
def test_what_begins_has_an_end(kind, begins, ends):
    lines = told(Fault(kind, 30_000, 0 if kind.is_of_host else None, 20_000))
    assert lines.count(begins) == lines.count(ends) == 1
    assert lines.index(begins) < lines.index(ends)


def test_of_two_cuts_that_overlap_the_network_is_whole_after_the_last():
    lines = told(Fault(Trouble.CUT, 30_000, 0, 20_000), Fault(Trouble.CUT_IN, 40_000, 0, 30_000))
    ends = [line for line in lines if "arrives again" in line or "whole again" in line]
    assert ends == ["what w0 sends arrives again; the other way is still cut", "the network of w0 is whole again"]


def test_what_can_not_happen_is_not_told():
    power = Fault(Trouble.LOSES_POWER, 30_000, 0, 60_000)
    vain = [Fault(kind, 50_000, 0, 5_000) for kind in (Trouble.LOSES_POWER, Trouble.AGENT_DIES, Trouble.SPAWNER_DIES)]
    assert told(power, *vain) == told(power)
    assert told(Fault(Trouble.STRANGER, 1_000, 0, 5_000), hosts=(HostPlan(0),)) == told(hosts=(HostPlan(0),))


def test_what_is_to_go_wrong_at_a_certain_moment_is_told_when_it_does():
    lines = told(Fault(Trouble.PLANE_DIES_COMMITTED, 30_000, None, 5_000), jobs=(JobPlan(1, at_ms=60_000),))
    (death,) = [at for at, line in enumerate(lines) if "the control plane dies" in line or "is to die" in line]
    assert "job 1 is submitted" in lines[death - 1] or "lends job 1" in lines[death - 1]
    assert "dies after a commit that it has not answered yet, and is back after 5 s" in lines[death]


def test_an_attempt_starts_once_however_often_its_start_is_put_off():
    hosts = (HostPlan(0, cpus=9, launch_failure=0.6),)
    lines = told(hosts=hosts, jobs=tuple(JobPlan(number, at_ms=5_000) for number in range(9)))
    again = {number for number in range(9) if f"w0 puts the start of attempt 1 of job {number} off once more" in lines}
    assert again
    for number in range(9):
        assert lines.count(f"w0 starts attempt 1 of job {number}") == 1
    assert all(lines.count(f"w0 puts the start of attempt 1 of job {number} off") == 1 for number in again)


@pytest.mark.parametrize("seed", range(12))
def test_no_drawn_story_tells_a_start_twice_or_an_end_without_its_beginning(seed):
    story = Story()
    play(Scenario.of_seed(seed), story=story)
    lines = [line.partition(" s  ")[2] for line in story.told()]
    starts = [line.partition(" on ")[0] for line in lines if re.match(r"w\w+ starts attempt.*(?<!was told)$", line)]
    assert len(starts) == len(set(starts)) > 5
    dark = set()
    for line in lines:
        who = line.split()[0]
        if "loses power" in line and who.startswith("w"):
            assert who not in dark
            dark.add(who)
        elif line.endswith("has power again"):
            dark.remove(who)
        assert not (who in dark and re.search(r"sleeps|stands? still", line))


def test_why_a_program_is_told_to_end_stands_where_it_is():
    jobs = (JobPlan(1, at_ms=5_000, timeout_ms=10_000, run_ms=60_000), JobPlan(2, at_ms=40_000, run_ms=60_000))
    lines = told(Fault(Trouble.AGENT_LEAVES, 50_000, 0, 5_000), jobs=jobs)
    assert "w0 sends SIGTERM to attempt 1 of job 1: it ran for longer than its --timeout of 10.0 s" in lines
    assert "w0 sends SIGTERM to attempt 1 of job 2: somebody stopped the worker" in lines


def test_a_cancel_that_comes_after_the_end_says_so():
    lines = told(jobs=(JobPlan(1, at_ms=5_000, cancel_after_ms=60_000),))
    assert "somebody cancels job 1, which has ended: nothing comes of it" in lines


def test_what_is_wrong_from_the_start_is_told_there():
    hosts = (HostPlan(0, rate=1.05, wall_ms=-3_600_000), HostPlan(1, rate=1.05))
    lines = told(hosts=hosts, noise=Noise(loss=0.3, doubling=0.0, stall=0.0, commit_failure=0.0))
    assert lines[:3] == [
        "the network loses 30 % of all messages",
        "the clock of w0 and w1 runs 5 % too fast",
        "the wall clock of w0 is 1 h behind",
    ]


def test_of_few_messages_that_are_lost_each_is_told():
    lines = told(noise=Noise(loss=0.3, doubling=0.0, stall=0.0, commit_failure=0.0), trouble_ms=60_000)
    assert "a message of w0 is lost" in lines
    assert "an answer to w0 is lost" in lines
    many = told(noise=Noise(loss=0.3, doubling=0.0, stall=0.0, commit_failure=0.0), trouble_ms=600_000)
    assert not any(line.endswith("w0 is lost") for line in many)


@pytest.mark.parametrize(
    ("noise", "text"),
    [
        (QUIET, ""),
        (Noise(loss=0.0, doubling=0.05, stall=0.0), "delivers 5 % of all messages twice"),
        (Noise(loss=0.3, doubling=0.0, stall=0.02), "loses 30 % of all messages and delays 2 % of them for up to 30 s"),
    ],
)
def test_a_network_is_told_by_what_it_does(noise, text):
    assert noise_text(noise) == text


def test_lists_are_as_people_say_them():
    assert [listed(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
