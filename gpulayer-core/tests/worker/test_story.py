"""What a worker says of its connection: once for each kind of trouble, and what to do where that is known."""

import logging

from gpulayer.errors import Unreachable, UntrustedServer
from gpulayer.worker.story import Story

MINUTE = 60_000


def test_each_kind_of_trouble_is_told_once_and_again_after_ten_minutes(caplog):
    caplog.set_level(logging.INFO, "gpulayer")
    story, away = Story(), Unreachable("nobody there")
    other = UntrustedServer("not the pinned one", hint="take the new fingerprint")
    for minute in range(9):
        story.lost(away, jobs=1, now_ms=minute * MINUTE)
        story.lost(other, jobs=1, now_ms=minute * MINUTE)
    assert caplog.messages == [
        "connection lost: nobody there; 1 job goes on; trying again",
        "connection lost: not the pinned one; 1 job goes on; trying again",
        "take the new fingerprint",
    ]
    story.lost(away, jobs=0, now_ms=11 * MINUTE)
    assert caplog.messages[3:] == ["connection lost: nobody there; trying again"]
    story.back()
    story.back()
    assert caplog.messages[4:] == ["the connection is back"]
