"""Cores of pinned jobs: none twice while there are enough, and never none."""

from gpulayer.spawner.cores import Cores


def test_pinned_jobs_share_no_core_while_there_are_enough():
    cores = Cores()
    assert cores.take("a", 2, usable={4, 5, 6, 7}) == ({4, 5}, "")
    assert cores.take("b", 2, usable={4, 5, 6, 7}) == ({6, 7}, "")
    cores.give_back("a")
    assert cores.take("c", 1, usable={4, 5, 6, 7}) == ({4}, "")


def test_the_least_used_are_shared_and_that_is_told():
    cores = Cores()
    cores.take("a", 1, usable={0, 1})
    assert cores.take("b", 2, usable={0, 1}) == ({0, 1}, "pinned to 2 cores; other pinned jobs have 1 of them too")
    assert cores.take("c", 1, usable={0, 1}) == ({1}, "pinned to 1 core that another pinned job has too")


def test_more_than_there_are_is_all_there_are():
    taken = Cores().take("a", 9, usable={3})
    assert taken == ({3}, "pinned to 1 core, not 9: this worker may use no more")


def test_what_is_given_back_twice_is_free_once():
    cores = Cores()
    cores.take("a", 1, usable={0})
    cores.give_back("a")
    cores.give_back("a")
    assert cores.take("b", 1, usable={0}) == ({0}, "")
