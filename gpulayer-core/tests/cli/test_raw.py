"""Bytes and interrupts on this program's own streams."""

import signal
import sys

import pytest

from gpulayer.cli.raw import RawOutput
from gpulayer.client.following import LogCursor


@pytest.mark.timeout(method="thread")  # the other method takes the alarm for itself
def test_no_wait_is_so_long_that_an_interrupt_just_before_it_goes_unnoticed():
    output = RawOutput(sys.stdout, LogCursor())
    with output.interrupts():
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[1] <= 1
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
