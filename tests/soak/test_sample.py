"""A small sample of every proof, and the frame that carries them out: what ends badly, hangs or is broken off."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulayer.testing.sim import Report, Violation
from gpulayer.testing.sim.mutants import MUTANTS
from tests.soak import rest, simulation
from tests.soak.__main__ import main
from tests.soak.frame import PROMISES, UNIT, WIDTH, Proof, Row, Tally, carry_out, found_proofs, table

SAMPLED = [proof for proof in found_proofs() if proof.sample]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("proof", [pytest.param(proof, id=f"{proof.promise}: {proof.text}") for proof in SAMPLED])
def test_a_sample_holds(proof):
    row = carry_out(proof, proof.sample, seed=0)
    assert row.tally.violations == []
    assert row.tally.runs > 0


def proof(prove, promise=2, **options):
    return Proof(promise, "something is done", prove, 1, 10, "rounds", **options)


def well(runs, *, seed, say):
    for number in range(runs):
        say(f"{number + 1} of {runs} rounds")
    return Tally(runs, 3 * runs, mutants=(2, 2))


def badly(runs, *, seed, say):
    return Tally(runs, violations=["two trees on GPU-1\nagain: --seed 4"])


def raising(runs, *, seed, say):
    say("round 4")
    raise RuntimeError("the disk is gone")


def hanging(runs, *, seed, say):
    say("round 7")
    try:
        time.sleep(60)
    except Exception:
        time.sleep(60)


def test_a_number_is_scaled_and_the_table_says_so(capsys):
    assert main(["--scale", "0.5", "--only", "2"], proofs=[proof(well)]) == 0
    printed = capsys.readouterr().out
    assert "something is done" in printed
    assert "all, at 0.5 of the full numbers, seed 1" in printed
    assert printed.splitlines()[3].split()[-9:] == ["5", "rounds", "15", "0", "2", "of", "2", "0", "s"]
    assert "so many were noticed" in printed


def test_a_violation_is_told_in_full_and_ends_with_1(capsys):
    assert main([], proofs=[proof(badly), proof(well)]) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("2: something is done:\n  two trees on GPU-1\n  again: --seed 4\n")


def test_what_a_proof_raises_is_a_violation_that_names_the_place():
    row = carry_out(proof(raising), 1, seed=1)
    assert "RuntimeError: the disk is gone (test_sample.py:" in row.tally.violations[0]
    assert "at: round 4" in row.tally.violations[0]


def test_what_hangs_is_ended_with_the_place_and_what_it_said_last():
    row = carry_out(proof(hanging, silence_s=0.1), 1, seed=1)
    assert "nothing said for 0 s (test_sample.py:" in row.tally.violations[0]
    assert "at: round 7" in row.tally.violations[0]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_who_says_something_now_and_then_does_not_hang():
    def slow(runs, *, seed, say):
        for number in range(10):
            say(f"round {number}")
            time.sleep(0.1)
        return Tally(10)

    assert carry_out(proof(slow, silence_s=0.6), 10, seed=1).tally == Tally(10)


def test_ctrl_c_prints_the_table_so_far(capsys):
    def interrupted(runs, *, seed, say):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    assert main([], proofs=[proof(well), proof(interrupted, 3), proof(well, 4)]) == 130
    printed = capsys.readouterr().out
    assert "    something is done: interrupted" in printed.replace("      ", "    ")
    assert "2 of 2" in printed
    assert PROMISES[4] not in printed


def test_sigterm_ends_what_is_under_way_in_good_order_and_prints_the_table(capsys):
    ended = []

    def terminated(runs, *, seed, say):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # somebody is impatient
            ended.append("its processes")

    before = signal.getsignal(signal.SIGTERM)
    assert main([], proofs=[proof(well), proof(terminated, 3), proof(well, 4)]) == 143
    assert ended == ["its processes"]
    assert signal.getsignal(signal.SIGTERM) is before
    printed = capsys.readouterr().out
    assert "something is done: interrupted" in printed
    assert PROMISES[4] not in printed


FLEETS = [proof for proof in found_proofs() if proof.is_shared]


def unexcused(scenario, judged):
    return Report(scenario.seed, 0, 0, {}, 0, {}, 0, judged=judged)


def breaking():
    """In the place of ``play``: each third world breaks a rule, and each seventh ends with what nobody foresaw."""

    def play(scenario, *, course, **_):
        course.faults["cut"] += 100
        if scenario.seed % 3 == 0:
            raise Violation("a rule that was worded anew yesterday")
        if scenario.seed % 7 == 0:
            raise KeyError("the simulator itself")
        return unexcused(scenario, 1)

    return play


@pytest.mark.parametrize("only", ["10", "2", "1,2,3,4,6,8,10,13"])
def test_a_world_that_breaks_counts_whatever_it_broke_and_whichever_promises_were_asked_for(monkeypatch, capsys, only):
    monkeypatch.setattr(simulation, "play", breaking())
    assert main(["--scale", "0.001", "--only", only, "--seed", "77"], proofs=FLEETS) == 1
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.endswith(" s") and " * " in line]
    assert len(rows) == len(only.split(","))
    broken = sum(seed % 3 == 0 or seed % 7 == 0 for seed in range(77_000_000, 77_000_010))
    for row in rows:
        assert row.split("*")[1].split()[:4] == ["10", "fleets", "1,000", str(broken)], "faults of broken ones too"
    assert f"{broken} " in lines[lines.index("-" * WIDTH, 2) + 1], "each counts once in all"
    assert any(line.startswith("* one set of fleets serves every such row") for line in lines)
    told = [line for line in lines if line.startswith("  again: ")]
    assert len(told) == len(set(told)) == broken, "and is told once"
    assert "  KeyError: 'the simulator itself'" in lines
    assert (PROMISES[7] in "".join(lines)) is False


@pytest.mark.parametrize("judged", [0, 1])
def test_cancels_that_were_all_excused_prove_nothing(monkeypatch, judged):
    monkeypatch.setattr(simulation, "play", lambda scenario, **_: unexcused(scenario, judged))
    monkeypatch.setattr(simulation, "MANY", simulation.SAMPLE)
    (cancels,) = [proof for proof in FLEETS if proof.promise == simulation.CANCELS]
    row = carry_out(cancels, simulation.SAMPLE, seed=78 + judged)  # worlds of their own
    assert row.tally.violations == ([] if judged else ["no cancel was judged: there was an excuse for each"])


def test_few_worlds_to_notice_a_planted_fault_in_are_told_as_few(capsys):
    main(["--scale", "0.5"], proofs=[proof(well)])
    assert "has few worlds to be noticed in" in capsys.readouterr().out
    main([], proofs=[proof(well)])
    assert "has few worlds to be noticed in" not in capsys.readouterr().out


def test_the_page_shows_the_table_that_is_printed():
    """Of the promises of which it shows it: its head, its rows, its notes."""
    page = (Path(__file__).parents[2] / "docs/proofs.md").read_text(encoding="utf-8")
    shown = re.search(r"make soak SCALE=(\S+) ONLY=(\S+)\n(.*?)\n```", page, re.DOTALL)
    scale, wanted = float(shown[1]), {int(number) for number in shown[2].split(",")}
    rows = [Row(one, Tally(mutants=(0, 0))) for one in found_proofs() if one.promise in wanted]
    printed = table(rows, scale=scale, seed=1, wanted=wanted).splitlines()

    def without_numbers(lines):
        return [" ".join(re.sub(r"[\d,.]+( of \d+)?( s| min)?(?=\s|$)", "", line[4:50]).split()) for line in lines]

    assert without_numbers(shown[3].splitlines()) == without_numbers(printed)
    assert shown[3].splitlines()[0] == printed[0]
    assert shown[3].splitlines()[-2:] == printed[-2:]


def test_the_numbers_of_fleets_on_the_page_are_those_of_this_version():
    """Where they are not any more, the table that is printed belongs there."""
    page = (Path(__file__).parents[2] / "docs/proofs.md").read_text(encoding="utf-8")
    fleets = r"^ {6}simulated fleets, .*? \* +(\d+) fleets +([\d,]+) +0 +\d+ of (\d+) "
    shown = re.findall(fleets, page, re.MULTILINE)
    there = [sum(mutant.promise == promise for mutant in MUTANTS.values()) for promise in (1, 2, 3)]
    assert [int(planted) for *_, planted in shown] == there
    worlds = simulation.try_seeds(range(1_000_000, 1_000_000 + int(shown[0][0])))
    assert {faults for _, faults, _ in shown} == {f"{worlds.faults:,}"}


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "much"])
def test_a_scale_at_which_nothing_would_be_tried_is_refused(scale, capsys):
    with pytest.raises(SystemExit) as ended:
        main([f"--scale={scale}"], proofs=[proof(well)])
    assert ended.value.code == 2


def test_the_table_fits_into_100_columns_whatever_the_numbers():
    huge = Tally(10_000, 9_990_000, [], (99, 99))
    rows = [Row(one, huge, 36_000.0) for one in found_proofs()]
    rows.append(Row(Proof(3, "x" * 200, well, 1, 1, "rounds"), huge, 1.0))
    rows.append(Row(Proof(5, "x" * 90, well, 1, 1, "rounds"), None, 1.0, "y" * 90))
    printed = table(rows, scale=0.0001, seed=123_456_789)
    assert max(map(len, printed.splitlines())) <= WIDTH


def test_every_text_stands_in_the_table_whole():
    """42 columns are there for it; and each promise has its number, each run a name."""
    for one in found_proofs():
        assert len(one.text) + 2 * one.is_shared <= 42, one.text
        assert len(one.unit) <= UNIT
        assert one.unit.endswith("s")
        assert one.promise in {0, *PROMISES}


def test_only_takes_promises_by_number(capsys):
    with pytest.raises(SystemExit):
        main(["--only", "99"], proofs=[])
    assert "not '99'" in capsys.readouterr().err


def test_it_is_a_program():
    argv = [sys.executable, "-m", "tests.soak", "--list", "--scale", "0.01"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert " 1  simulated fleets, all rules at each step: 100 fleets" in listed


def test_the_other_long_runs_are_read_as_they_end():
    said = []
    lines = [
        "tests/a.py::test_one PASSED [ 50%]\n",
        "tests/a.py::test_two[GET /v1/jobs] FAILED [100%]\n",
        "FAILED tests/a.py::test_two\n",
    ]
    tally = rest.read(lines, said.append, again="pytest -m soak --seed=1")
    assert tally.runs == 2
    assert tally.violations == [
        "tests/a.py::test_two[GET /v1/jobs] failed\nagain: pytest -m soak --seed=1 tests/a.py::test_two"
    ]
    assert said == ["1 tests, the last was test_one", "2 tests, the last was test_two[GET /v1/jobs]"]


def test_no_test_at_all_is_a_violation():
    assert "no module named" in rest.read(["no module named x"], print, again="").violations[0]
