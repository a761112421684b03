"""Ids and clocks."""

import pytest

from gpulayer.clock import ManualClock, SystemClock, iso_utc
from gpulayer.ids import is_digest, new_id, new_job_id


def test_ids_are_hex_of_their_length_and_do_not_repeat():
    made = {new_job_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in made)


def test_randomness_is_a_parameter():
    assert new_id(lambda count: bytes(range(count)), 6) == "000102"
    assert len(new_id(length=5)) == 5


@pytest.mark.parametrize(
    ("text", "is_one"), [("a" * 64, True), ("A" * 64, False), ("a" * 63, False), ("g" * 64, False)]
)
def test_a_digest_has_one_form(text, is_one):
    assert is_digest(text) is is_one


def test_the_system_clock_does_not_go_back():
    clock = SystemClock()
    moments = [clock.monotonic_ms() for _ in range(100)]
    assert moments == sorted(moments)
    assert clock.wall_ms() > 1_700_000_000_000


def test_a_manual_clock_moves_when_told_and_only_forward():
    clock = ManualClock()
    clock.advance(5)
    assert (clock.monotonic_ms(), clock.wall_ms()) == (5, 1_700_000_000_005)
    with pytest.raises(ValueError, match="can't go back"):
        clock.advance(-1)


def test_times_are_iso_8601_utc_with_milliseconds():
    assert iso_utc(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert iso_utc(None) is None
