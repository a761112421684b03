"""The engine with scorers, whose opinions a test gives."""

from types import SimpleNamespace

from gpulayer.engine import Policy, rebuild
from gpulayer.engine.effects import AskScorer, Assign
from gpulayer.engine.events import (
    OpinionsGiven,
)
from gpulayer.engine.turn import job_image, worker_image
from gpulayer.errors import Blame
from gpulayer.ids import WorkerId
from gpulayer.spec.opinion import Refusal
from gpulayer.spec.outcome import EndedBy, Outcome
from gpulayer.spec.request import Request

__all__ = ["DEAR", "DONE", "PLAIN", "WAIT_MS", "answer", "asked", "assigned", "digest", "restarted", "with_scorers"]

WAIT_MS = 2_500
PLAIN = Request()
DEAR = Refusal("too dear until 22:00")
DONE = Outcome(EndedBy.PROGRAM, exit_code=0, blame=Blame.USER)


def with_scorers(plane, *names, lease_ttl_ms=30_000):
    """What is due at once after a submission is stepped with it, as the driver does."""
    plane.state.policy = Policy(lease_ttl_ms=lease_ttl_ms, scorers=names)
    submit = plane.submit

    def submit_and_ask(*args, **options):
        job_id = submit(*args, **options)
        plane.pass_time(0)
        return job_id

    plane.submit = submit_and_ask
    return plane


def digest(plane, worker):
    return plane.state.workers[WorkerId(worker)].facts_digest


def answer(plane, *, scorer="night", request=PLAIN, lifetime_ms=60_000, **said):
    """``w1=Mark(0.3)``: what it thinks of that worker's facts."""
    pairs = tuple((digest(plane, worker), opinion) for worker, opinion in said.items())
    return plane.step(OpinionsGiven(plane.at, scorer, request, lifetime_ms, pairs))


def asked(made):
    return [(one.scorer, one.request, one.digests) for one in made.effects if isinstance(one, AskScorer)]


def assigned(made):
    return [(effect.worker, effect.job_id) for effect in made.effects if isinstance(effect, Assign)]


def restarted(plane, **policy):
    """Another process, a long time later."""
    state = rebuild(
        Policy(**policy),
        None,
        jobs=[(job.entry, job_image(job)) for job in plane.state.jobs.values()],
        workers=[worker_image(worker) for worker in plane.state.workers.values()],
        facts=[SimpleNamespace(digest=digest, facts=facts) for digest, facts in plane.state.facts.items()],
    )
    state.next_epoch, state.next_seq = plane.state.next_epoch, plane.state.next_seq
    plane.state, plane.now_ms = state, plane.now_ms + 1_000_000
    state.now_ms = plane.now_ms
    for worker in state.workers.values():
        worker.heard_ms = plane.now_ms
    return plane
