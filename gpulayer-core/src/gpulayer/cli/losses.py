"""What is said while a control plane does not answer a command that follows a job: once an outage, and soon."""

from collections.abc import Callable

from gpulayer.cli.console import say
from gpulayer.errors import GpulayerError

__all__ = ["LossTeller"]


class LossTeller:
    """Hand ``lost`` to ``follow_logs`` and ``waiting`` to the transport; call ``found`` when something came again.

    has_ended: whether this machine's control plane has ended in order, so that nobody need look for a fault.
    """

    def __init__(self, job_id: str, has_ended: Callable[[], bool]) -> None:
        self._id = job_id
        self._has_ended = has_ended
        self._is_told = self._is_end_told = False

    def lost(self, why: str) -> None:
        """A connection broke."""
        if self._has_ended():
            self._tell_end()
        elif not self._is_told:
            self._is_told = True
            say(f"connection lost ({why}); trying again, job {self._id} goes on")

    def waiting(self, error: GpulayerError) -> None:
        """A request has gone without an answer for a second and is tried again."""
        self.lost(error.message)

    def found(self) -> None:
        """The next loss is another one."""
        self._is_told = self._is_end_told = False

    def _tell_end(self) -> None:
        if not self._is_end_told:
            self._is_told = self._is_end_told = True
            say(f"the control plane has ended; job {self._id} is not lost; waiting a moment for another to take over")
