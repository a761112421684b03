"""``python -m gpulayer.testing.sim --seed N [--trace]`` or ``--seeds 0:300``: play worlds, and tell what happened.

What breaks a rule is made as small as it gets and told as a story, with the line that plays it again. Exit code 1 then.
With ``--mutant NAME`` the first seed that notices that planted fault is looked for.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpulayer.testing.sim.failing import explained, shrunk
from gpulayer.testing.sim.mutants import MUTANTS, UNSEEN, planted
from gpulayer.testing.sim.replay import scenario_from
from gpulayer.testing.sim.scenario import Scenario, Shape
from gpulayer.testing.sim.story import Story
from gpulayer.testing.sim.words import counted
from gpulayer.testing.sim.world import Course, play

PROGRAM: Final = "python -m gpulayer.testing.sim"
SEEDS: Final = range(100)
SEEDS_A_MUTANT: Final = range(1_000)  # within so many each has to be noticed (``make soak ONLY=14``)


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a run broke a promise; which, the least that breaks it, and its story are told. A reader that
    goes away ends it quietly."""
    try:
        code = _run(_parser().parse_args(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at the end
        return 141  # as of a program that SIGPIPE ends
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="play this seed alone")
    which.add_argument("--seeds", type=_range, metavar="FROM:TO", help="without TO (default: 0:100)")
    which.add_argument(
        "--replay", type=_scenario, metavar="SCENARIO", help="play this one: JSON, a file that has it, or -"
    )
    parser.add_argument(
        "--trace", nargs="?", const="story", choices=["story", "all"], help="tell the story; =all: every step of it"
    )
    parser.add_argument("--workers", type=_positive, default=Shape().workers, help="machines of a fleet")
    parser.add_argument("--jobs", type=_count, default=Shape().jobs, help="jobs of a fleet")
    parser.add_argument("--minimise-s", type=_count, default=60, help="seconds for making it small (0: leave it)")
    parser.add_argument(
        "--mutant",
        type=_mutant,
        metavar="NAME",
        help="with a planted fault, until it is noticed (default: --seeds 0:1000); see --mutants",
    )
    parser.add_argument("--mutants", action="store_true", help="list the faults that can be planted")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.mutants:
        for name, mutant in sorted({**MUTANTS, **UNSEEN}.items()):
            unseen = f" (not counted on: {UNSEEN[name].unseen})" if name in UNSEEN else ""
            print(f"{name:<28} {mutant.text}{unseen}")
        print(f"{len(MUTANTS)} of {len(MUTANTS) + len(UNSEEN)} are noticed, {len(UNSEEN)} are not, or hardly ever")
        return 0
    played = _Played(arguments)
    if not arguments.mutant:
        return played.all()
    with planted(arguments.mutant):
        return played.until_noticed()


@dataclass(slots=True)
class _Played:
    """What is played for one command line, and what it came to."""

    arguments: argparse.Namespace
    course: Course = field(default_factory=Course)
    runs: int = 0
    failed: list[int] = field(default_factory=list)

    def all(self) -> int:
        """Each of them, whatever breaks."""
        began = time.process_time()
        for scenario in self._scenarios(SEEDS):
            self._play(scenario)
        self._sum_up(time.process_time() - began)
        return 1 if self.failed else 0

    def until_noticed(self) -> int:
        """Until one breaks a rule."""
        began, name = time.process_time(), self.arguments.mutant
        for scenario in self._scenarios(SEEDS_A_MUTANT):
            if not self._play(scenario):
                break
        self._sum_up(time.process_time() - began)
        if self.failed:
            return 1
        known = f", and is not counted on: {UNSEEN[name].unseen}" if name in UNSEEN else ""
        print(f"{name} was not noticed in {counted(self.runs, 'fleet')}{known}")
        if self.runs < len(SEEDS_A_MUTANT) and name not in UNSEEN:
            more = f"--mutant {name} --seeds {SEEDS_A_MUTANT.start}:{SEEDS_A_MUTANT.stop}"
            print(f"more:      {PROGRAM} {more}   (it stops at the first that notices it)")
        return 0

    def _scenarios(self, usual: range) -> Iterator[Scenario]:
        arguments = self.arguments
        if arguments.replay is not None:
            yield arguments.replay
            return
        seeds = [arguments.seed] if arguments.seed is not None else arguments.seeds or usual
        shape = Shape(workers=arguments.workers, jobs=arguments.jobs)
        for number, seed in enumerate(seeds):
            _progress(f"{number} of {len(seeds)} fleets" if len(seeds) > 1 else "")
            yield Scenario.of_seed(seed, shape)
        _progress("")

    def _play(self, scenario: Scenario) -> bool:
        """Whether all went well."""
        in_full = self.arguments.trace == "all"
        story = Story() if self.arguments.trace else None
        self.runs += 1
        try:
            report = play(scenario, story=story, course=self.course)
        except Exception as error:
            self.failed.append(scenario.seed)
            _progress("")
            _explain(scenario, error, self.arguments, in_full=in_full)
            return False
        if story is not None:
            print("\n".join(story.told(in_full=in_full)))
            ends = ", ".join(f"{count} {state}" for state, count in sorted(report.states.items()))
            print(f"all is over: {ends or 'there were no jobs'}")
        return True

    def _sum_up(self, seconds: float) -> None:
        faults, failed = self.course.faults, self.failed
        if faults:
            print("faults: " + ", ".join(f"{_words(kind)} {count}" for kind, count in sorted(faults.items())))
        done = f"{counted(self.runs, 'run')}, {self.course.steps} steps, {faults.total()} faults"
        print(f"{done}, {len(failed)} failed in {seconds:.1f} s of CPU")
        if failed:
            print("failed: seed " + ", ".join(map(str, failed[:20])) + (", …" if len(failed) > 20 else ""))


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


def _scenario(replay: str) -> Scenario:
    try:
        text = sys.stdin.read() if replay == "-" else replay
        if replay != "-" and not replay.lstrip().startswith("{"):
            text = Path(replay).read_text(encoding="utf-8")
        scenario = scenario_from(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{replay} can't be read: {error.strerror}; it takes JSON, a file or -"
        ) from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"that is no scenario as the line 'again:' has one: {error}") from error
    if not scenario.hosts and not scenario.jobs:
        raise argparse.ArgumentTypeError("there are no hosts and no jobs in that scenario")
    return scenario


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _progress(text: str) -> None:
    """For who waits at a terminal, and gone with the next line; empty: only that."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _explain(scenario: Scenario, error: Exception, arguments: argparse.Namespace, *, in_full: bool) -> None:
    until: float = time.monotonic() + arguments.minimise_s
    plays = 0

    def has_time() -> bool:
        nonlocal plays
        plays += 1
        _progress(f"seed {scenario.seed} breaks a rule; made smaller in {plays} fleets so far")
        return time.monotonic() < until

    failing = shrunk(scenario, error, _told, has_time=has_time)
    _progress("")
    program, fault = PROGRAM, ""
    if arguments.mutant:
        program += f" --mutant {arguments.mutant}"
        fault = {**MUTANTS, **UNSEEN}[arguments.mutant].text
    lines = explained(failing, program=f"{program} --replay", planted=fault, in_full=in_full)
    print(f"seed {scenario.seed} breaks a rule", *lines, sep="\n", flush=True)


def _told(scenario: Scenario, story: Story | None) -> object:
    return play(scenario, story=story)


if __name__ == "__main__":
    sys.exit(main())
