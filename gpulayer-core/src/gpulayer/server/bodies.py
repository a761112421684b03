"""Bodies of submissions: from bytes to checked forms, without holding the loop for long."""

import asyncio
from typing import Final

from gpulayer.errors import BadRequest
from gpulayer.server.web import check_slice
from gpulayer.wire import SCHEMA_VERSION
from gpulayer.wire.convert import check_schema
from gpulayer.wire.jobs import MAX_BATCH, BatchSubmission, JobSubmission

__all__ = ["parse_submissions"]

_SLICE: Final = 200
_PARSE_IN_THREAD: Final = 256 * 1024


async def parse_submissions(raw: bytes, *, in_list: bool) -> list[JobSubmission]:
    """The submissions of a body. A large one is parsed in one go but checked in slices: a check of 10,000 jobs
    would hold the loop, or the interpreter's lock, for a quarter of a second."""
    from pydantic_core import from_json  # noqa: PLC0415 - start-up time

    try:
        if len(raw) > _PARSE_IN_THREAD:
            document = await asyncio.to_thread(from_json, raw, allow_inf_nan=False)
        else:
            document = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    if not in_list:
        _check_version(document, "job")
        checked: list[JobSubmission] = check_slice(JobSubmission, [document], None)
        return checked
    _check_version(document, "batch")
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_BATCH:
        raise BadRequest(f"jobs: must be a list of 1 to {MAX_BATCH:,} jobs")
    unknown = sorted(set(document) - set(BatchSubmission.__annotations__))
    if unknown:
        raise BadRequest(f"{unknown[0]}: Extra inputs are not permitted")
    submissions: list[JobSubmission] = []
    for start in range(0, len(jobs), _SLICE):
        submissions.extend(check_slice(JobSubmission, jobs[start : start + _SLICE], start))
        if start + _SLICE < len(jobs):
            await asyncio.sleep(0)
    return submissions


def _check_version(document: dict[str, object], what: str) -> None:
    """Before anything else: the fields of another version need not be known here."""
    if "schema" not in document:
        raise BadRequest(
            f"{what}: schema is missing", hint=f'say in which form it is written: "schema": {SCHEMA_VERSION}'
        )
    schema = document["schema"]
    if type(schema) is int:
        check_schema(schema, what)
