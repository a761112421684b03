"""Fair share: of equal priority, who has least of the fleet goes first."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulayer.engine import shares
from gpulayer.engine.standing import stands_now, would_stand
from gpulayer.ids import JobId
from gpulayer.spec.job import Array
from gpulayer.spec.request import Accelerator, Request

ONE = Request(cpus=1)
GPU = Request(accelerators=(Accelerator.CUDA,), devices=1)


def begun(plane) -> list[str]:
    """The jobs of the live attempts, in the order in which these were lent."""
    return [plane.state.attempts[epoch].job_id for epoch in sorted(plane.state.attempts)]


def end_first(plane, *, after_ms: int = 2_000) -> None:
    """The oldest attempt ends, and what takes its place is lent; too slow by itself for anything to be lent ahead."""
    plane.now_ms += after_ms
    plane.end("w1", min(plane.state.attempts))


def test_who_has_less_goes_first_although_he_came_last(plane):
    plane.join(cpus=2)
    for number in range(4):
        plane.submit(f"a{number}", owner="ann", request=ONE)
    plane.submit("b0", owner="ben", request=ONE)
    assert begun(plane) == ["a0", "a1"]
    end_first(plane)
    assert begun(plane) == ["a1", "b0"]
    end_first(plane)
    assert begun(plane) == ["b0", "a2"]


def test_priority_comes_before_shares_and_age_after_them(plane):
    plane.join(cpus=1)
    plane.submit("first", owner="ann", request=ONE)
    plane.submit("b0", owner="ben", request=ONE)
    plane.submit("c0", owner="cleo", request=ONE)
    plane.submit("urgent", owner="ann", request=ONE, priority=1)
    order = []
    for _ in range(3):
        end_first(plane)
        order += begun(plane)
    assert order == ["urgent", "b0", "c0"]


def test_the_scarcest_of_what_somebody_has_counts(plane):
    plane.join(cpus=16, gpus=2)
    plane.submit("a0", owner="ann", request=GPU)  # half of the devices, few of the cores
    plane.submit("b0", owner="ben", request=Request(cpus=7))  # most of the cores
    half = shares.WHOLE // 2
    assert (shares.of_owner(plane.state, "ann"), shares.of_owner(plane.state, "ben")) == (half, shares.WHOLE * 7 // 16)
    plane.submit("b1", owner="ben", request=GPU)
    plane.submit("a1", owner="ann", request=GPU)
    plane.submit("c1", owner="cleo", request=GPU)
    assert shares.of_owner(plane.state, "ben") == half
    plane.end("w1", plane.epoch("b1"))
    assert begun(plane) == ["a0", "b0", "c1"]


def test_owners_take_turns_while_many_wait(plane):
    plane.join(cpus=4)
    plane.submit("a", owner="ann", request=ONE, shape=Array(40))
    plane.submit("b", owner="ben", request=ONE, shape=Array(40))
    for _ in range(12):
        end_first(plane)
    live = begun(plane)
    assert (live.count("a"), live.count("b")) == (2, 2)


def test_what_is_lent_ahead_counts_as_well(plane):
    """Else all that fits into half a second would be one owner's."""
    plane.join(cpus=1)
    for number in range(40):
        plane.submit(f"a{number:02}", owner="ann", request=ONE)
        plane.submit(f"b{number:02}", owner="ben", request=ONE)
    for _ in range(12):
        end_first(plane, after_ms=5)
    ahead = [plane.state.attempts[epoch].job_id[0] for epochs in plane.state.ahead.values() for epoch in epochs]
    assert len(ahead) > 4
    assert abs(ahead.count("a") - ahead.count("b")) <= 2


def test_a_machine_that_comes_or_goes_changes_everybodys_share(plane):
    plane.join(cpus=2)
    plane.submit("a0", owner="ann", request=ONE)
    assert shares.of_owner(plane.state, "ann") == shares.WHOLE // 2
    plane.join("w2", cpus=6)
    assert shares.of_owner(plane.state, "ann") == shares.WHOLE // 8
    assert shares.of_owner(plane.state, "nobody") == 0


def test_a_restart_finds_the_same_shares_and_order(plane):
    plane.join(cpus=2)
    for number in range(3):
        plane.submit(f"a{number}", owner="ann", request=ONE)
    plane.submit("b0", owner="ben", request=ONE)
    again = plane.rebuilt()
    assert again.used == plane.state.used
    assert stands_now(again, again.jobs[JobId("a2")]) == stands_now(plane.state, plane.state.jobs[JobId("a2")])


def test_the_place_in_the_queue_says_whose_turn_it_is_and_why(plane):
    plane.join(cpus=4)
    plane.submit("a0", owner="ann", request=Request(cpus=3))
    plane.submit("a1", owner="ann", request=Request(cpus=2))
    plane.submit("b0", owner="ben", request=Request(cpus=2))
    place = stands_now(plane.state, plane.state.jobs[JobId("a1")])
    assert (place.ahead, place.first, place.first_owner, place.is_by_share) == (1, "b0", "ben", True)
    assert (place.share, place.first_share) == (0.75, 0.0)
    assert stands_now(plane.state, plane.state.jobs[JobId("b0")]).ahead == 0
    assert would_stand(plane.state, owner="ann", priority=0).ahead == 2
    assert would_stand(plane.state, owner="cleo", priority=0).ahead == 1
    assert would_stand(plane.state, owner="ann", priority=1).ahead == 0


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_next_to_begin_is_who_stands_first_by_hand(plane, data):
    """The order by the formula, over all that waits, beside what the engine does when a core gets free."""
    plane = type(plane)()
    plane.join(cpus=data.draw(st.integers(1, 4)), gpus=0)
    for number in range(data.draw(st.integers(1, 12))):
        owner, priority = data.draw(st.sampled_from("abc")), data.draw(st.sampled_from([0, 0, 1]))
        retries = data.draw(st.sampled_from([0, 2]))  # not lent ahead without
        plane.submit(f"{number:02}", owner=owner, request=ONE, priority=priority, retries=retries)
    for _ in range(data.draw(st.integers(1, 12))):
        if not plane.state.attempts:
            break
        taken = {}
        ending = data.draw(st.sampled_from(sorted(plane.state.attempts)))
        for epoch, attempt in plane.state.attempts.items():
            if epoch != ending:
                owner = plane.state.jobs[attempt.job_id].entry.owner
                taken[owner] = taken.get(owner, 0) + 1
        waiting = [job for job in plane.state.jobs.values() if job.tasks[0].epoch is None]
        expected = min(
            waiting, key=lambda job: (-job.entry.priority, taken.get(job.entry.owner, 0), job.seq), default=None
        )
        before = set(plane.state.attempts)
        plane.now_ms += 2_000  # too slow for anything to be lent ahead
        plane.end("w1", ending)
        new = [plane.state.attempts[epoch].job_id for epoch in plane.state.attempts.keys() - before]
        assert new == ([] if expected is None else [expected.entry.id])
