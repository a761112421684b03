"""What a person is told of a scenario that breaks a rule: which rule, the least that breaks it, and its story."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpulayer.testing.sim.minimise import Minimised, minimise
from gpulayer.testing.sim.replay import written
from gpulayer.testing.sim.scenario import Scenario
from gpulayer.testing.sim.story import Story

__all__ = ["Failing", "explained", "rule_of", "shrunk"]

Play = Callable[[Scenario, Story | None], object]  # raises where a rule is broken

LONGEST_STORY: Final = 60  # lines; of a longer one the end, which is where it breaks
_MOMENT: Final = re.compile(r"virtual time ([\d.]+) s")
_PARTICULARS: Final = re.compile(r"'[^']*'|\b[0-9a-f]{16}\b|\bw\d+\b|\bGPU-[\w-]+|-?\d[\d.,_]*|[\[{(<].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Failing:
    """``error``: of the minimised scenario. ``story``: of that one, to its end."""

    whole: Scenario
    found: Minimised
    error: Exception
    story: Story


def rule_of(error: Exception) -> str:
    """What was broken, whichever job, machine or number it was broken by."""
    return f"{type(error).__name__}: {_PARTICULARS.sub('…', str(error))[:100]}"


def shrunk(scenario: Scenario, error: Exception, play: Play, *, has_time: Callable[[], bool]) -> Failing:
    """Minimise a scenario that ended with this error, and play what is left once more, for its story."""
    rule = rule_of(error)

    def breaks_at(candidate: Scenario) -> int | None:
        if not candidate.hosts and candidate.jobs:
            return None  # nothing could ever run: that is another story
        try:
            play(candidate, None)
        except Exception as other:
            if rule_of(other) == rule:
                return _moment_of(other, candidate)
        return None

    found = minimise(scenario, breaks_at, has_time=has_time)
    story = Story()
    try:
        play(found.scenario, story)
    except Exception as last:
        return Failing(scenario, found, last, story)
    raise RuntimeError(f"the same scenario broke a rule once, and then did not: {written(found.scenario)}") from error


def explained(failing: Failing, *, program: str, planted: str = "", in_full: bool = False) -> list[str]:
    """Lines for people. ``program``: what replays a scenario, when it is given as its last argument. ``planted``: what
    is wrong on purpose."""
    whole, small = failing.whole, failing.found.scenario
    end = "no smaller one was found" if failing.found.is_smallest else "time was over; it may get smaller still"
    lines = [f"planted:   {planted}"] if planted else []
    lines += [
        f"rule:      {type(failing.error).__name__}: {_first_line(failing.error)}",
        f"left:      {_size(small)}, of {_size(whole)}",
        f"           ({failing.found.plays} scenarios played, {end})",
        f"again:     {program} {shlex.quote(written(small))}",
        "story:",
    ]
    told = failing.story.told(in_full=in_full)
    if len(told) > LONGEST_STORY and not in_full:
        lines.append(f"  … {len(told) - LONGEST_STORY} lines before")
        told = told[-LONGEST_STORY:]
    return [*lines, *(f"  {line}" for line in told), f"  and so: {_first_line(failing.error)}"]


def _moment_of(error: Exception, scenario: Scenario) -> int:
    """Virtual time, from the note that ``play`` makes; of what it did not expect, the time of peace."""
    found = _MOMENT.search("\n".join(getattr(error, "__notes__", ())))
    return round(float(found[1]) * 1_000) if found else scenario.trouble_ms


def _size(scenario: Scenario) -> str:
    counts = (len(scenario.hosts), "machine"), (len(scenario.jobs), "job"), (len(scenario.faults), "fault")
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0] or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} …"
