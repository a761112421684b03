"""A ``FrameworkCheck`` finds out whether a framework computes on a device, in the Python that jobs use."""

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from gpulayer.spec.request import Accelerator

__all__ = ["CHECK_DEADLINE_S", "CheckScript", "FrameworkCheck"]

CHECK_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class CheckScript:
    """A program for another Python: 3.9 or newer, with nothing installed but what it looks for.

    It prints one JSON object on its last line: ``{"version": "2.4.0", "devices": {"cuda": "", "cpu": "why not"}}``: by
    accelerator, empty text where it computed there and read the right answer back, else the reason in the library's own
    words; it exits with 0. A framework that is not installed prints ``{"version": null}``. All else that it prints goes
    to the log. It runs in an empty folder, with the variables that a job in the ``system`` environment gets, and sees
    the devices that the worker offers.

    It may add ``"build": "cuda 12.6"``: what the framework was built for; ``"architectures": ["sm_90"]``: of devices,
    compiled in; and ``"again": ["cuda"]``: these reasons pass by themselves, as when another process holds a device, so
    that the check runs again soon, what was found before stands until then, and where nothing was, jobs wait;
    ``"failed": {"cuda": {"1": "why not"}}``: devices on which it did not compute, by their numbers in the order in
    which the program sees them: where it computed on others, jobs get those. ``"so_far": true`` marks an answer
    before the last: where the program dies or is killed later, what it says of accelerators is believed.

    modules: those without which the framework is not installed. Where one can't be found the script is not run, and
    where it has computed on all that is there, a later start of the worker believes that, as long as Python, its
    packages, the devices and their drivers are the same. Empty: it runs at each start.
    """

    source: str
    modules: tuple[str, ...] = ()


@runtime_checkable
class FrameworkCheck(Protocol):
    """``name`` is the framework's, as requests name it: ``torch``.

    ``script`` is pure and quick. The worker runs the script in a child of its own, in the Python that jobs use, for
    ``CHECK_DEADLINE_S`` at most, at its start and whenever devices change; then it kills it. A script that fails,
    hangs or prints something else makes the framework unusable there, with that as the reason.
    ``accelerators``: those it can say something about.
    """

    @property
    def name(self) -> str: ...

    @property
    def accelerators(self) -> tuple[Accelerator, ...]: ...

    def script(self) -> CheckScript: ...
