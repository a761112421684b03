"""What an hour of a machine costs: prices, and the tariff of the day. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpulayer.plugins import WorkerFacts

__all__ = ["PRICE_LABEL", "Tariff", "parse_most", "parse_prices", "parse_tariff", "usd_an_hour"]

PRICE_LABEL: Final = "usd-per-hour"

_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Tariff:
    """``factors``: one an hour of the day, from midnight UTC."""

    factors: tuple[float, ...] = (1.0,) * 24

    def factor(self, wall_ms: int) -> float:
        """At that Unix time."""
        return self.factors[wall_ms // _HOUR_MS % 24]


def usd_an_hour(machine: WorkerFacts, prices: Mapping[str, float]) -> float | None:
    """Before the tariff; None where nobody knows."""
    label = dict(machine.labels).get(PRICE_LABEL)
    if label is not None:
        return _number(label)
    each = [_price_of(device.model, prices) for device in machine.devices]
    known = [price for price in each if price is not None]
    return sum(known) if each and len(known) == len(each) else None


def parse_prices(text: str) -> dict[str, float]:
    """``H100=3.20, L4=0.70``. Raises ValueError."""
    return {word: _amount(price, f"prices: {word}") for word, price in _pairs(text, "prices")}


def parse_tariff(text: str) -> Tariff:
    """``22-6=0.5, 17-20=1.5``: from the first hour to before the second, over midnight where that is the smaller one;
    ``0-24`` is the whole day. Later spans win. Raises ValueError, also for spans without hours, like ``8-8``."""
    factors = [1.0] * 24
    for span, factor in _pairs(text, "tariff"):
        begin, _, end = span.partition("-")
        if not (begin.isdecimal() and end.isdecimal() and int(begin) < 24 and int(end) <= 24):
            raise ValueError(f"tariff: {span!r} is no span of hours, like 22-6")
        first, after = int(begin), int(end)
        if first == after:
            raise ValueError(f"tariff: {span!r} has no hours; the whole day is 0-24")
        amount = _amount(factor, f"tariff: {span}")
        for hour in range(first, after if first < after else after + 24):
            factors[hour % 24] = amount
    return Tariff(tuple(factors))


def parse_most(text: str) -> float | None:
    """``8``; empty: no limit. Raises ValueError."""
    return _amount(text, "most") if text.strip() else None


def _price_of(model: str, prices: Mapping[str, float]) -> float | None:
    return next((price for word, price in prices.items() if word.lower() in model.lower()), None)


def _pairs(text: str, option: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, map(str.strip, text.split(","))):
        name, is_pair, value = part.partition("=")
        if not is_pair or not name.strip():
            raise ValueError(f"{option}: {part!r} is not NAME=NUMBER")
        yield name.strip(), value.strip()


def _amount(text: str, what: str) -> float:
    number = _number(text)
    if number is None:
        raise ValueError(f"{what}: {text!r} is no number of 0 or more")
    return number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
