"""The control planes that this user has named: ``contexts.json`` (mode 0600), a name for addresses, a token and pins.

``Contexts`` is a value; ``parse_contexts`` and ``render_contexts`` are pure. ``change_contexts`` is the only writer: it
holds a lock from reading to writing, so that two commands at once lose nothing, and replaces the file as a whole, so
that nobody ever sees half of one. A damaged file is an error that names it; it is never taken for an empty one.
"""

import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gpulayer.client.location import LOCAL, REMOTE, Location, check_token, name_shown
from gpulayer.errors import UsageError
from gpulayer.faults import here
from gpulayer.net import parse_pins, parse_proxy, parse_urls

__all__ = ["Context", "Contexts", "change_contexts", "check_name", "parse_contexts", "read_contexts", "render_contexts"]

_SCHEMA: Final = 1
_LIMIT: Final = 2**20  # bytes of the file: thousands of contexts
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Context:
    """One control plane. urls: tried in turn. fingerprints: empty where a public CA vouches for it. proxy: to tunnel
    through; empty for none of its own. more: fields of another version, kept as they are."""

    urls: tuple[str, ...]
    token: str = field(repr=False)
    fingerprints: tuple[str, ...] = ()
    proxy: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def token_id(self) -> str:
        """As ``gpulayer token list`` shows it; no secret."""
        return self.token.partition("_")[2].partition("_")[0][:12]

    def location(self, *, proxy: str = "") -> Location:
        """proxy: where the context has none of its own. Raises UsageError."""
        urls, pins = parse_urls(" ".join(self.urls)), parse_pins(self.fingerprints)
        return Location(urls, check_token(self.token), pins, parse_proxy(self.proxy or proxy))


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of them by name. current: the one used by default; empty for none."""

    current: str = ""
    named: Mapping[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """Raises UsageError that names those there are."""
        found = self.named.get(name)
        if found is None:
            known = ", ".join(self.named) or "none yet"
            hint = f"there are: {known}; gpulayer context add NAME URL adds one"
            raise UsageError(f"there is no context {name_shown(name)}", hint=hint)
        return found

    def with_context(self, name: str, context: Context, *, is_current: bool | None = None) -> "Contexts":
        """Added or replaced. is_current: None makes the first one current, and leaves that as it is else."""
        is_first = not self.current and name not in self.named
        current = name if is_current or (is_current is None and is_first) else self.current
        if is_current is False and current == name:
            current = ""
        return Contexts(current, {**self.named, name: context})

    def without(self, name: str) -> "Contexts":
        """Raises UsageError where it is not there."""
        self.find(name)
        kept = {other: context for other, context in self.named.items() if other != name}
        return Contexts("" if self.current == name else self.current, kept)

    def using(self, name: str) -> "Contexts":
        """Raises UsageError where it is not there."""
        self.find(name)
        return replace(self, current=name)


def check_name(name: str) -> str:
    """Raises UsageError for what can be no context's name, or means something else after ``--target``."""
    if not _NAME.fullmatch(name) or name in (LOCAL, REMOTE):
        raise UsageError(
            f"{name_shown(name)} can't be the name of a context",
            hint="letters, digits, dots, - and _, up to 64, beginning with a letter or digit; not local, not remote",
        )
    return name


def parse_contexts(content: bytes, *, path: str) -> Contexts:
    """``path`` is for messages. Raises UsageError for content that this version can't read whole."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise _damaged(path, "it is nested too deeply") from None
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    # By type: true and 1.0 are equal to 1.
    is_numbered = isinstance(document, dict) and type(document.get("schema")) is int
    match document:
        case {"schema": 1, "current": str(current), "contexts": dict(entries)} if is_numbered:
            named = {str(name): _context(path, str(name), entry) for name, entry in entries.items()}
        case {"schema": int(schema)} if is_numbered and schema != _SCHEMA:
            raise UsageError(f"{path} was written by another version (schema {schema})", hint="use that version")
        case _:
            raise _damaged(path, "it has not the fields of a file of contexts")
    if current and current not in named:
        raise _damaged(path, f"its current context {current!r} is not in it")
    return Contexts(current, named)


def render_contexts(contexts: Contexts) -> bytes:
    """The file's content."""
    entries = {
        name: {
            **one.more,
            "urls": list(one.urls),
            "token": one.token,
            "fingerprints": list(one.fingerprints),
            "proxy": one.proxy,
        }
        for name, one in contexts.named.items()
    }
    document = {"schema": _SCHEMA, "current": contexts.current, "contexts": entries}
    return json.dumps(document, indent=2, ensure_ascii=True).encode() + b"\n"


def read_contexts(path: Path) -> Contexts:
    """What is in the file; nothing where there is none. Raises UsageError where it is damaged or can't be read, and
    where others than its owner may read it: its tokens are then no secret any more."""
    try:
        # Not blocking: opening a pipe would wait for its other end, and some devices act on it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise _damaged(str(path), "it is no regular file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(_LIMIT + 1)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}", hint="it holds the contexts; see its mode"
        ) from None
    if len(content) > _LIMIT:
        raise _damaged(str(path), f"it is larger than {_LIMIT:,} bytes")
    if sys.platform != "win32" and mode & _OTHERS:
        raise UsageError(
            f"others on this machine may read {path}, which holds tokens (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}; if somebody may have, take new tokens: gpulayer token rotate",
        )
    return parse_contexts(content, path=str(path))


def change_contexts(path: Path, change: Callable[[Contexts], Contexts]) -> Contexts:
    """Read, change and write under a lock; returns what is there now. Durable when it returns. Blocks while another
    command writes. Raises what ``read_contexts`` and ``change`` raise, and UsageError where it can't be written."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            before = read_contexts(path)
            after = change(before)
            if after != before:
                _replace(Path(os.path.realpath(path)), render_contexts(after))
            return after
    except OSError as error:
        raise UsageError(
            f"{path} can't be written: {error.strerror}", hint="set GPULAYER_CONFIG_DIR to a folder that can be"
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The file stays: taking it away would let two hold it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt  # noqa: PLC0415 - there alone

            msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)
        else:
            import fcntl  # noqa: PLC0415 - not there on Windows

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    whole = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            here("client.before_contexts")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        here("client.in_contexts")
        os.replace(whole, path)
    except BaseException:
        whole.unlink(missing_ok=True)
        raise
    here("client.after_contexts")
    if sys.platform != "win32":  # a folder can't be opened there
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _context(path: str, name: str, entry: object) -> Context:
    match entry:
        case {"urls": list(urls), "token": str(token), "fingerprints": list(pins), "proxy": str(proxy), **more} if urls:
            context = Context(
                tuple(map(str, urls)),
                token,
                tuple(map(str, pins)),
                proxy,
                {str(key): value for key, value in more.items()},
            )
        case _:
            raise _damaged(path, f"its context {name!r} is not whole")
    try:
        context.location()
    except UsageError as error:
        raise _damaged(path, f"its context {name!r}: {error.message}") from None
    return context


def _damaged(path: str, why: str) -> UsageError:
    return UsageError(
        f"the file of contexts {path} is damaged: {why}",
        hint="mend it, or move it away and add the contexts again; it is left as it is",
    )
