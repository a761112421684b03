"""What is said while nothing answers: once an outage, and what is true."""

from gpulayer.cli.losses import LossTeller
from gpulayer.errors import Unreachable


def test_an_outage_is_told_once_and_the_next_one_again(capsys):
    teller = LossTeller("7f3a", lambda: False)
    teller.lost("reset")
    teller.waiting(Unreachable("refused"))
    teller.found()
    teller.waiting(Unreachable("refused"))
    assert capsys.readouterr().err.splitlines() == [
        "connection lost (reset); trying again, job 7f3a goes on",
        "connection lost (refused); trying again, job 7f3a goes on",
    ]


def test_an_end_in_order_is_told_as_that_once_also_after_the_connection_was_lost(capsys):
    has_ended = [False]
    teller = LossTeller("7f3a", lambda: has_ended[0])
    teller.lost("reset")
    has_ended[0] = True
    teller.waiting(Unreachable("refused"))
    teller.waiting(Unreachable("refused"))
    assert capsys.readouterr().err.splitlines() == [
        "connection lost (reset); trying again, job 7f3a goes on",
        "the control plane has ended; job 7f3a is not lost; waiting a moment for another to take over",
    ]
