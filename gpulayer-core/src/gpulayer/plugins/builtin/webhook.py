"""The ``webhook`` event sinks: each event is sent to URLs, signed as the Standard Webhooks specification says.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md. Without the option ``url``
there is no sink. Any answer of 2xx is thanks. 400, 410, 413, 415 and 422 refuse the event for good; any other answer,
a redirect too, and none is a failure, and the event is sent again: what is set up wrongly can be put right meanwhile.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gpulayer.clock import Clock, SystemClock, iso_utc
from gpulayer.errors import UsageError
from gpulayer.plugins.contracts.context import Context
from gpulayer.plugins.contracts.event import EVENT_DEADLINE_S, EventKind, EventRefused, EventSink, PlaneEvent
from gpulayer.plugins.hooks import API_VERSION, hookimpl

if TYPE_CHECKING:
    import ssl

__all__ = ["GPULAYER_API", "Webhook", "WebhookFailed", "body_of", "gpulayer_register_event_sinks", "signatures"]

GPULAYER_API: Final = API_VERSION

_OPTIONS: Final = frozenset({"url", "secret", "secret_file", "events", "timeout", "ca_file"})
# Messages name variables: what these hold is hidden wherever it shows.
_SECRET_FILE: Final = "GPULAYER_PLUGIN_WEBHOOK_SECRET_FILE"  # noqa: S105 - a name
_CA_FILE: Final = "GPULAYER_PLUGIN_WEBHOOK_CA_FILE"
_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 24
_TIMEOUT_S: Final = 5.0
_LONGEST_S: Final = EVENT_DEADLINE_S - 1
_FINAL_REFUSALS: Final = frozenset({400, 410, 413, 415, 422})


class WebhookFailed(Exception):
    """The event was not taken, this time."""


@hookimpl
def gpulayer_register_event_sinks(ctx: Context) -> list[EventSink]:
    """One a URL of the option ``url``; none without. Raises UsageError for options that can't be used."""
    options = ctx.options
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise UsageError(f"webhook: there is no option {unknown[0]}", hint=f"there are {', '.join(sorted(_OPTIONS))}")
    urls = dict.fromkeys(options.get("url", "").split())
    if not urls:
        if options:
            raise UsageError("webhook: it has options, but no URL", hint="set GPULAYER_PLUGIN_WEBHOOK_URL")
        return []
    secrets, kinds, timeout_s = _secrets(options), _kinds(options.get("events", "")), _timeout_s(options)
    for url in urls:
        _check_url(url)
    trust = _trust(options.get("ca_file", ""))
    return [Webhook(url, secrets, kinds=kinds, timeout_s=timeout_s, trust=trust) for url in urls]


