"""What jobs may know and nobody else: fetched from the control plane, kept in memory alone, forgotten with them.

Never journalled, never in an assignment, a plan or a command line: what a start hands to the spawner is the only copy
that leaves this process. After a restart of the agent they are fetched again, as long as the attempt is lent here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulayer.errors import GpulayerError, ProtocolError, StaleAttempt
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.worker.masking import Masks
from gpulayer.worker.session import Plane

__all__ = ["Known", "Vault"]


@dataclass(frozen=True, slots=True)
class Known:
    """Of one node. variables: for its program's environment; masks: for all that is told of it."""

    variables: Mapping[str, str] = field(repr=False)
    masks: Masks


class Vault:
    """Of one start of an agent."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._known: dict[NodeKey, Known] = {}
        self._fetching: dict[NodeKey, asyncio.Lock] = {}

    async def of(self, assignment: Assignment) -> Known:
        """Fetched once; an outage is waited out. Raises StaleAttempt, and any other error that is an answer."""
        key = assignment.key
        async with self._fetching.setdefault(key, asyncio.Lock()):
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = await self._fetch(key)
            return known

    def masks(self, key: NodeKey) -> Masks | None:
        """None where nothing is known (yet): then nothing that is told of the node quotes its program."""
        known = self._known.get(key)
        return None if known is None else known.masks

    async def told(self, assignment: Assignment, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Lines that quote what a program made, as they may leave this worker. Raises StaleAttempt."""
        if not lines or not assignment.has_credentials:
            return lines
        try:
            masks = (await self.of(assignment)).masks
        except StaleAttempt:
            raise
        except GpulayerError as error:
            return (f"{len(lines)} more notes are not shown, because secrets in them can't be masked: {error.message}",)
        return tuple(map(masks.mask_text, lines))

    def forget(self, key: NodeKey) -> None:
        """May be repeated, and for what was never known."""
        self._known.pop(key, None)
        self._fetching.pop(key, None)

    async def _fetch(self, key: NodeKey) -> Known:
        async def ask() -> tuple[dict[str, str], str | None, Mapping[str, str]]:
            path = f"{self._plane.worker_path}/attempts/{key.epoch}/credentials"
            reply = await self._plane.call("GET", path)
            try:
                secrets, token = dict(reply["secrets"]), reply["token"]
            except (KeyError, TypeError, ValueError):
                raise ProtocolError("the answer holds no credentials") from None
            return secrets, token, self._plane.reached_by if token is not None else {}

        secrets, token, place = await self._plane.until_answered(ask, what=f"credentials of {key}")
        variables, values = dict(secrets), list(secrets.values())
        if token is not None:
            variables |= {**place, "GPULAYER_TOKEN": token}
            values.append(token)
        return Known(variables, await asyncio.to_thread(Masks, values))
