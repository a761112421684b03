"""Sizes and durations, read exactly and shown shortly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.errors import UsageError
from gpulayer.spec.units import format_bytes, format_duration, parse_bytes, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1", 1),
        ("24GB", 24 * 10**9),
        ("24GiB", 24 * 2**30),
        ("24g", 24 * 10**9),
        ("24 gib", 24 * 2**30),
        ("1.5k", 1500),
        ("0.5KiB", 512),
        ("512MB", 512 * 10**6),
        ("2TB", 2 * 10**12),
        ("1P", 10**15),
        (" 7 B ", 7),
        ("9007199254740993", 9007199254740993),
        ("1.1GB", 1_100_000_000),
        ("0.1234567891GB", 123_456_789),
    ],
)
def test_sizes_are_read_exactly(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1,5GB", "1e9", "1iB", "24 GB x", "∞", "0x10", "1..5", "9" * 400, "1" + "0" * 19]
)
def test_what_is_no_size_is_a_usage_error_that_says_where(text):
    with pytest.raises(UsageError, match="--memory"):
        parse_bytes(text, what="--memory")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90_000),
        ("90s", 90_000),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("250ms", 250),
        ("1.001", 1001),
        ("0.5h", 1_800_000),
        ("1m30", None),
        ("1H", 3_600_000),
        (" 5m ", 300_000),
        ("1.5.2h", None),
        ("", None),
        ("m", None),
        ("-5s", None),
        ("1h 30m", None),
        ("9" * 400, None),
        ("9" * 400 + "d", None),
        ("inf", None),
    ],
)
def test_durations(text, expected):
    if expected is None:
        with pytest.raises(UsageError, match="--timeout"):
            parse_duration_ms(text, what="--timeout")
    else:
        assert parse_duration_ms(text) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1500, "1.5 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (24 * 10**9, "24 GB"),
        (3 * 2**30, "3.22 GB"),
        (10**18, "1000 PB"),
    ],
)
def test_bytes_have_three_digits(count, expected):
    assert format_bytes(count) == expected


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (2400, "2.4 s"),
        (59_949, "59.9 s"),
        (59_950, "1m 0s"),
        (59_999, "1m 0s"),
        (60_000, "1m 0s"),
        (119_999, "1m 59s"),
        (7_500_000, "2h 5m"),
        (273_600_000, "3d 4h"),
    ],
)
def test_durations_have_two_units(ms, expected):
    assert format_duration(ms) == expected


@given(st.integers(0, 2**63 - 1))
def test_a_plain_number_is_itself(count):
    assert parse_bytes(str(count)) == count


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_a_usage_error(text):
    for parse in (parse_bytes, parse_duration_ms):
        try:
            assert parse(text) >= 0
        except UsageError:
            pass


@given(st.integers(0, 10**15))
def test_formats_are_short(count):
    assert len(format_bytes(count)) <= 8
    assert len(format_duration(min(count, 10**11))) <= 10
