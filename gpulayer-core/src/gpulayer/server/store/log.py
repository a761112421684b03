"""Queries for whoever is told of everything: the event log from one place on, with what its rows are about.

Functions of a connection, as in ``reads``.
"""

import re
from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, case, func, select

from gpulayer.ids import Digest, WorkerId
from gpulayer.server.store.reads import read_jobs
from gpulayer.server.store.rows import LogPage, LogRow
from gpulayer.server.store.tables import counters, events, facts, idempotency, sink_cursors, workers

__all__ = [
    "has_keys_before",
    "last_seq",
    "named_facts",
    "newest_wall_ms",
    "oldest_until",
    "read_log",
    "read_sink_cursors",
    "read_store_id",
    "unnamed_facts",
]

_DIGEST: Final = re.compile(r'"facts":"([0-9a-f]{64})"')


def read_log(connection: Connection, *, after: int, limit: int, kinds: Collection[str], leaving: str) -> LogPage:
    """At most ``limit`` rows after number ``after``, in order. Bodies are read for ``kinds`` alone, and where one ends
    with ``leaving``: a report's may be large, and there are many."""
    is_told = events.c.kind.in_(list(kinds))
    body = case((is_told, events.c.body), (events.c.body.endswith(leaving, autoescape=True), events.c.body), else_="")
    rows = [
        LogRow(*row)
        for row in connection.execute(
            select(events.c.seq, events.c.wall_ms, events.c.kind, body, events.c.job_id, events.c.worker)
            .where(events.c.seq > after)
            .order_by(events.c.seq)
            .limit(limit)
        )
    ]
    told = [row for row in rows if row.body]
    return LogPage(
        rows,
        read_jobs(connection, {row.job_id for row in told if row.job_id is not None}),
        _worker_names(connection, {row.worker for row in told if row.worker is not None}),
    )


def newest_wall_ms(connection: Connection) -> int | None:
    """When the newest row was written; None where there is none."""
    return connection.execute(select(events.c.wall_ms).order_by(events.c.seq.desc()).limit(1)).scalar()


def oldest_until(connection: Connection, *, before_wall_ms: int, limit: int) -> int:
    """Number of the last of at most ``limit`` rows at the beginning of the log that are all older; 0 for none. Rows are
    in the order in which they were written: one that a clock has put too far ahead keeps those after it until it goes.
    The newest row is never among them: the numbers of those to come go on from it.
    """
    newest = select(func.max(events.c.seq)).scalar_subquery()
    query = select(events.c.seq, events.c.wall_ms).where(events.c.seq < newest).order_by(events.c.seq).limit(limit)
    rows = connection.execute(query)
    found = 0
    for seq, wall_ms in rows:
        if wall_ms >= before_wall_ms:
            break
        found = seq
    return found


def named_facts(connection: Connection, *, after: int, limit: int) -> tuple[dict[Digest, int], int]:
    """Digests of facts that at most ``limit`` rows after number ``after`` name, each with the last of these rows that
    does; and the number of the last row, ``after`` where there is none. A log of a month is read piece by piece."""
    kinds = ("worker_joined", "worker_reported")
    body = case((events.c.kind.in_(kinds), events.c.body), else_="")
    named: dict[Digest, int] = {}
    last = after
    for seq, text in connection.execute(
        select(events.c.seq, body).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
    ):
        named.update((Digest(digest), seq) for digest in _DIGEST.findall(text))
        last = seq
    return named, last


def unnamed_facts(connection: Connection, named: Collection[Digest]) -> list[Digest]:
    """Digests of facts that no worker has and that are not among these."""
    used = {*named, *(Digest(each) for each in connection.execute(select(workers.c.facts_digest)).scalars())}
    return [Digest(each) for each in connection.execute(select(facts.c.digest)).scalars() if each not in used]


def has_keys_before(connection: Connection, *, wall_ms: int) -> bool:
    """Whether any idempotency key is older."""
    return (
        connection.execute(select(idempotency.c.key).where(idempotency.c.wall_ms < wall_ms).limit(1)).first()
        is not None
    )


def last_seq(connection: Connection) -> int:
    """Of the newest row; 0 for an empty log."""
    newest: int | None = connection.execute(select(func.max(events.c.seq))).scalar_one()
    return newest or 0


def read_store_id(connection: Connection) -> str:
    """16 hex characters, of this store and no other (but for copies of its file)."""
    found: str = connection.execute(select(counters.c.store_id)).scalar_one()
    return found


def read_sink_cursors(connection: Connection) -> dict[str, int]:
    """Of all sinks that there ever were."""
    return {row.sink: row.seq for row in connection.execute(select(sink_cursors))}


def _worker_names(connection: Connection, ids: Collection[WorkerId]) -> dict[WorkerId, str]:
    found = connection.execute(select(workers.c.id, workers.c.name).where(workers.c.id.in_(list(ids))))
    return {WorkerId(row.id): row.name for row in found}
