"""When something is tried again, and how long that waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.retry import Backoff, Failure, FailureKind, Repeatable, backoff_ms, next_try_ms

ANSWERED = FailureKind.ANSWERED


@pytest.mark.parametrize(
    ("failure", "safe", "once"),
    [
        (Failure(FailureKind.NOT_SENT), True, True),
        (Failure(FailureKind.NO_ANSWER), True, False),
        (Failure(ANSWERED, 400), False, False),
        (Failure(ANSWERED, 401), False, False),
        (Failure(ANSWERED, 409), False, False),
        (Failure(ANSWERED, 429), True, True),
        (Failure(ANSWERED, 500), False, False),
        (Failure(ANSWERED, 502), True, False),
        (Failure(ANSWERED, 503), True, True),
        (Failure(ANSWERED, 504), True, False),
        (Failure(ANSWERED, 507), False, False),
    ],
)
def test_what_may_be_repeated_follows_from_the_failure_and_the_request(failure, safe, once):
    for repeatable, expected in [(Repeatable.SAFE, safe), (Repeatable.IDEMPOTENT, safe), (Repeatable.ONCE, once)]:
        wait = next_try_ms(failure, repeatable=repeatable, tries=1, random=0.5)
        assert (wait is not None) is expected


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_the_wait_stays_between_floor_and_cap(tries, random):
    backoff = Backoff()
    assert backoff.floor_ms <= backoff_ms(tries, random=random) <= backoff.cap_ms


def test_the_wait_doubles_until_its_cap():
    waits = [backoff_ms(tries, random=0.999999, backoff=Backoff(100, 1000)) for tries in range(1, 7)]
    assert waits == [99, 199, 399, 799, 999, 999]


def test_retry_after_is_the_least_wait():
    failure = Failure(ANSWERED, 503, retry_after_ms=4000)
    assert next_try_ms(failure, repeatable=Repeatable.ONCE, tries=1, random=0.0) == 4000


def test_those_who_were_told_the_same_time_do_not_come_back_in_step():
    failure = Failure(ANSWERED, 503, retry_after_ms=4000)
    waits = [next_try_ms(failure, repeatable=Repeatable.ONCE, tries=1, random=number / 10) for number in range(10)]
    assert len(set(waits)) == 10
    assert min(waits) == 4000
    assert max(waits) < 6000


def test_no_try_begins_after_the_deadline():
    failure = Failure(ANSWERED, 503, retry_after_ms=4000)
    assert next_try_ms(failure, repeatable=Repeatable.SAFE, tries=1, random=0.0, left_ms=4000) is None
    assert next_try_ms(failure, repeatable=Repeatable.SAFE, tries=1, random=0.0, left_ms=4001) == 4000
