"""What a person is told of a scenario that breaks a rule: which rule, the least that breaks it, and its story."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpulayer.engine.invariants import InvariantViolated
from gpulayer.testing.sim.minimise import Minimised, minimise
from gpulayer.testing.sim.promises import PROMISES
from gpulayer.testing.sim.replay import written
from gpulayer.testing.sim.rules import Stuck, Violation
from gpulayer.testing.sim.scenario import Scenario
from gpulayer.testing.sim.story import Line, Story
from gpulayer.testing.sim.troubles import noise_text
from gpulayer.testing.sim.words import counted, listed, share

__all__ = ["Failing", "explained", "rule_of", "shrunk"]

Play = Callable[[Scenario, Story | None], object]  # raises where a rule is broken

LONGEST_STORY: Final = 60  # lines; of a longer one the end, which is where it breaks
_STUCK: Final = "when nothing goes wrong any more, everything comes to its end"
_BOOKS: Final = "what the control plane keeps in mind agrees with itself (an invariant of the engine)"
_RULE: Final = "a rule of the simulated world that no promise has in so many words"
_MOMENT: Final = re.compile(r"virtual time ([\d.]+) s")
_PARTICULARS: Final = re.compile(
    r"'[^']*'|\b[0-9a-f]{16}\b|\bw\d+\b|\bGPU-[\w-]+|-?\d[\d.,_]*(?: (?:ms|s|min|h)\b)?|[\[{(<].*", re.DOTALL
)


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
    what, at = _first_line(failing.error), Line(_moment_of(failing.error, small), "")
    if isinstance(failing.error, InvariantViolated):  # which knows attempts by their epochs
        what = failing.story.with_attempt_names(what)
    lines += [
        f"broken:    {_promised(failing.error)}",
        f"           by this, at {str(at).strip()}: {what}",
        f"left:      {_size(small)}, of {_size(whole)}",
        *(f"           with {text}" for text in _still_wrong(small)),
        f"           ({failing.found.plays} scenarios played, {end})",
        f"again:     {program} {shlex.quote(written(small))}",
        "story:",
    ]
    told = failing.story.told(in_full=in_full)
    if len(told) > LONGEST_STORY and not in_full:
        lines.append(f"  … {len(told) - LONGEST_STORY} lines before")
        told = told[-LONGEST_STORY:]
    return [*lines, *(f"  {line}" for line in told), f"  {replace(at, text=f'BROKEN: {what}')}"]


def _promised(error: Exception) -> str:
    """In the words that people know it by."""
    match error:
        case Stuck(promise=promise):
            return f"promise {promise}: {PROMISES[promise]} ({_STUCK})"
        case Violation(promise=promise) if promise in PROMISES:
            return f"promise {promise}: {PROMISES[promise]}"
        case Violation():
            return _RULE
        case InvariantViolated():
            return _BOOKS
        case _:
            return f"nothing that was promised: the program fails ({type(error).__name__})"


def _still_wrong(scenario: Scenario) -> Iterator[str]:
    """What is wrong there and no fault with a time of its own."""
    if text := noise_text(scenario.noise):
        yield f"a network that {text}"
    if scenario.noise.commit_failure:
        yield f"{share(scenario.noise.commit_failure)} of all commits failing"
    rates = {scenario.rate, *(host.rate for host in scenario.hosts)}
    if len(rates) > 1:
        yield f"clocks whose rates differ by {share(max(rates) / min(rates) - 1)}"


def _moment_of(error: Exception, scenario: Scenario) -> int:
    """Virtual time, from the note that ``play`` makes; of what it did not expect, the time of peace."""
    found = _MOMENT.search("\n".join(getattr(error, "__notes__", ())))
    return round(float(found[1]) * 1_000) if found else scenario.trouble_ms


def _size(scenario: Scenario) -> str:
    counts = (len(scenario.hosts), "machine"), (len(scenario.jobs), "job"), (len(scenario.faults), "planned fault")
    return listed([counted(count, name) for count, name in counts])


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0] or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} …"
