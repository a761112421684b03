"""Which of a control plane's addresses is used, and what a failed try means for the next one. Shared by both shells.

A control plane may have several addresses: they are tried in turn, and the one that answered is kept. A ``Way`` is
taken as one value, so that no token goes to an address that another location named. Does no IO.
"""

import threading
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, assert_never

from gpulayer.client.answers import BACKOFF, Failed
from gpulayer.client.location import Location
from gpulayer.errors import GpulayerError, Overloaded
from gpulayer.net import Address, Pin
from gpulayer.protocol.retry import FailureKind, Repeatable, next_try_ms

__all__ = ["Awaited", "Reach", "Route", "Then", "Tries", "Way"]

_CONNECT_S: Final = 10.0
_STARTS_S: Final = 600.0  # of a control plane that says that it is only just starting
_NEXT_S: Final = 60.0  # of the one after it, which is about to start
_BUSY_S: Final = 120.0  # of one that says that it has too much to do just now
_HELD_S: Final = 1.0  # what is closed sooner has had nobody who was at work on it
_LEAST_S: Final = 0.1  # of a try: what answers at once still does
_CONNECT_OF_SEVERAL_S: Final = 4.0  # the next address may be the one that answers
_TURNS: Final = frozenset({502, 503, 504})  # of a standby, or of a proxy before one that is down
_BAD_GATEWAY: Final = 502
_UNAUTHENTICATED: Final = 401


@dataclass(frozen=True, slots=True)
class Route:
    """One address, and what a connection to it must hold; connections of equal routes may be taken for each other.

    proxy: None for plain http, which never leaves this machine.
    """

    address: Address
    pins: tuple[Pin, ...] = ()
    proxy: Address | None = None

    @classmethod
    def of(cls, location: Location, address: Address) -> "Route":
        """To one of its addresses."""
        return cls(address, location.pins, location.proxy if address.is_secure else None)


@dataclass(frozen=True, slots=True)
class Way:
    """What one try uses. connect_s: how long the connection may take, its TLS included. within_s: how long the whole
    try may, where the call is limited."""

    route: Route
    token: str = field(repr=False)
    connect_s: float = _CONNECT_S
    within_s: float | None = None

    def left_s(self, spent_s: float) -> float | None:
        """For the rest of the try."""
        return None if self.within_s is None else max(_LEAST_S, self.within_s - spent_s)


class Awaited(Enum):
    """Stands for a location that there will be: the control plane has ended, and the next one starts in its place."""

    STARTS = "starts"


class Reach:
    """The way that is used now. Safe to use from several threads."""

    def __init__(self, location: Location) -> None:
        self._lock = threading.Lock()
        self._location = location
        self._index = 0

    @property
    def way(self) -> Way:
        with self._lock:
            location, index = self._location, self._index
        route = Route.of(location, location.addresses[index])
        return Way(route, location.token, _CONNECT_S if len(location.addresses) == 1 else _CONNECT_OF_SEVERAL_S)

    @property
    def url(self) -> str:
        return str(self.way.route.address)

    @property
    def count(self) -> int:
        """How many addresses there are."""
        return len(self._location.addresses)

    def turn(self, failed: Way) -> None:
        """That way led nowhere: the next address is used, unless another thread has turned already."""
        with self._lock:
            addresses = self._location.addresses
            if addresses[self._index] == failed.route.address:
                self._index = (self._index + 1) % len(addresses)

    def move(self, location: Location) -> bool:
        """What somebody who looked it up found. Returns whether that is news."""
        with self._lock:
            if location == self._location:
                return False
            before = self._location.addresses[self._index]
            self._location = location
            self._index = location.addresses.index(before) if before in location.addresses else 0
            return True


@dataclass(frozen=True, slots=True)
class Then:
    """What follows a failed try: wait, then try again. is_lost: first, ask where the control plane is now.

    refused: raised unless that gives something new.
    """

    wait_s: float
    is_lost: bool
    refused: GpulayerError | None = None


