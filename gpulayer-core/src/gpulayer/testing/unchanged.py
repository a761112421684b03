"""What all code of a process shares, and no plugin may change."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpulayer.plugins.ambient import Ambient

__all__ = ["unchanged_process"]


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Fails where what is done inside changes what the host of plugins would put back, or leaves a thread running."""
    before, threads = Ambient(), set(threading.enumerate())
    yield
    changed = before.put_back()
    assert not changed, f"it changed what all of the process share: {', '.join(changed)}"
    left = sorted(thread.name for thread in threading.enumerate() if thread not in threads)
    assert not left, f"it left threads running: {', '.join(left)}"
