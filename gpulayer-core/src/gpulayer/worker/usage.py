"""How much disk a running job has taken, held against what it asked for with ``--disk``.

File systems have quotas for that, but seldom for a folder, and seldom for whoever is not root. So it is looked at:
every second, less often where looking takes long, in a thread.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpulayer.spec.units import format_bytes
from gpulayer.worker.disk import used_bytes

__all__ = ["until_over"]

_EVERY_S: Final = (1.0, 30.0)
_SHARE: Final = 20  # looking takes a twentieth of the time at most


async def until_over(folders: Sequence[Path], *, limit_bytes: int) -> str:
    """Returns, for people, what was found once the folders hold more than ``limit_bytes``; waits for ever if never."""
    while True:
        begun = time.monotonic()
        used = await asyncio.to_thread(used_bytes, folders, limit_bytes=limit_bytes)
        if used > limit_bytes:
            return f"it used {format_bytes(used)} of its --disk {format_bytes(limit_bytes)}"
        took_s = time.monotonic() - begun
        await asyncio.sleep(min(max(_EVERY_S[0], took_s * _SHARE), _EVERY_S[1]))
