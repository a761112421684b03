"""What holds for everything that a plugin registers, and how its contract is asked for.

What is tested is never called in the thread of the test: one that hangs fails its tests, each within its deadline, and
keeps nobody from going on.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import pytest

from gpulayer.spec.capabilities import is_plain_name
from gpulayer.testing.unchanged import unchanged_process

__all__ = [
    "Ask",
    "Contract",
    "SharedContract",
    "check_line",
    "check_plain_name",
    "from_threads",
    "within",
]

T = TypeVar("T")

Ask = Callable[[], Any]  # Any: by contract

_THREADS: Final = 8


class Contract:
    """``ask``: one usual call, with its arguments. deadline_s: how long one may take; a subclass may want less."""

    deadline_s: ClassVar[float]

    @pytest.fixture
    def ask(self) -> Ask:
        raise NotImplementedError("the contract of a kind says what is asked")

    def test_it_answers_within_its_deadline(self, ask: Ask) -> None:
        within(self.deadline_s, ask)

    def test_it_prints_nothing(self, ask: Ask, capfd: pytest.CaptureFixture[str]) -> None:
        capfd.readouterr()
        within(self.deadline_s, ask)
        out, err = capfd.readouterr()
        assert not out, f"it wrote to stdout, which belongs to whoever runs it: {out[:200]!r}"
        assert not err, f"it wrote to stderr; use a logger: {err[:200]!r}"

    def test_it_changes_nothing_that_the_whole_process_shares(self, ask: Ask) -> None:
        within(self.deadline_s, ask)  # what it imports or opens once is no matter
        with unchanged_process():
            within(self.deadline_s, ask)


class SharedContract(Contract):
    """Of what is asked from several threads."""

    def test_it_answers_from_several_threads_at_once(self, ask: Ask) -> None:
        from_threads(self.deadline_s, ask)


def within(deadline_s: float, work: Callable[[], T]) -> T:
    """What ``work`` gives. Fails where it takes longer; its thread is left behind then."""
    return _Asked(work).answer(deadline_s)


def from_threads(deadline_s: float, work: Callable[[], T]) -> Sequence[T]:
    """What it gives to each of eight threads that ask at the same moment."""
    gate = threading.Barrier(_THREADS)

    def run() -> T:
        gate.wait()
        return work()

    asked = [_Asked(run) for _ in range(_THREADS)]
    ends_s = time.monotonic() + deadline_s * 2  # eight at once may take longer than one
    return [one.answer(deadline_s * 2, ends_s=ends_s) for one in asked]


class _Asked(Generic[T]):
    """A call in a thread of its own. Not of a ``Lane``, whose threads outlive their calls, nor of a
    ``ThreadPoolExecutor``, which waits at the end of the process for those that hang."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def answer(self, deadline_s: float, *, ends_s: float | None = None) -> T:
        """Fails where there is none within the deadline, or by ``ends_s`` of the monotonic clock."""
        self._thread.join(deadline_s if ends_s is None else max(0.0, ends_s - time.monotonic()))
        assert not self._thread.is_alive(), f"no answer within {deadline_s:g} s"
        if self._errors:
            error = self._errors[0]
            assert isinstance(error, Exception), f"it raised {type(error).__name__}, which ends a process"
            raise error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._errors.append(error)


def check_plain_name(name: object) -> None:
    """Fails for what can't name anything that is registered."""
    assert isinstance(name, str), f"a name is text, not a {type(name).__name__}"
    assert is_plain_name(name), f"{name!r}: a lower-case letter, then letters, digits and . _ + -, at most 63"


def check_line(text: object, what: str) -> None:
    """Fails for what is not one line for people."""
    assert isinstance(text, str), f"{what} is text, not a {type(text).__name__}"
    assert text.strip(), f"{what} is empty"
    assert "\n" not in text, f"{what} is one line: {text!r}"
