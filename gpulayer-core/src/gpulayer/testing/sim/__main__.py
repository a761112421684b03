"""``python -m gpulayer.testing.sim --seed N [--trace]`` or ``--seeds 0:300``: play worlds, and tell what happened.

What breaks a rule is made as small as it gets and told as a story, with the line that plays it again. Exit code 1 then.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

from gpulayer.testing.sim.failing import explained, shrunk
from gpulayer.testing.sim.mutants import MUTANTS, UNSEEN, planted
from gpulayer.testing.sim.replay import scenario_from
from gpulayer.testing.sim.scenario import Scenario, Shape
from gpulayer.testing.sim.story import Story, counted
from gpulayer.testing.sim.world import Course, play


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a run broke a promise; which, the least that breaks it, and its story are on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gpulayer.testing.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed alone")
    parser.add_argument(
        "--seeds", default=range(100), type=_range, metavar="FROM:TO", help="without TO (default: 0:100)"
    )
    parser.add_argument("--replay", metavar="SCENARIO", help="play this one: JSON, a file that has it, or -")
    parser.add_argument(
        "--trace", nargs="?", const="story", choices=["story", "all"], help="tell the story; =all: every step of it"
    )
    parser.add_argument("--workers", type=_positive, default=Shape().workers, help="machines of a fleet")
    parser.add_argument("--jobs", type=_count, default=Shape().jobs, help="jobs of a fleet")
    parser.add_argument("--minimise-s", type=_count, default=60, help="seconds for making it small (0: leave it)")
    parser.add_argument("--mutant", type=_mutant, metavar="NAME", help="with a planted fault; see --mutants")
    parser.add_argument("--mutants", action="store_true", help="list the faults that can be planted")
    arguments = parser.parse_args(argv)
    if arguments.mutants:
        for name, mutant in sorted({**MUTANTS, **UNSEEN}.items()):
            unseen = " (nobody has noticed this one)" if name in UNSEEN else ""
            print(f"{name:<28} {mutant.text}{unseen}")
        return 0
    try:
        scenarios = _scenarios(arguments)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    fault = planted(arguments.mutant) if arguments.mutant else contextlib.nullcontext()
    with fault:
        return _play_all(scenarios, arguments)


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    try:
        seeds = range(int(first), int(last))
    except ValueError:
        raise argparse.ArgumentTypeError(f"it takes FROM:TO, such as 0:300, not {text!r}") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"there is no seed from {first} up to {last}")
    return seeds


def _count(text: str, least: int = 0) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"it takes a whole number from {least} on, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    return _count(text, least=1)


def _mutant(name: str) -> str:
    if name not in MUTANTS and name not in UNSEEN:
        raise argparse.ArgumentTypeError(f"there is no {name!r}; --mutants lists all")
    return name


def _scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    if arguments.replay is not None:
        return [scenario_from(_text_of(arguments.replay))]
    seeds = [arguments.seed] if arguments.seed is not None else arguments.seeds
    shape = Shape(workers=arguments.workers, jobs=arguments.jobs)
    return [Scenario.of_seed(seed, shape) for seed in seeds]


def _text_of(replay: str) -> str:
    if replay == "-":
        return sys.stdin.read()
    return replay if replay.lstrip().startswith("{") else Path(replay).read_text(encoding="utf-8")


def _play_all(scenarios: list[Scenario], arguments: argparse.Namespace) -> int:
    began, course, failed = time.process_time(), Course(), []
    in_full = arguments.trace == "all"
    for scenario in scenarios:
        story = Story() if arguments.trace else None
        try:
            report = play(scenario, story=story, course=course)
        except Exception as error:
            failed.append(scenario.seed)
            _explain(scenario, error, arguments, in_full=in_full)
            continue
        if story is not None:
            print("\n".join(story.told(in_full=in_full)))
            ends = ", ".join(f"{count} {state}" for state, count in sorted(report.states.items()))
            print(f"all is over: {ends or 'there were no jobs'}")
    seconds = time.process_time() - began
    if course.faults:
        print("faults: " + ", ".join(f"{_words(kind)} {count}" for kind, count in sorted(course.faults.items())))
    done = f"{counted(len(scenarios), 'run')}, {course.steps} steps, {course.faults.total()} faults"
    print(f"{done}, {len(failed)} failed in {seconds:.1f} s of CPU")
    if failed:
        print("failed: seed " + ", ".join(map(str, failed[:20])) + (", …" if len(failed) > 20 else ""))
    return 1 if failed else 0


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _explain(scenario: Scenario, error: Exception, arguments: argparse.Namespace, *, in_full: bool) -> None:
    until = time.monotonic() + arguments.minimise_s
    failing = shrunk(scenario, error, _told, has_time=lambda: time.monotonic() < until)
    program, fault = "python -m gpulayer.testing.sim", ""
    if arguments.mutant:
        program += f" --mutant {arguments.mutant}"
        fault = {**MUTANTS, **UNSEEN}[arguments.mutant].text
    lines = explained(failing, program=f"{program} --replay", planted=fault, in_full=in_full)
    print(f"seed {scenario.seed} breaks a rule", *lines, sep="\n", file=sys.stderr)


def _told(scenario: Scenario, story: Story | None) -> object:
    return play(scenario, story=story)


if __name__ == "__main__":
    sys.exit(main())
