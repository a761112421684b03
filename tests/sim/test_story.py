"""What is told of a world can be followed: names, times, and who did what; the rest only on request."""

import pytest

from gpulayer.clock import Instant
from gpulayer.engine.effects import Assign, Void
from gpulayer.engine.events import LeaseExpired, NodePhase, NodeReport, WorkerReported, WorkerWentSilent
from gpulayer.ids import Epoch, JobId, WorkerId
from gpulayer.protocol import messages as m
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.testing.sim.scenario import Fault, Trouble
from gpulayer.testing.sim.story import Story, fault_text, lasting, with_job_names

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
