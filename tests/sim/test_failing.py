"""A breach says in people's words which promise was broken, when, and by whom."""

import ast
from pathlib import Path

import pytest

from gpulayer.engine.invariants import InvariantViolated
from gpulayer.ids import Epoch, JobId
from gpulayer.protocol.messages import CommandsReceived
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.testing import sim
from gpulayer.testing.sim import HostPlan, Noise, Scenario, Stuck, Violation
from gpulayer.testing.sim.failing import Failing, explained, rule_of
from gpulayer.testing.sim.minimise import Minimised
from gpulayer.testing.sim.promises import PROMISES
from gpulayer.testing.sim.story import Story

SMALL = Scenario(hosts=(HostPlan(0), HostPlan(1, rate=1.05)), noise=Noise(loss=0.3, doubling=0.0, stall=0.0))


def told(error, scenario=SMALL):
    error.add_note("seed 0, virtual time 33.250 s, safety")
    story = Story()
    story.say(1_000, "w0 starts attempt 1 of job 3")
    return explained(
        Failing(Scenario.of_seed(0), Minimised(scenario, 7, is_smallest=True), error, story), program="sim"
    )


def test_the_promise_the_moment_and_who_it_is():
    lines = told(Violation("attempt 1 of job 3 runs on at w0", promise=3))
    assert lines[:2] == [
        f"broken:    promise 3: {PROMISES[3]}",
        "           by this, at 33.250 s: attempt 1 of job 3 runs on at w0",
    ]
    assert lines[-2:] == [
        "      1.000 s  w0 starts attempt 1 of job 3",
        "     33.250 s  BROKEN: attempt 1 of job 3 runs on at w0",
    ]


def test_what_is_wrong_without_a_fault_stands_with_what_is_left():
    lines = told(Violation("x", promise=3))
    at = next(at for at, line in enumerate(lines) if line.startswith("left: "))
    assert (
        lines[at]
        == "left:      2 machines, no jobs and no planned faults, of 3 machines, 40 jobs and 37 planned faults"
    )
    assert lines[at + 1 : at + 4] == [
        "           with a network that loses 30 % of all messages",
        "           with 1 % of all commits failing",
        "           with clocks whose rates differ by 5 %",
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Stuck("job 3 never finished"), f"promise 13: {PROMISES[13]} (when nothing goes wrong any more, "),
        (Violation("machines were made twice"), "a rule of the simulated world that no promise has in so many words"),
        (InvariantViolated("a task waits twice"), "what the control plane keeps in mind agrees with itself"),
        (KeyError("w1"), "nothing that was promised: the program fails (KeyError)"),
    ],
)
def test_what_is_no_promise_says_what_it_is(error, said):
    assert told(error)[0].removeprefix("broken:    ").startswith(said)


def test_the_engine_speaks_of_epochs_and_the_story_of_attempts():
    story = Story()
    given = Assignment(NodeKey(Epoch(12), 0), JobId(f"{3:016x}"), 2, ("program",))
    story.heard(0, "w0", CommandsReceived(0, (given,)))
    assert story.with_attempt_names("attempt 12 has ended") == "attempt 2 of job 3 has ended"
    assert story.with_attempt_names("attempt 1 of job 3 starts") == "attempt 1 of job 3 starts"


def test_a_rule_is_the_same_whoever_breaks_it_and_by_how_much():
    some = Violation("attempt 1 of job 7 runs on at w1, 2.2 s longer than it may (w0)")
    other = Violation("attempt 12 of job 9 runs on at w2, 2.5 min longer than it may (nobody)")
    assert rule_of(some) == rule_of(other)
    assert rule_of(some) != rule_of(Violation("attempt 1 of job 7 starts at w1, 2.2 s longer than it may"))


def test_every_rule_of_the_simulated_world_says_which_promise_it_is_of():
    """But for one: that of machines which a provider makes is none of the reliability promises."""
    folder = Path(sim.__file__).parent
    silent = []
    for module in folder.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Violation":
                given = [one.value for one in node.keywords if one.arg == "promise"]
                if not given:
                    silent.append(module.name)
                assert all(isinstance(one, ast.Constant) and one.value in PROMISES for one in given), module.name
    assert silent == ["fleet.py"]
