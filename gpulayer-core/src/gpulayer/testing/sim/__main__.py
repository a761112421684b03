"""``python -m gpulayer.testing.sim --seed N [--trace]`` or ``--seeds 0:300``: play worlds, and tell what happened.

What breaks a rule is made as small as it gets and told as a story, with the line that plays it again. Exit code 1 then.
"""

import argparse
import contextlib
import sys
import time
from collections import Counter
from pathlib import Path

from gpulayer.testing.sim.failing import explained, shrunk
from gpulayer.testing.sim.mutants import MUTANTS, UNSEEN, planted
from gpulayer.testing.sim.replay import scenario_from
from gpulayer.testing.sim.scenario import Scenario, Shape
from gpulayer.testing.sim.story import Story
from gpulayer.testing.sim.world import play


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a run broke a promise; which, the least that breaks it, and its story are on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gpulayer.testing.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed alone")
    parser.add_argument("--seeds", default="0:100", help="play seeds FROM:TO (default 0:100)")
    parser.add_argument("--replay", metavar="SCENARIO", help="play this one: JSON, a file that has it, or -")
    parser.add_argument("--trace", nargs="?", const="story", choices=["story", "all"], help="tell the story; all of it")
    parser.add_argument("--workers", type=int, default=Shape().workers)
    parser.add_argument("--jobs", type=int, default=Shape().jobs)
    parser.add_argument("--minimise-s", type=float, default=60, help="seconds for making it small (0: leave it)")
    parser.add_argument("--mutant", choices=sorted({**MUTANTS, **UNSEEN}), metavar="NAME", help="with a planted fault")
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


def _scenarios(arguments: argparse.Namespace) -> list[Scenario]:
    if arguments.replay:
        return [scenario_from(_text_of(arguments.replay))]
    first, last = (int(part) for part in arguments.seeds.split(":"))
    seeds = [arguments.seed] if arguments.seed is not None else range(first, last)
    shape = Shape(workers=arguments.workers, jobs=arguments.jobs)
    return [Scenario.of_seed(seed, shape) for seed in seeds]


def _text_of(replay: str) -> str:
    if replay == "-":
        return sys.stdin.read()
    return replay if replay.lstrip().startswith("{") else Path(replay).read_text(encoding="utf-8")


def _play_all(scenarios: list[Scenario], arguments: argparse.Namespace) -> int:
    began, steps, kinds, failed = time.process_time(), 0, Counter[str](), []
    in_full = arguments.trace == "all"
    for scenario in scenarios:
        story = Story() if arguments.trace else None
        try:
            report = play(scenario, story=story)
        except Exception as error:
            failed.append(scenario.seed)
            _explain(scenario, error, arguments, in_full=in_full)
            continue
        steps += report.steps
        kinds.update(report.kinds)
        if story is not None:
            print("\n".join(story.told(in_full=in_full)))
            print("all is over: " + ", ".join(f"{count} {state}" for state, count in sorted(report.states.items())))
    seconds = time.process_time() - began
    if kinds:
        print("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    done = f"{len(scenarios)} runs, {steps} steps, {kinds.total()} faults, {len(failed)} failed"
    print(f"{done} in {seconds:.1f} s of CPU", *failed[:20])
    return 1 if failed else 0


def _explain(scenario: Scenario, error: Exception, arguments: argparse.Namespace, *, in_full: bool) -> None:
    until = time.monotonic() + arguments.minimise_s
    failing = shrunk(scenario, error, _told, has_time=lambda: time.monotonic() < until)
    program = "python -m gpulayer.testing.sim"
    if arguments.mutant:
        program += f" --mutant {arguments.mutant}"
    lines = explained(failing, program=f"{program} --replay", in_full=in_full)
    print(f"seed {scenario.seed} breaks a rule", *lines, sep="\n", file=sys.stderr)


def _told(scenario: Scenario, story: Story | None) -> object:
    return play(scenario, story=story)


if __name__ == "__main__":
    sys.exit(main())
