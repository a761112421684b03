"""A job by its id, the beginning of one, or a name; where several have that name, which they are."""

from datetime import UTC, datetime
from typing import Final

from gpulayer.cli.console import columns
from gpulayer.cli.records import age
from gpulayer.errors import Conflict, NotFound
from gpulayer.sdk.client import Client
from gpulayer.sdk.job import Job

__all__ = ["find_job"]

_SHOWN: Final = 5


def find_job(client: Client, ref: str) -> Job:
    """Raises NotFound, or Conflict with the newest of several jobs of that name under ``candidates``."""
    try:
        return client.job(ref)
    except NotFound:
        named = client.jobs(name=ref, limit=_SHOWN + 1) if ref else []
        if len(named) < 2:
            raise
    now = datetime.now(UTC)
    rows = [[job["id"], job["state"], f"submitted {age(job['submitted_at'], now)}"] for job in named[:_SHOWN]]
    more = ["and older ones: gpulayer job list --name " + ref] if len(named) > _SHOWN else []
    raise Conflict(
        f"several jobs have the name {ref!r}", hint="say which by its id", details={"candidates": columns(rows) + more}
    )
