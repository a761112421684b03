"""The ``file`` stager: what lies on the worker's own disk or a mount, read in place."""

import errno
import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.stager import StageFailed, Stager, StageSite
from gpulayer.plugins.hooks import API_VERSION, hookimpl

__all__ = ["GPULAYER_API", "FileStager", "gpulayer_register_stagers"]

GPULAYER_API: Final = API_VERSION

# What is wrong with a name, or may not be, is so on every worker; anything else may be the disk or a mount.
_OF_THE_NAME: Final = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EINVAL, errno.EILSEQ)
_SHOWN: Final = 200


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
            name = parts.path.encode("utf-8", "surrogateescape")
        except ValueError:
            raise StageFailed(f"{uri}: no URI", hint="write it like file:///mnt/data") from None
        path = Path(os.fsdecode(unquote_to_bytes(name)))  # files are named by bytes, which are not always text
        if parts.netloc not in ("", "localhost"):
            raise StageFailed(f"{uri}: names the host {parts.netloc}", hint="three slashes: file:///mnt/data")
        if parts.query or parts.fragment:
            raise StageFailed(f"{uri}: a file has no query or fragment", hint="write ? as %3F and # as %23")
        if not path.is_absolute():
            raise StageFailed(f"{uri}: not an absolute path", hint="three slashes: file:///mnt/data")
        shown = _shown(path)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            hint = "name the worker that has it with --worker"
            raise StageFailed(f"{shown} is not on this worker", hint=hint) from None
        except ValueError:  # a NUL
            raise StageFailed(f"{uri}: no name of a file") from None
        except OSError as error:
            raise StageFailed(f"{shown}: {error.strerror}", is_users=error.errno in _OF_THE_NAME) from None
        if not os.access(path, os.R_OK):
            raise StageFailed(f"{shown} may not be read by the worker")
        return path


def _shown(path: Path) -> str:
    """What is no plain text would reach nobody as it is, and what is long would leave no room for the reason."""
    text = os.fspath(path)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
