"""What a scorer says of a request and a machine."""

from dataclasses import dataclass
from typing import Final

__all__ = ["NO_OPINION", "Mark", "Opinion", "Refusal"]

NO_OPINION: Final = 0.5  # what silence counts, between the worst mark and the best


@dataclass(frozen=True, slots=True)
class Mark:
    """``value``: from 0 (worst) to 1 (best). Raises ValueError for any other."""

    value: float

    def __post_init__(self) -> None:
        if not 0 <= self.value <= 1:  # NaN is refused too
            raise ValueError(f"a mark is a number from 0 to 1, not {self.value!r}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """``reason``: for people, one line: what speaks against it, with the values."""

    reason: str


Opinion = Mark | Refusal
