"""A clock that is wrong for a while deletes nothing for good; one that has been right all the time decides."""

import pytest

from gpulayer.clock import ManualClock
from gpulayer.server.kept_time import BELIEVED_AFTER_MS, JUMP_MS, KeptTime
from gpulayer.server.retention import sweep_events, sweep_tokens
from gpulayer.server.store import log
from gpulayer.server.tokens import TokenKind

DAY_MS = 86_400_000
NOW_MS = 1_795_000_000_000


def _at(wall_ms: int) -> ManualClock:
    return ManualClock(wall_offset_ms=wall_ms)


def _life(path, wall_ms: int, *, newest_ms: int | None = NOW_MS, lasts_ms: int = 0) -> tuple[int, int]:
    """A control plane that runs for so long; what it believed at its start and at its end."""
    clock = _at(wall_ms)
    kept = KeptTime(path, clock=clock, newest_ms=newest_ms)
    first = kept.now_ms()
    clock.advance(lasts_ms)
    last = kept.now_ms()
    kept.save()
    return first, last


def test_a_clock_that_goes_on_is_believed_and_so_is_one_without_anything_known(tmp_path) -> None:
    assert _life(tmp_path / "a", NOW_MS + DAY_MS, lasts_ms=100 * DAY_MS) == (NOW_MS + DAY_MS, NOW_MS + 101 * DAY_MS)
    assert _life(tmp_path / "b", NOW_MS, newest_ms=None) == (NOW_MS, NOW_MS)
    assert _life(tmp_path / "c", NOW_MS - DAY_MS) == (NOW_MS - DAY_MS, NOW_MS - DAY_MS)


@pytest.mark.parametrize("starts", [1, 5])
def test_a_clock_that_is_years_ahead_at_some_starts_is_never_believed(tmp_path, starts, caplog) -> None:
    path, years_ahead = tmp_path / "wall-clock", NOW_MS + 3650 * DAY_MS
    for start in range(starts):
        # Its own events are as far ahead, and tell the next start nothing.
        newest_ms = NOW_MS if start == 0 else years_ahead
        assert _life(path, years_ahead, newest_ms=newest_ms, lasts_ms=3_600_000)[1] <= NOW_MS + 6 * 3_600_000
    assert "the clock is" in caplog.text
    right = NOW_MS + DAY_MS
    assert _life(path, right, newest_ms=years_ahead) == (right, right)
    # The battery is still empty, a month later, and the time before counts for nothing.
    assert _life(path, years_ahead + 2 * DAY_MS, newest_ms=right)[0] < right + DAY_MS


@pytest.mark.parametrize("lives", [1, 4])
def test_a_plane_that_had_not_run_for_long_believes_its_clock_after_a_day(tmp_path, lives) -> None:
    path, month_later = tmp_path / "wall-clock", NOW_MS + 30 * DAY_MS
    last = 0
    for life in range(lives):
        _, last = _life(path, month_later + life * DAY_MS // 3, lasts_ms=BELIEVED_AFTER_MS // lives)
    assert last >= month_later + DAY_MS


def test_a_jump_while_it_runs_is_held_and_a_small_one_is_not(tmp_path) -> None:
    clock = _at(NOW_MS)
    kept = KeptTime(tmp_path / "wall-clock", clock=clock, newest_ms=NOW_MS)
    clock.wall_offset_ms += JUMP_MS
    assert kept.now_ms() == NOW_MS + JUMP_MS
    clock.wall_offset_ms += JUMP_MS + 1
    assert kept.now_ms() == NOW_MS + JUMP_MS
    clock.wall_offset_ms = NOW_MS
    assert kept.now_ms() == NOW_MS


@pytest.mark.parametrize("content", [b"", b"x", b"-5", b"1 2 3", b"9" * 30, b"\xff"])
def test_a_file_that_says_nothing_sensible_is_none(tmp_path, content) -> None:
    (tmp_path / "wall-clock").write_bytes(content)
    assert _life(tmp_path / "wall-clock", NOW_MS + 3650 * DAY_MS)[0] == NOW_MS


def test_one_start_ten_years_ahead_leaves_tokens_logs_and_events_as_they_are(make_plane) -> None:
    clock = _at(NOW_MS)
    plane = make_plane(clock=clock).start()
    token = plane.new_token(TokenKind.CLIENT, life_s=86_400 * 30)
    plane.submit()
    before = plane.call(lambda: plane.plane.query(log.oldest_until, before_wall_ms=2**50, limit=100))
    clock.wall_offset_ms += 3650 * DAY_MS
    plane.stop()
    plane.start()
    assert plane.call(lambda: sweep_tokens(plane.plane)) == 0
    assert plane.call(lambda: sweep_events(plane.plane)) == 0
    clock.wall_offset_ms = NOW_MS
    plane.http.headers["Authorization"] = f"Bearer {token}"
    assert plane.http.get("/v1/jobs").status_code == 200
    assert plane.call(lambda: plane.plane.query(log.oldest_until, before_wall_ms=2**50, limit=100)) >= before
