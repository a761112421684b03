"""The logs of a worker's nodes on their way home: which are followed, which are being sent, and what ends that.

Each is sent from its first byte on: one that never has any costs no task, and no request.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.worker.giving_up import LOG_PATIENCE_MS, GivingUp
from gpulayer.worker.logs import AttemptLogs
from gpulayer.worker.node_work import NodeWork
from gpulayer.worker.session import Plane

__all__ = ["NodeLogs"]


class NodeLogs:
    """Of one start of an agent."""

    def __init__(
        self,
        plane: Plane,
        work: NodeWork,
        *,
        giving_up: Callable[[NodeKey, int], GivingUp],
        start_for: Callable[[NodeKey, Coroutine[Any, Any, None]], object],
    ) -> None:
        """giving_up: for a node, after so many milliseconds. start_for: begins work that forgetting the node ends."""
        self._plane = plane
        self._work = work
        self._giving_up = giving_up
        self._start_for = start_for
        self._logs: dict[NodeKey, AttemptLogs] = {}
        self._gives_up: dict[NodeKey, GivingUp] = {}

    def follow(self, assignment: Assignment, *, is_resumed: bool) -> None:
        """From now on; may be repeated. is_resumed: the control plane may hold some of it."""
        key = assignment.key
        if key not in self._logs:
            gives_up = self._gives_up[key] = self._giving_up(key, LOG_PATIENCE_MS)
            self._logs[key] = AttemptLogs(
                self._plane,
                key,
                self._work.site(assignment),
                is_resumed=is_resumed,
                masks=self._work.masks_for(assignment),
                limit_bytes=assignment.limits.log_bytes,
                gives_up=gives_up,
            )
            if is_resumed:
                self._send(key)

    def grown(self, key: NodeKey, stream: str = "") -> None:
        """There is more of this stream, or of any; harmless where there is not, or nobody follows."""
        if key in self._logs:
            self._send(key)
            self._logs[key].grown(stream)

    def is_needless(self, key: NodeKey) -> bool:
        """Its program has ended, and nothing of its log is there to be sent."""
        return key in self._logs and self._logs[key].is_needless(self._work.written(key))

    def drain(self, assignment: Assignment) -> None:
        """Its program has ended: answered by LogDrained when the control plane holds all of its log."""
        self.follow(assignment, is_resumed=True)
        self._send(assignment.key)
        self._logs[assignment.key].drain(self._work.written(assignment.key))

    def forget(self, key: NodeKey) -> None:
        """All that is remembered of it."""
        self._logs.pop(key, None)
        self._gives_up.pop(key, None)

    def _send(self, key: NodeKey) -> None:
        logs = self._logs[key]
        if not logs.is_started:
            logs.is_started = True
            self._start_for(key, self._work.upload_logs(key, logs, self._gives_up[key]))
