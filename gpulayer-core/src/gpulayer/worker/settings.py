"""What a worker is started with. Whoever starts it (``cli``) has read flags and environment; nothing here does."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpulayer import __version__
from gpulayer.errors import UsageError
from gpulayer.net import Address, Pin
from gpulayer.plugins.settings import PluginSettings

__all__ = ["LOCK_FOLDERS", "WorkerSettings"]

LOCK_FOLDERS: Final = ("/run/lock/gpulayer", "/tmp/gpulayer-locks")  # noqa: S108 - see ``spawner.locks``
"""The same for all users: neither is everywhere one that all may use, so a lock is taken in each that can be."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Where to work, whom to work for, and as whom.

    work_dir: a folder of this worker's own; everything it keeps is below. urls: of one control plane, tried in turn;
    or endpoint_file: re-read at every reconnect. pins: of its certificate, none where a public CA vouches for it.
    proxy: an HTTP proxy to tunnel through, for https. token_file, token: a join token, needed until the worker is
    enrolled; a file inside ``work_dir`` is deleted once used. name: refused where another worker holds it;
    default_name: made unique then. environment: of the worker, from which jobs get an allow-list. python: runs the
    spawner. jobs_python: runs framework checks; empty: the one that a job finds on its ``PATH``. lock_folders: where
    all workers of this host lock its devices. faults: for the spawner that it starts, as of ``gpulayer.faults.arm``.
    plugins: see ``PluginSettings``.
    """

    work_dir: Path
    urls: tuple[str, ...] = ()
    endpoint_file: Path | None = None
    pins: tuple[Pin, ...] = ()
    proxy: Address | None = None
    token_file: Path | None = None
    token: str = field(default="", repr=False)
    name: str = ""
    default_name: str = "worker"
    labels: tuple[tuple[str, str], ...] = ()
    once: bool = False
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str = sys.executable
    jobs_python: str = ""
    lock_folders: tuple[str, ...] = LOCK_FOLDERS
    version: str = __version__
    faults: str = ""
    plugins: PluginSettings = field(default_factory=PluginSettings)

    def __post_init__(self) -> None:
        if bool(self.urls) == (self.endpoint_file is not None):
            raise UsageError("a worker needs either the URLs of a control plane or its endpoint file")
