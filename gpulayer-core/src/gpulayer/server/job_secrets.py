"""The secrets of jobs in the control plane: out of what was submitted, into sealed rows, and from there to a worker.

A value is in plain memory from the parsing of a body to its sealing, and from its opening to the answer to the one
worker that holds the job; it is in no row, event, record, digest or log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulayer.errors import BadRequest, Conflict
from gpulayer.ids import JobId
from gpulayer.server.sealing import open_sealer
from gpulayer.server.store import SecretRow, reads
from gpulayer.wire.jobs import JobSubmission

if TYPE_CHECKING:
    from gpulayer.server.plane import Plane

__all__ = ["Withheld", "open_secrets", "seal_all", "withhold"]


@dataclass(frozen=True, slots=True)
class Withheld:
    """Submissions as they may be kept, and what was taken out of them: by place in the list, values by name."""

    submissions: Sequence[JobSubmission]
    taken: Mapping[int, Mapping[str, str]]

    def __repr__(self) -> str:
        return f"Withheld({len(self.submissions)} submissions)"


def withhold(submissions: Sequence[JobSubmission]) -> Withheld:
    """Pure. The very list that was given where none of them brings a secret. Raises BadRequest for what only the
    control plane may say."""
    bringing = [place for place, one in enumerate(submissions) if "secrets" in one or "secret_names" in one]
    if not bringing:
        return Withheld(submissions, {})
    if any("secret_names" in submissions[place] for place in bringing):
        raise BadRequest(
            "secret_names: this is what is kept of a job's secrets; it can't be sent",
            hint="send secrets: values by name of variable",
        )
    taken = {place: submissions[place]["secrets"] for place in bringing}
    kept = list(submissions)
    for place, secrets in taken.items():
        kept[place] = _without_values(submissions[place], secrets)
    return Withheld(kept, {place: secrets for place, secrets in taken.items() if secrets})


async def seal_all(plane: "Plane", secrets: Mapping[JobId, Mapping[str, str]]) -> tuple[SecretRow, ...]:
    """Rows to be committed with their jobs. Raises Conflict for a damaged key, StorageUnavailable."""
    return await plane.in_thread(_seal_all, plane, secrets)


async def open_secrets(plane: "Plane", job_id: JobId, names: Sequence[str]) -> dict[str, str]:
    """The values of these secrets of a job. Raises Conflict where one is not there any more or can't be opened."""
    if not names:
        return {}
    sealed = await plane.query(reads.read_secrets, job_id)
    lacking = [name for name in names if name not in sealed]
    if lacking:
        raise Conflict(
            f"secret {lacking[0]} of job {job_id} is not kept any more", hint="submit the job again, with its secrets"
        )
    return await plane.in_thread(_open_all, plane, job_id, {name: sealed[name] for name in names})


def _seal_all(plane: "Plane", secrets: Mapping[JobId, Mapping[str, str]]) -> tuple[SecretRow, ...]:
    sealer = open_sealer(
        plane.settings.layout.secrets_key, may_make=True, random_bytes=plane.random_bytes, syncs=plane.syncs
    )
    return tuple(
        SecretRow(job_id, name, sealer.seal(job_id, name, value))
        for job_id, values in secrets.items()
        for name, value in values.items()
    )


def _open_all(plane: "Plane", job_id: JobId, sealed: Mapping[str, bytes]) -> dict[str, str]:
    sealer = open_sealer(plane.settings.layout.secrets_key, may_make=False)
    return {name: sealer.open(job_id, name, text) for name, text in sealed.items()}


def _without_values(submission: JobSubmission, secrets: Mapping[str, str]) -> JobSubmission:
    kept: JobSubmission = {**submission}
    del kept["secrets"]
    if secrets:
        kept["secret_names"] = sorted(secrets)
    return kept
