"""A ``Stager`` brings what a URI names to the worker, before the program starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

__all__ = ["STAGER_DEADLINE_S", "STAGER_SILENCE_S", "StageFailed", "StageSite", "Stager"]

STAGER_DEADLINE_S: Final = 6 * 3600.0
STAGER_SILENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class StageSite:
    """``folder``: empty, of this input alone, on the disk of the job's work folder; it goes with the attempt.

    environment: the worker's. progress(done, total): bytes so far and in all, None where nobody knows; to be called at
    least every ``STAGER_SILENCE_S``. is_cancelled: nobody waits for it any more; a stager that looks ends sooner.
    """

    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    progress: Callable[[int, int | None], None] = field(repr=False)
    is_cancelled: Callable[[], bool] = field(repr=False)


class StageFailed(Exception):
    """is_users: what was asked for is not there, or may not be read: the job fails, and does not run again. Else the
    network or the machine is at fault, and the attempt is tried elsewhere."""

    def __init__(self, message: str, *, hint: str = "", is_users: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.is_users = is_users


@runtime_checkable
class Stager(Protocol):
    """One a URI scheme; ``scheme`` in lower case, without the colon.

    ``fetch`` returns where the input lies: in ``site.folder``, or anywhere else on this machine where it may be read in
    place. It may block as long as it says so (``progress``), and for ``STAGER_DEADLINE_S`` in all. It is called once an
    input and attempt, and may be repeated with an empty folder. It raises StageFailed; any other failure is the
    plugin's, and the attempt is placed elsewhere.
    """

    @property
    def scheme(self) -> str: ...

    def fetch(self, uri: str, site: StageSite) -> Path: ...
