"""The ``file`` stager: what lies on the worker's own disk or a mount, read in place."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.stager import StageFailed, Stager, StageSite
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "FileStager", "gpulayer_register_stagers"]

GPULAYER_API: Final = API_VERSION


@hookimpl
def gpulayer_register_stagers(ctx: Context) -> list[Stager]:
    """The file stager."""
    return [FileStager()]


class FileStager:
    """``file:///mnt/data`` (RFC 8089): an absolute path on the worker, a file or a folder. Nothing is copied."""

    @property
    def scheme(self) -> str:
        return "file"

    def fetch(self, uri: str, site: StageSite) -> Path:
        try:
            parts = urlsplit(uri)
        except ValueError:
            raise StageFailed(f"{uri}: no URI", hint="write it like file:///mnt/data") from None
        path = Path(unquote(parts.path))
        if parts.netloc not in ("", "localhost"):
            raise StageFailed(f"{uri}: names the host {parts.netloc}", hint="three slashes: file:///mnt/data")
        if parts.query or parts.fragment:
            raise StageFailed(f"{uri}: a file has no query or fragment", hint="write ? as %3F and # as %23")
        if not path.is_absolute():
            raise StageFailed(f"{uri}: not an absolute path", hint="three slashes: file:///mnt/data")
        try:
            is_there = path.exists()
        except OSError as error:
            raise StageFailed(f"{path}: {error.strerror}", is_users=False) from None
        if not is_there:
            raise StageFailed(f"{path} is not on this worker", hint="name the worker that has it with --worker")
        if not os.access(path, os.R_OK):
            raise StageFailed(f"{path} may not be read by the worker")
        return path
