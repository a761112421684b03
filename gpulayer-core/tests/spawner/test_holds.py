"""What a job holds of its host: how often its spawner moves between control groups."""

from contextlib import contextmanager

import pytest

from gpulayer.spawner import messages as m
from gpulayer.spawner.cgroups import Group
from gpulayer.spawner.holds import Holds
from gpulayer.spawner.locks import DeviceLocks

ORDER = m.Spawn(1, "1.0", ("true",), "/", {}, "/log", "/exit")


class Groups:
    """Each start moves."""

    usable_cores = frozenset()

    def __init__(self):
        self.moves = 0
        self.stays = 0

    def take(self, _limits, *, cores):
        return Group({}, None, cores=cores)

    @contextmanager
    def inside(self, _group):
        self.moves += 1
        yield

    def stay(self):
        self.stays += 1

    def settle(self):
        pass


class Reactor:
    """Its time is the test's."""

    def __init__(self):
        self.time = 0.0
        self.due = []

    def now(self):
        return self.time

    def later(self, delay_s, callback):
        self.due.append((self.time + delay_s, callback))

    def pass_time(self, until):
        while self.due and min(self.due, key=lambda one: one[0])[0] <= until:
            one = min(self.due, key=lambda one: one[0])
            self.due.remove(one)
            self.time = one[0]
            one[1]()
        self.time = until


@pytest.fixture
def host():
    groups, reactor = Groups(), Reactor()
    return groups, reactor, Holds(groups, DeviceLocks(()), reactor)


def start(holds):
    with holds.inside(holds.take(ORDER, marker=None)):
        pass


def test_a_move_now_and_then_is_left_alone(host):
    groups, reactor, holds = host
    for second in range(5):
        reactor.pass_time(second)
        start(holds)
    reactor.pass_time(10)
    assert groups.stays == 0
    assert reactor.due == []


def test_frequent_moves_are_kept_cheap_until_they_end(host):
    groups, reactor, holds = host
    for number in range(10):
        reactor.pass_time(number * 0.05)
        start(holds)
    stays = groups.stays
    reactor.pass_time(1)
    rest = groups.stays - stays
    reactor.pass_time(10)
    assert stays >= 30
    assert 5 <= rest <= 20
    assert groups.stays == stays + rest
    assert reactor.due == []
