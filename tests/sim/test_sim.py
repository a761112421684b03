"""Whole fleets from seeds: nothing breaks, planted faults are found, and the same seed is the same story."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from gpulayer.engine import workers
from gpulayer.engine.invariants import InvariantViolated
from gpulayer.testing.sim import Shape, Violation, run
from gpulayer.testing.sim.__main__ import main
from gpulayer.testing.sim.mutants import MUTANTS, UNSEEN, Mutant, StaleMutant, planted
from gpulayer.testing.sim.promises import PROMISES
from gpulayer.testing.sim.replay import written
from gpulayer.testing.sim.scenario import Scenario
from tests.soak.simulation import find_mutant

SEEDS_A_TEST = 20


@pytest.mark.parametrize("first", range(0, 300, SEEDS_A_TEST))
def test_no_seed_breaks_a_rule(first):
    reports = [run(seed) for seed in range(first, first + SEEDS_A_TEST)]
    assert sum(report.faults for report in reports) > 1000
    assert {state for report in reports for state in report.states} >= {"succeeded", "failed", "cancelled"}


def test_a_larger_fleet_holds_too():
    report = run(7, Shape(workers=12, jobs=150))
    assert sum(report.states.values()) == 150


def test_the_same_seed_is_the_same_story():
    assert run(11, trace=True) == run(11, trace=True)


# Those that are noticed soon, one of each kind; the soak tries them all (``make soak ONLY=14``).
QUICK = (
    "reused_epoch",
    "late_counters",
    "short_lease",
    "wall_clock_decides",
    "told_is_taken",
    "endless_retries",
    "one_retry_more",
    "forgets_failures",
    "gives_up",
    "endless_work",
    "exclusive_unminded",
    "keeps_nothing",
    "lowest_indices",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found(name):
    def breaks(seed):
        with planted(name):
            try:
                run(seed)
            except (Violation, InvariantViolated):
                return True
        return False

    assert any(breaks(seed) for seed in range(40)), f"40 seeds did not notice {name}"


def test_every_planted_fault_is_in_place_only_while_it_is_wanted_and_says_what_it_is():
    for name, mutant in {**MUTANTS, **UNSEEN}.items():
        sound = getattr(mutant.owner, mutant.attribute)
        with planted(name):
            assert getattr(mutant.owner, mutant.attribute) is not sound
        assert getattr(mutant.owner, mutant.attribute) is sound
        assert mutant.owner.__name__.startswith("gpulayer") or isinstance(mutant.owner, type)
        assert not getattr(mutant.owner, "__module__", mutant.owner.__name__).startswith("gpulayer.testing"), name
        assert mutant.text.endswith(".")
        assert len(mutant.text) < 130, name
    assert run(0) == run(0)


def longer(*more):
    def broken(turn, worker, recovered, *, also):
        pass

    return broken


@pytest.mark.parametrize(
    ("attribute", "patch"),
    [
        ("_gone", lambda sound: sound),
        ("_end_vanished", lambda _: lambda turn, worker: None),
        ("_end_vanished", lambda _: lambda turn, recovered, worker: None),
        ("_end_vanished", longer),
    ],
)
def test_a_planted_fault_that_does_not_fit_the_code_any_more_is_no_find(attribute, patch, monkeypatch):
    monkeypatch.setitem(MUTANTS, "old", Mutant(4, workers, attribute, patch))
    with pytest.raises(StaleMutant, match=attribute), planted("old"):
        pytest.fail("it was planted")
    assert find_mutant(("old", range(1))).is_stale


def test_a_planted_fault_that_breaks_the_program_and_no_rule_is_no_find(monkeypatch):
    def patch(sound):
        return lambda turn, worker, recovered: sound(turn)

    monkeypatch.setitem(MUTANTS, "old", Mutant(4, workers, "_end_vanished", patch))
    search = find_mutant(("old", range(3)))
    assert search.is_stale
    assert search.how.startswith("TypeError")


def test_a_failing_seed_is_made_small_and_tells_its_story(capsys):
    """Of 40 jobs and some 90 faults a handful is left, and the line that is printed plays it again."""
    assert main(["--seed", "3", "--mutant", "wall_clock_decides", "--minimise-s", "300"]) == 1
    printed = capsys.readouterr()
    assert printed.err == ""
    told = printed.out.splitlines()
    told = told[: next(at for at, line in enumerate(told) if line.startswith("faults: "))]
    assert told[0] == "seed 3 breaks a rule"
    line = {name: text.strip() for name, _, text in (line.partition(":") for line in told)}
    assert line["planted"] == MUTANTS["wall_clock_decides"].text
    assert line["broken"] == f"promise 11: {PROMISES[11]}"
    (by,) = re.findall(r"^ +by this, at ([\d.]+ s): (w\d is taken for silent, and was heard [\d.]+ s ago.*)$", told[3])
    assert told[-1].split("  ", 1)[1].strip() == f"{by[0]}  BROKEN: {by[1]}", "the last line has time and rule, too"
    assert re.match(r"1 machine, (no jobs|1 job) and (no planned faults|1 planned fault), of 3 machines", line["left"])
    assert len(told) < 40
    argv = shlex.split(line["again"])
    assert argv[:3] == ["python", "-m", "gpulayer.testing.sim"]
    assert main([*argv[3:], "--minimise-s", "0"]) == 1
    again = capsys.readouterr().out.splitlines()
    assert again[1:4] == told[1:4]
    assert again[told.index("story:") : len(told)] == told[told.index("story:") :], "to the last line"


def test_a_story_is_told_on_request(capsys):
    assert main(["--seed", "3", "--jobs", "5", "--trace"]) == 0
    story = capsys.readouterr().out
    assert "job 4 is submitted" in story
    assert "all is over: " in story
    assert main(["--seed", "3", "--jobs", "5", "--trace=all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3 * len(story.splitlines())


def test_a_scenario_is_read_from_a_file_too(tmp_path, capsys):
    file = tmp_path / "scenario.json"
    file.write_text(written(Scenario.of_seed(1, Shape(jobs=2))))
    assert main(["--replay", str(file)]) == 0
    assert "\n1 run, " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--replay", '{"weather": "fine"}'])


def test_the_rule_and_the_story_call_a_job_by_the_same_number(capsys):
    """Ids of simulated jobs are their numbers, and nobody reads sixteen digits of them in hexadecimal."""
    for seed in range(20):
        code = main(["--seed", str(seed), "--mutant", "told_is_taken", "--minimise-s", "0", "--trace=all"])
        told = capsys.readouterr()
        if "never finished" in told.out:
            break
    assert code == 1
    assert not re.search(r"\b0{8}[0-9a-f]{8}\b", told.out)
    (job,) = set(re.findall(r"job (\d+) never finished", told.out))
    assert f"job {job} is submitted" in told.out
    assert "JobImage" not in told.out
    steps, faults = (int(part) for part in re.search(r"1 run, (\d+) steps, (\d+) faults, 1 failed", told.out).groups())
    assert steps > 0 < faults, "those of a world that fails count"
    assert told.out.splitlines()[-1] == f"failed: seed {seed}"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--seeds", "5"], "it takes FROM:TO"),
        (["--seeds", "5:1"], "no seed from 5 up to 1"),
        (["--seeds", "3:3"], "no seed"),
        (["--seeds", "a:b"], "it takes FROM:TO"),
        (["--workers", "0"], "a whole number from 1 on"),
        (["--jobs=-1"], "a whole number from 0 on"),
        (["--minimise-s", "soon"], "a whole number"),
        (["--mutant", "told_is_takn"], "there is no 'told_is_takn'; --mutants lists all"),
        (["--replay", ""], "is a directory"),
        (["--replay", "{"], "that is no scenario as the line 'again:' has one"),
        (["--replay", "{}"], "no hosts and no jobs"),
        (["--replay", "/no/such/file"], "/no/such/file can't be read: no such file or directory"),
        (["--seed", "1", "--seeds", "0:2"], "not allowed with argument"),
    ],
)
def test_an_argument_that_makes_no_sense_passes_nothing(argv, why, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    said = capsys.readouterr().err.lower()
    assert why.lower() in said
    assert len(said) < 1000


def test_a_world_without_jobs_ends_with_a_whole_sentence(capsys):
    assert main(["--seed", "3", "--jobs", "0", "--trace"]) == 0
    assert "all is over: there were no jobs\n" in capsys.readouterr().out


def test_the_faults_that_can_be_planted_are_listed(capsys):
    assert main(["--mutants"]) == 0
    *listed, counts = capsys.readouterr().out.splitlines()
    assert "no_fence                     The control plane never says that an attempt is void." in listed
    assert len(listed) == len(MUTANTS) + len(UNSEEN)
    assert counts == f"{len(MUTANTS)} of {len(listed)} are noticed, {len(UNSEEN)} are not, or hardly ever"
    assert sum(" (not counted on: " in line for line in listed) == len(UNSEEN)


def test_whoever_is_not_counted_on_has_a_reason_and_nobody_else():
    assert all(mutant.unseen for mutant in UNSEEN.values())
    assert not any(mutant.unseen for mutant in MUTANTS.values())


def test_the_first_seed_that_notices_a_planted_fault_is_looked_for(capsys):
    assert main(["--mutant", "told_is_taken", "--minimise-s", "0"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("breaks a rule") for line in told) == 1
    first = int(told[-1].removeprefix("failed: seed "))
    assert told[-2].startswith(f"{first + 1} run"), "from 0 on, and none after it"


def test_a_planted_fault_that_is_not_noticed_is_told_with_where_to_look(capsys):
    assert main(["--mutant", "no_hold", "--seeds", "0:2", "--jobs", "2"]) == 0
    *_, said, more = capsys.readouterr().out.splitlines()
    assert said == "no_hold was not noticed in 2 fleets"
    assert "--mutant no_hold --seeds 0:1000 " in more
    assert main(["--mutant", "ends_unwritten", "--seed", "0", "--jobs", "2"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("ends_unwritten was not noticed in 1 fleet, and is not counted on: ")


def test_a_reader_that_goes_away_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gpulayer.testing.sim", "--seed", "5", "--jobs", "20", "--trace=all"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