class Webhook:
    """Sends to one URL. ``tell`` blocks for ``timeout_s`` at most, however little by little the other end answers; only
    in a thread that runs no event loop. trust: None for the usual authorities."""

    def __init__(
        self,
        url: str,
        secrets: tuple[bytes, ...],
        *,
        kinds: frozenset[EventKind] | None = None,
        timeout_s: float = _TIMEOUT_S,
        trust: "ssl.SSLContext | None" = None,
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        self._secrets = secrets
        self._kinds = kinds
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._trust = trust
        self._host = urlsplit(url).hostname or ""

    @property
    def name(self) -> str:
        """Of the URL, without showing its path, which may be a secret."""
        shown = re.sub(r"[^a-z0-9.-]", "-", self._host)[:40]
        return f"to-{shown}-{hashlib.sha256(self._url.encode()).hexdigest()[:8]}"

    @property
    def kinds(self) -> frozenset[EventKind] | None:
        return self._kinds

    def __repr__(self) -> str:
        return f"Webhook({self.name})"

    def tell(self, event: PlaneEvent) -> None:
        """Raises WebhookFailed, and EventRefused for an answer that no repetition changes."""
        import asyncio  # noqa: PLC0415 - with TLS and HTTP a tenth of a second, for those alone who send

        import httpx  # noqa: PLC0415

        body = body_of(event)
        sent_s = self._clock.wall_ms() // 1000
        headers = {
            "content-type": "application/json",
            "user-agent": "gpulayer",
            "webhook-id": event.id,
            "webhook-timestamp": str(sent_s),
            "webhook-signature": signatures(self._secrets, event.id, sent_s, body),
        }
        # Timeouts of a blocking client start anew with each byte, and each of a host's addresses; a loop has one end.
        loop = asyncio.new_event_loop()
        try:
            status = loop.run_until_complete(self._send(body, headers))
        except (TimeoutError, httpx.TimeoutException):
            raise WebhookFailed(f"{self._host}: no answer within {self._timeout_s:g} s") from None
        except httpx.ConnectError as error:
            raise WebhookFailed(f"{self._host}: no connection: {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:  # what it says may quote what was sent
            raise WebhookFailed(f"{self._host}: the connection failed ({type(error).__name__})") from None
        finally:
            loop.close()  # without waiting: a name that is still being looked up has a thread of its own
        if 200 <= status < 300:
            return
        if status in _FINAL_REFUSALS:
            raise EventRefused(f"{self._host} answered {status}")
        if 300 <= status < 400:
            raise WebhookFailed(f"{self._host} answered {status}: redirects are not followed, so set the URL itself")
        raise WebhookFailed(f"{self._host} answered {status}")

    async def _send(self, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer. No proxy of the environment, no redirect, and nothing but the status is read:
        whoever answers decides neither where a signed event goes nor for how long."""
        import asyncio  # noqa: PLC0415 - see above

        import httpx  # noqa: PLC0415 - see above

        async with (
            asyncio.timeout(self._timeout_s),
            httpx.AsyncClient(verify=self._context(), timeout=self._timeout_s, trust_env=False) as client,
            client.stream("POST", self._url, content=body, headers=headers) as answer,
        ):
            return answer.status_code

    def _context(self) -> "ssl.SSLContext":
        import httpx  # noqa: PLC0415 - see above

        if self._trust is None:  # made once: it reads hundreds of certificates
            self._trust = httpx.create_ssl_context(trust_env=False)
        return self._trust


def body_of(event: PlaneEvent) -> bytes:
    """JSON (ASCII) with ``type``, ``timestamp`` (of the event) and ``data``. The same event told again has the same but
    for the job's state, which is as of then."""
    job = event.job
    data: dict[str, object] = {"id": event.id, "seq": event.seq, "details": dict(event.details)}
    if event.worker:
        data["worker"] = event.worker
    if job is not None:
        data["job"] = {
            "id": job.id,
            "name": job.name,
            "owner": job.owner,
            "tags": dict(job.tags),
            "state": job.state,
            "exit_code": job.exit_code,
            "signal": job.signal,
            "ended_by": job.ended_by,
        }
    document = {"type": str(event.kind), "timestamp": iso_utc(event.at_ms), "data": data}
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def signatures(secrets: tuple[bytes, ...], event_id: str, sent_s: int, body: bytes) -> str:
    """``v1,`` and base64 of HMAC-SHA256, for each secret, with spaces between: what ``webhook-signature`` carries."""
    signed = f"{event_id}.{sent_s}.".encode() + body
    made = (base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets)
    return " ".join(f"v1,{signature}" for signature in made)


def _secrets(options: Mapping[str, str]) -> tuple[bytes, ...]:
    """One or more, with blanks between: while a secret is replaced both sign. Messages never show them."""
    text, path = options.get("secret", ""), options.get("secret_file", "")
    if text and path:
        raise UsageError("webhook: it has both a secret and a secret file", hint="set one of them")
    words = (_private_text(path) if path else text).split()
    if not words:
        raise UsageError(
            "webhook: it has no secret to sign with",
            hint=f"set {_SECRET_FILE}, or GPULAYER_PLUGIN_WEBHOOK_SECRET",
        )
    return tuple(map(_secret, words))


def _secret(word: str) -> bytes:
    secret = word.encode()
    if word.startswith(_PREFIX):
        try:
            secret = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"webhook: what follows {_PREFIX} in the secret is not base64") from None
    if len(secret) < _SECRET_BYTES:
        raise UsageError(
            f"webhook: the secret has fewer than {_SECRET_BYTES} bytes",
            hint='make one: echo "whsec_$(openssl rand -base64 32)"',
        )
    return secret


def _private_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UsageError(f"webhook: others may read the file of {_SECRET_FILE}", hint="chmod 600 that file")
            return file.read(65_536)
    except OSError as error:
        raise UsageError(f"webhook: the file of {_SECRET_FILE} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"webhook: the file of {_SECRET_FILE} is not text") from None


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UsageError("webhook: a URL that can't be read", hint="write it like https://example.com/hook") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("webhook: a URL is not one of HTTP", hint="write it like https://example.com/hook")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"webhook: the URL of {host} carries a name or password", hint="events are signed instead")
    if parts.scheme == "http" and not _is_loopback(host):
        raise UsageError(f"webhook: {host} would be told without encryption", hint="use https")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _kinds(text: str) -> frozenset[EventKind] | None:
    words = [word.strip() for word in text.split(",") if word.strip()]
    known = {str(kind): kind for kind in EventKind}
    unknown = [word for word in words if word not in known]
    if unknown:
        raise UsageError(f"webhook: there is no event {unknown[0][:60]!r}", hint=f"there are {', '.join(known)}")
    return frozenset(known[word] for word in words) or None


def _trust(ca_file: str) -> "ssl.SSLContext | None":
    if not ca_file:
        return None
    import ssl  # noqa: PLC0415 - for those alone who send

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # of its content, too
        reason = error.strerror or "no certificate in it"
        raise UsageError(f"webhook: the file of {_CA_FILE} can't be used: {reason}") from None


def _timeout_s(options: Mapping[str, str]) -> float:
    text = options.get("timeout", "")
    try:
        timeout_s = float(text) if text else _TIMEOUT_S
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= _LONGEST_S:
        raise UsageError(f"webhook: timeout {text[:20]!r} is no time in seconds up to {_LONGEST_S:g}")
    return timeout_s
