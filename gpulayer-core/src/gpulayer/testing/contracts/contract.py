"""What holds for everything that a plugin registers, and how its contract is asked for."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, TypeVar

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
        ask()  # what it imports or opens once is no matter
        with unchanged_process():
            ask()


class SharedContract(Contract):
    """Of what is asked from several threads."""

    def test_it_answers_from_several_threads_at_once(self, ask: Ask) -> None:
        from_threads(self.deadline_s, ask)


def within(deadline_s: float, work: Callable[[], T]) -> T:
    """What ``work`` gives. Fails where it takes longer; its thread is left behind then."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(deadline_s)
    assert not thread.is_alive(), f"no answer within {deadline_s:g} s"
    if errors:
        assert isinstance(errors[0], Exception), f"it raised {type(errors[0]).__name__}, which ends a process"
        raise errors[0]
    return results[0]


def from_threads(deadline_s: float, work: Callable[[], T]) -> Sequence[T]:
    """What it gives to each of eight threads that ask at the same moment."""
    gate = threading.Barrier(_THREADS)

    def run() -> T:
        gate.wait(deadline_s)
        return work()

    with ThreadPoolExecutor(_THREADS) as pool:
        asked = [pool.submit(run) for _ in range(_THREADS)]
        return [one.result(deadline_s * 2) for one in asked]


def check_plain_name(name: object) -> None:
    """Fails for what can't name anything that is registered."""
    assert isinstance(name, str), f"a name is text, not a {type(name).__name__}"
    assert is_plain_name(name), f"{name!r}: a lower-case letter, then letters, digits and . _ + -, at most 63"


def check_line(text: object, what: str) -> None:
    """Fails for what is not one line for people."""
    assert isinstance(text, str), f"{what} is text, not a {type(text).__name__}"
    assert text.strip(), f"{what} is empty"
    assert "\n" not in text, f"{what} is one line: {text!r}"
