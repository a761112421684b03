"""``gpulayer backup``: all of a control plane in one file, whether it runs or not."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from gpulayer.cli.console import print_line, say
from gpulayer.cli.ending import told_to_end
from gpulayer.cli.nouns import StateOption, TargetOption, command_app, settings_for
from gpulayer.cli.progress import transfer_progress
from gpulayer.client import calls
from gpulayer.client.connect import telling
from gpulayer.client.embedded import find_plane
from gpulayer.client.location import Local
from gpulayer.client.transport import StreamBroken, Transport
from gpulayer.client.upload import Transfer
from gpulayer.errors import Conflict, Unreachable, UsageError
from gpulayer.ids import new_id
from gpulayer.server.archive import read
from gpulayer.server.folder import held_still
from gpulayer.server.settings import Layout
from gpulayer.spec.units import format_bytes
from gpulayer.staging.blobs import storage_error
from gpulayer.syncing import Syncs

if TYPE_CHECKING:
    from gpulayer.client.connect import Settings
    from gpulayer.client.location import Location

app = command_app()

_WHAT: Final = "backup"
_KEYS: Final = {
    "secrets.key": "key for secrets (no job has had any)",
    "tls": "certificate (it served this machine alone)",
}
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)


@app.command()
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file. It holds keys.")],
    *,
    no_blobs: Annotated[
        bool, typer.Option("--no-blobs", help="Without sources and outputs: jobs that wait for theirs will fail.")
    ] = False,
    no_logs: Annotated[bool, typer.Option("--no-logs", help="Without the jobs' output.")] = False,
    target: TargetOption = "",
    state: StateOption = "",
) -> None:
    """Keep all of a control plane in one file, while it runs or when it does not. gpulayer restore FILE brings it back.

    FILE holds what is secret: whoever reads it can be this control plane.
    """
    path = Path(file)
    if file == "-" or file.endswith(os.sep) or path.name in ("", "..") or path.is_dir():
        raise UsageError(f"{file!r} is not the name of a file", hint="gpulayer backup FILE, for example plane.backup")
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", hint="give a new name: an older backup may be the good one")
    settings = settings_for(target, state=state)
    with told_to_end():
        beside = path.absolute().parent
        size, held = _write(
            path,
            lambda progress: _pieces(settings, progress, beside=beside, blobs=not no_blobs, logs=not no_logs),
        )
    print_line(f"{path}: {format_bytes(size)}")
    say(f"it holds {held}")
    say(f"keep it where nobody else can read it; gpulayer restore {path} --state DIR makes a control plane of it again")


def _pieces(
    settings: "Settings", progress: Callable[[Transfer], None], *, beside: Path, blobs: bool, logs: bool
) -> Iterator[bytes]:
    """From whoever serves it now, else from the folder. Nothing is started for it. beside: where there is room for the
    backup, and so perhaps for a copy."""
    if not isinstance(settings.where, Local):
        yield from _from_plane(settings.where.location, settings, progress, blobs=blobs, logs=logs)
        return
    folder = settings.where.state_dir
    endpoint = find_plane(folder)
    if endpoint is not None:
        yield from _from_plane(endpoint.location, settings, progress, blobs=blobs, logs=logs)
        return
    if not folder.is_dir():
        raise Conflict(f"{folder} holds no control plane", hint="--state DIR or --target names another")
    from gpulayer.server.backup import open_backup  # noqa: PLC0415 - SQLAlchemy; only where no control plane runs
    from gpulayer.server.keeping import ELSEWHERE  # noqa: PLC0415 - as below

    layout = Layout(folder)
    elsewhere = (beside, *ELSEWHERE)
    made_wall_ms = time.time_ns() // 1_000_000
    with (
        held_still(layout, doing="gpulayer backup"),
        open_backup(layout, made_wall_ms=made_wall_ms, blobs=blobs, logs=logs, elsewhere=elsewhere) as made,
    ):
        done = 0
        for piece in made.pieces():
            done += len(piece)
            progress(Transfer(_WHAT, done, made.size))
            yield piece


def _from_plane(
    location: "Location", settings: "Settings", progress: Callable[[Transfer], None], *, blobs: bool, logs: bool
) -> Iterator[bytes]:
    with telling(Transport(location, client=settings.client, retry_for_s=settings.retry_for_s), say) as transport:
        transport.send(calls.get_plane())  # it may take long to copy a store, and not to say that it is there
        try:
            with transport.stream(calls.make_backup(blobs=blobs, logs=logs)) as body:
                done = 0
                for piece in body.chunks:
                    done += len(piece)
                    progress(Transfer(_WHAT, done, body.size or done))
                    yield piece
        except StreamBroken as broken:
            raise Unreachable(f"the backup did not come whole: {broken}", hint="try again; nothing was kept") from None


def _write(path: Path, pieces: Callable[[Callable[[Transfer], None]], Iterator[bytes]]) -> tuple[int, str]:
    """The whole file, synced and read again, or nothing. Returns its size, and what is in it."""
    # A name that nobody else has: neither another backup to the same FILE, nor a file that was there.
    making = path.with_name(f".gpulayer-backup-{new_id()}.part")
    try:
        descriptor = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{path.absolute().parent} is no folder", hint="make it first, or name another FILE") from None
    except OSError as error:
        raise storage_error(OSError(error.errno, error.strerror), path) from error  # a name that the user knows
    try:
        with open(descriptor, "w+b") as file, transfer_progress(is_quiet=False) as progress:
            os.fchmod(descriptor, 0o600)
            for piece in pieces(progress):
                file.write(piece)
            file.flush()
            Syncs().file(descriptor, making)
            size = file.tell()
            file.seek(0)
            held = _held(file, what=str(path))
        _give_name(making, path)
    except OSError as error:
        raise storage_error(error, making) from error
    finally:
        with suppress(OSError):
            os.unlink(making)
    return size, held


def _held(file: BinaryIO, *, what: str) -> str:
    """Read it to its end, as a restore will. Who misses something in the folder sees it here."""
    counts = dict.fromkeys(("blobs", "logs"), 0)
    keys = set()

    def count(name: str, _size: int, _mtime_s: int, pieces: Iterator[bytes]) -> None:
        kind = name.partition("/")[0]
        if kind in counts:
            counts[kind] += not name.endswith((".times", ".removed"))
        else:
            keys.add(kind)
        for _ in pieces:
            pass

    head = read(file, count, what=what)
    told = [f"{counts[each]:,} {each}" for each in counts if each in head.holds]
    lacking = [said for name, said in _KEYS.items() if name not in keys]
    return ", ".join(["the store", *told]) + (f"; there is no {' and no '.join(lacking)}" if lacking else "")


def _give_name(making: Path, path: Path) -> None:
    """Durable, and nobody's place is taken. Raises UsageError where there is something of that name, OSError."""
    try:
        try:
            os.link(making, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Sticks and shares know no links: the name is taken as an empty file of ours, which is then replaced.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            try:
                os.replace(making, path)
            except OSError:
                os.unlink(path)
                raise
    except FileExistsError:
        raise UsageError(f"{path} is there already", hint="give a new name") from None
    try:
        Syncs().path(path.parent)
    except PermissionError:
        Syncs().everything()  # a folder that may be written and not read can't be synced by itself
    except OSError:
        os.unlink(path)
        raise
