"""What the control plane is told from outside. Imports nothing heavy: it is read before anything else is loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from gpulayer.client.holder import ENDPOINT_FILE, FORMER_FILE, RESTORED_FILE
from gpulayer.plugins.settings import PluginSettings
from gpulayer.server.admission import AdmissionLimits

__all__ = [
    "DEFAULT_IDLE_EXIT_S",
    "DEFAULT_KEEP_EVENTS_MS",
    "DEFAULT_KEEP_LOGS_MS",
    "DEFAULT_PORT",
    "CertificateFiles",
    "Layout",
    "PlaneSettings",
    "ServeSettings",
]

DEFAULT_PORT: Final = 8470
DEFAULT_IDLE_EXIT_S: Final = 600.0
DEFAULT_KEEP_LOGS_MS: Final = 30 * 86_400_000
DEFAULT_KEEP_EVENTS_MS: Final = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of a state folder."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "plane.lock"

    @property
    def endpoint(self) -> Path:
        return self.root / ENDPOINT_FILE

    @property
    def former(self) -> Path:
        """The endpoint file of a plane that was killed, from the next start until that serves."""
        return self.root / FORMER_FILE

    @property
    def restored(self) -> Path:
        """There from a restore until a control plane has served: none but ``gpulayer up`` starts the first."""
        return self.root / RESTORED_FILE

    @property
    def own_port(self) -> Path:
        return self.root / "own-port"

    @property
    def store(self) -> Path:
        return self.root / "store.db"

    @property
    def pepper(self) -> Path:
        return self.root / "pepper"

    @property
    def secrets_key(self) -> Path:
        return self.root / "secrets.key"

    @property
    def wall_clock(self) -> Path:
        return self.root / "wall-clock"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def worker(self) -> Path:
        return self.root / "worker"

    @property
    def plugin_marks(self) -> Path:
        return self.root / "plugin-marks"

    @property
    def tls(self) -> Path:
        return self.root / "tls"


@dataclass(frozen=True, slots=True)
class PlaneSettings:
    """Of one running control plane, whoever serves it.

    mode: ``embedded`` ends when idle. has_local_worker: submissions wait for its first report.
    max_body_bytes: of one request that is held in memory. max_blob_bytes: of one streamed blob.
    body_piece_s: how long the next piece of a body may take; body_bytes_a_second: how fast it must be on the whole.
    look_again_s: how often a request that is held looks whether its caller's token is still good.
    log_hold_s: how long a follower waits for an attempt that is still to come before it is told to ask again; well
    below the minute after which clients, and what stands between, take silence for a dead connection.
    keep_logs_ms: after a job's end; 0 for ever. keep_events_ms: of the event log, from when it happened; 0 for ever.
    urls, public_urls, fingerprints: how other machines reach it; empty
    where they can't. plugins: see ``PluginSettings``. plugins_wait_s: how long a submission waits for them to be loaded
    before it is told to come again. admission: who is let in when more comes than can be done.
    allowed_hosts: names by which it may be addressed, beside ``localhost`` and any numeric address (see ``guard``).
    """

    state_dir: Path
    mode: Literal["embedded", "standing"] = "standing"
    url: str = ""
    urls: tuple[str, ...] = ()
    public_urls: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    has_local_worker: bool = False
    local_worker_wait_s: float = 10.0
    max_body_bytes: int = 16 * 2**20
    max_blob_bytes: int = 10 * 2**30
    max_log_chunk_bytes: int = 2**20
    body_piece_s: float = 30.0
    look_again_s: float = 10.0
    body_bytes_a_second: int = 1024
    log_hold_s: float = 25.0
    heartbeat_ms: int = 10_000
    session_life_s: int = 86_400
    join_token_life_s: int = 900
    allowed_hosts: tuple[str, ...] = ()
    keep_logs_ms: int = DEFAULT_KEEP_LOGS_MS
    keep_events_ms: int = DEFAULT_KEEP_EVENTS_MS
    plugins: PluginSettings = field(default_factory=PluginSettings)
    plugins_wait_s: float = 20.0
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)

    @property
    def layout(self) -> Layout:
        return Layout(self.state_dir)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Somebody's own certificate (PEM, with the chain below it) and its key (PEM, not encrypted)."""

    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Of a served control plane.

    host: ``127.0.0.1``, ``localhost`` or ``::1``: this machine alone; ``0.0.0.0`` or ``::``: all its interfaces, IPv4
    and IPv6; else one address or name of it. port 0: any free one. tls: ``auto``: with a certificate of its own making
    wherever other machines reach it; ``off``: never, for a proxy that does it. public_urls: what others use instead of
    this machine's addresses.

    worker_command: how the plane's own worker is started (argv), None for no worker; worker_environment: the variables
    it gets. idle_exit_s: an embedded plane ends after so long without live jobs and requests. keep_logs_ms: after a
    job's end; 0 for ever. lease_ttl_ms: how long a worker may be silent before its work is given to another; None: as
    the policy says. plugins: of the control plane; its worker reads its own from ``worker_environment``. restart: from
    the port that it got, the arguments that start it again as it was. in_place: only in the place of a plane that has
    died, and that nobody has ended since: Conflict otherwise.
    """

    state_dir: Path
    mode: Literal["embedded", "standing"] = "standing"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls: Literal["auto", "off"] | CertificateFiles = "auto"
    public_urls: tuple[str, ...] = ()
    worker_command: tuple[str, ...] | None = None
    worker_environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # options of plugins may be secret
    idle_exit_s: float = DEFAULT_IDLE_EXIT_S
    graceful_s: float = 5.0
    lease_ttl_ms: int | None = None
    keep_logs_ms: int = DEFAULT_KEEP_LOGS_MS
    keep_events_ms: int = DEFAULT_KEEP_EVENTS_MS
    plugins: PluginSettings = field(default_factory=PluginSettings)
    restart: Callable[[int], Sequence[str]] = lambda _: ()
    in_place: bool = False
