"""Silence counts only while somebody listens."""

from gpulayer.engine import Attention, due, hear_anew
from gpulayer.engine.events import WorkerWentSilent


def test_who_looks_every_few_seconds_was_there_and_who_has_not_for_long_was_away():
    attention = Attention()
    looks = [0, 5_000, 14_000, 24_000, 34_001, 34_002]
    assert [attention.was_away(ms) for ms in looks] == [False, False, False, False, True, False]


def test_the_first_look_of_all_is_never_one_after_an_absence():
    assert not Attention().was_away(10**9)


def test_when_somebody_listens_again_everyone_has_the_whole_time_from_then_on(plane):
    plane.join("w1")
    plane.submit()
    plane.run("w1", "j1")
    plane.now_ms += 3_600_000
    hear_anew(plane.state, plane.now_ms)
    assert due(plane.state, plane.at) == ()
    assert plane.pass_time(32_999) == []
    assert [type(event) for event in plane.pass_time(1)][:1] == [WorkerWentSilent]
