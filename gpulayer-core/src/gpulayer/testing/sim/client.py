"""Simulated clients: they submit with an idempotency key and cancel, and repeat both, as the retry policy says, until
they are answered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gpulayer.ids import JobId
from gpulayer.protocol.retry import Failure, FailureKind, Repeatable, next_try_ms
from gpulayer.spec.job import JobEntry
from gpulayer.testing.sim.clockwork import Clockwork
from gpulayer.testing.sim.network import IN, OUT, Network
from gpulayer.testing.sim.plane import SimPlane
from gpulayer.testing.sim.rules import Violation

__all__ = ["SimClients"]

LIMIT_MS: Final = 10_000


@dataclass(slots=True)
class SimClients:
    """``acknowledged``: the job that each key was answered with."""

    clock: Clockwork
    network: Network
    plane: SimPlane
    acknowledged: dict[str, JobId] = field(default_factory=dict)

    def submit(self, key: str, entry: JobEntry, *, then: Callable[[], None]) -> None:
        """``then`` is called once, when it is answered first; every answer names the same job."""

        def heard(found: object) -> None:
            if not isinstance(found, str):
                return
            if self.acknowledged.setdefault(key, JobId(found)) != found:
                raise Violation(f"{key} gave {self.acknowledged[key]}, and now {found}", promise=5)

        def done() -> None:
            then()

        self._until_answered(
            f"client-{key}", lambda reply: self.plane.submit(key, entry, reply), heard=heard, done=done
        )

    def cancel(self, job_id: JobId) -> None:
        """Until it is answered."""
        self._until_answered(
            f"canceller-{job_id}",
            lambda reply: self.plane.cancel(job_id, lambda is_done: reply(is_done or None)),
            heard=lambda _: None,
            done=lambda: None,
        )

    def _until_answered(
        self,
        name: str,
        send: Callable[[Callable[[object], None]], None],
        *,
        heard: Callable[[object], None],
        done: Callable[[], None],
    ) -> None:
        rng: Random = self.clock.numbers("client", name)
        tries, is_done = 0, False

        def attempt() -> None:
            nonlocal tries
            tries += 1
            is_answered = False

            def answer(found: object) -> None:
                nonlocal is_answered, is_done
                heard(found)
                if is_answered or is_done:
                    return
                is_answered = True
                if found is not None:
                    is_done = True
                    done()
                    return
                wait_ms = next_try_ms(
                    Failure(FailureKind.NO_ANSWER), repeatable=Repeatable.IDEMPOTENT, tries=tries, random=rng.random()
                )
                if wait_ms is not None:
                    self.clock.after(wait_ms, attempt)

            def arrive() -> None:
                self.plane.arrive(lambda: send(lambda found: self.network.deliver(name, IN, lambda: answer(found))))

            self.network.deliver(name, OUT, arrive)
            self.clock.after(LIMIT_MS, lambda: answer(None))

        attempt()