class Tries:
    """The tries of one call. Pure but for turning ``reach``; times are seconds of the caller's monotonic clock.

    Patience is counted while nobody is there. How long a request was held, or its body sent, before its connection was
    lost does not count. within_s: of all tries together; nothing that is said or found makes that longer.
    """

    def __init__(
        self, reach: Reach, manner: Repeatable, *, started: float, retry_for_s: float, within_s: float | None = None
    ) -> None:
        self._reach = reach
        self._manner = manner
        self._started = started
        self._until = None if within_s is None else started + within_s
        self._held_s = 0.0  # of the tries that were lost after somebody had them
        self._ends = started + retry_for_s
        self._retry_for_s = retry_for_s
        self._starts_until = started + _STARTS_S
        self._next_until = started + (_NEXT_S if retry_for_s else 0.0)
        self._busy_until = started + (_BUSY_S if retry_for_s else 0.0)
        self._round = 1
        self._left = reach.count  # addresses that this round has not tried
        self._has_asked = False
        self._is_awaited = False  # by whoever looked last

    def lost_s(self, *, now: float) -> float:
        """For how long the call has been without anybody who may answer it."""
        return now - self._held_s - self._started

    def way(self, *, now: float) -> Way:
        """What the next try uses, which begins now."""
        way = self._reach.way
        if self._until is None:
            return way
        within_s = max(_LEAST_S, self._until - now)
        return replace(way, connect_s=min(way.connect_s, within_s), within_s=within_s)

    def after(self, failed: Failed, way: Way, *, began: float, now: float, random01: float) -> Then:
        """Raises the try's error where none may follow. began: that try."""
        failure = failed.failure
        if _was_lost(failed) and now - began >= _HELD_S:
            self._held_s += now - began
        until_ms = None if self._until is None else int((self._until - now) * 1000)
        now -= self._held_s
        if failed.error.details.get("starting") is True and now < self._starts_until:
            self._ends = max(self._ends, now + self._retry_for_s)  # it says itself that it will be there
        if isinstance(failed.error, Overloaded):
            self._ends = max(self._ends, self._busy_until)  # it is there, and says when to come again
        if failure.status == _UNAUTHENTICATED and not self._has_asked and (until_ms is None or until_ms > 0):
            self._has_asked = True  # the token may have been replaced where it came from
            return Then(0.0, is_lost=True, refused=failed.error)
        is_turned = failure.kind is not FailureKind.ANSWERED or failure.status in _TURNS
        is_first = (
            is_turned and self._round == 1 and self._left > 1
        )  # each address has its chance, however long the others took
        # The waits are drawn by lot: a long one must not end it before somebody has looked again.
        is_awaited = is_turned and self._is_awaited and now < self._next_until
        delay_ms = next_try_ms(
            failure,
            repeatable=self._manner,
            tries=self._round,
            random=random01,
            left_ms=None if is_first or is_awaited else max(0, int((self._ends - now) * 1000)),
            backoff=BACKOFF,
        )
        if delay_ms is None or (until_ms is not None and delay_ms >= until_ms):
            raise failed.error from None
        if not is_turned:
            self._round += 1
            return Then(delay_ms / 1000, is_lost=False)
        self._reach.turn(way)
        self._left -= 1
        if self._left > 0:
            return Then(0.0, is_lost=False)
        self._round, self._left = self._round + 1, self._reach.count
        return Then(delay_ms / 1000, is_lost=failure.kind is not FailureKind.ANSWERED)

    def looked_up(self, then: Then, found: Location | Awaited | None, *, now: float) -> None:
        """Somebody has looked where the control plane is now. Raises what it refused with where that is no news."""
        now -= self._held_s
        self._is_awaited = isinstance(found, Awaited)
        if self._is_awaited:
            if now < self._next_until:
                self._ends = max(self._ends, now + self._retry_for_s)
        elif isinstance(found, Location) and self._reach.move(found):
            self._left = self._reach.count
            return
        if then.refused is not None:
            raise then.refused


def _was_lost(failed: Failed) -> bool:
    """Whether somebody had the request until now: the connection ended, or a proxy says that the one behind it did."""
    match failed.failure.kind:
        case FailureKind.NO_ANSWER:
            return not failed.is_late
        case FailureKind.ANSWERED:
            return failed.failure.status == _BAD_GATEWAY
        case FailureKind.NOT_SENT:
            return False
        case never:
            assert_never(never)
