"""The worker: IO around ``protocol.agent``. ``run(WorkerSettings)`` is its whole life, from start to leaving.

It never imports the server or anything heavy (no pydantic, no HTTP library): a worker is on every machine, idle most
of the time. No job is ever its child; the spawner's are, so that it may die and come back.
"""

from gpulayer.worker.settings import WorkerSettings

__all__ = ["WorkerSettings", "introduce", "run"]


def run(settings: WorkerSettings) -> int:
    """Work until told to stop by SIGTERM or SIGINT (then 0: jobs ended, the control plane told, the spawner gone).

    Blocks; call it from a main thread. Raises Conflict where another agent runs in ``work_dir``, Unauthenticated
    where neither its identity nor its token is accepted (it was removed: its jobs have ended), Forbidden where another
    agent runs with its identity, in a copy of ``work_dir`` (its jobs have ended, too), and any other
    GpulayerError that makes it unable to go on; its jobs then go on, and the next ``run`` in the same folder finds
    them. What it does is told at INFO to the logger ``gpulayer``, a line each.
    """
    from gpulayer.worker.life import live  # noqa: PLC0415 - whoever only wants the settings needs no event loop

    return live(settings)


def introduce(settings: WorkerSettings) -> str:
    """Join, or make sure of having joined, and return the worker's name: what ``run`` begins with, tried once.

    Blocks. Raises Unreachable where no control plane answers, Unauthenticated for a token that is not good (and
    UsageError where one is needed and none was given), Conflict for a name that another worker holds, or where a
    worker runs in ``work_dir``. A token is used up by it.
    """
    from gpulayer.worker.life import introduce  # noqa: PLC0415 - as above

    return introduce(settings)
