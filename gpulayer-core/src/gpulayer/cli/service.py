"""A worker as a service of its machine: which file, with which text, and which commands, for systemd and launchd.

Pure: ``plan_service`` decides everything by value and ``service_install`` only does it. What a service must keep:

* the agent alone is its main process; spawner and jobs outlive its crash and its restart (``KillMode=process``,
  ``AbandonProcessGroup``), and the next agent finds them;
* stopping the service is SIGTERM to the agent, which ends its jobs in good order;
* no token stands in the file or in a command line: the worker has joined before the file is written;
* only a file that carries ``MARKER`` is ever replaced or removed.

systemd.service(5), systemd.kill(5), systemd.resource-control(5), launchd.plist(5).
"""

import plistlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpulayer.errors import NotSupported, UsageError

__all__ = ["MARKER", "Command", "Host", "ServicePlan", "plan_service"]

MARKER: Final = "written by `gpulayer join`, which replaces it"  # without --: it stands in an XML comment too
_RESTART_S: Final = 5
_STOP_S: Final = 90  # the agent's own: 10 s for the jobs, and time to bring their files home
_NOT_AGAIN: Final = "2 4"  # a wrong use, a worker that is not known any more: starting again mends neither


@dataclass(frozen=True, slots=True)
class Host:
    """What of a machine decides how a service is made there.

    platform: ``sys.platform``. is_systemd: systemd is the running init. config: the user's configuration folder.
    """

    platform: str
    is_systemd: bool
    uid: int
    user: str
    home: Path
    config: Path


@dataclass(frozen=True, slots=True)
class Command:
    """``may_fail``: its failure means that there was nothing to do."""

    argv: tuple[str, ...]
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """path: the file, to be written with ``content``. install, remove: in this order, before and after the file is
    there. ask: exits with 0 while it runs. look: for people, to see how it is. notes: what else they should know."""

    name: str
    path: Path
    content: str
    install: tuple[Command, ...]
    remove: tuple[Command, ...]
    after_removal: tuple[Command, ...]
    ask: Command
    look: tuple[str, ...]
    restart: str
    notes: tuple[str, ...] = ()


def plan_service(argv: Sequence[str], *, name: str, host: Host, log: Path, search_path: str) -> ServicePlan:
    """The service that runs ``argv``, an absolute command line.

    name: of the worker, empty for the default. log: where launchd puts its output. search_path: PATH of the worker and
    so of its jobs. Raises NotSupported where neither systemd nor launchd runs, UsageError for what no unit can hold.
    """
    service = "gpulayer-worker" + (f"-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}" if name else "")
    if any(character in word for word in (*argv, search_path) for character in "\n\r\0"):
        raise UsageError("a line break in a name, label or path can't stand in a service's file", hint="leave it out")
    if host.platform == "darwin":
        return _launchd(service, argv, host, log, search_path)
    if host.is_systemd:
        return _systemd(service, argv, host, search_path)
    raise NotSupported(
        "no systemd or launchd runs here (a container?), so there are no services here",
        hint="have whatever starts programs here run `gpulayer join`, with the same arguments but --install-service",
    )


def _systemd(service: str, argv: Sequence[str], host: Host, search_path: str) -> ServicePlan:
    is_system = host.uid == 0
    unit = f"{service}.service"
    folder = Path("/etc/systemd/system") if is_system else host.config / "systemd" / "user"
    systemctl = ("systemctl",) if is_system else ("systemctl", "--user")
    journal = ("journalctl", *(() if is_system else ("--user",)), "-u", unit)
    reload = Command((*systemctl, "daemon-reload"))
    linger = f"so that it also runs while you are not logged in: loginctl enable-linger {host.user}"
    return ServicePlan(
        name=unit,
        path=folder / unit,
        content=_unit(service, argv, host, search_path, is_system=is_system),
        install=(reload, Command((*systemctl, "enable", "--now", unit))),
        remove=(Command((*systemctl, "disable", "--now", unit), may_fail=True),),
        after_removal=(reload,),
        ask=Command((*systemctl, "is-active", "--quiet", unit), may_fail=True),
        look=(" ".join((*systemctl, "status", unit)), " ".join((*journal, "-f"))),
        restart=" ".join((*systemctl, "restart", unit)),
        notes=() if is_system else (linger,),
    )


def _unit(service: str, argv: Sequence[str], host: Host, search_path: str, *, is_system: bool) -> str:
    # A user's manager knows no network target: the worker waits for its control plane by itself.
    network = "Wants=network-online.target\nAfter=network-online.target\n" if is_system else ""
    # Named, so that HOME, USER and SHELL are set: a job gets them from its worker.
    user = f"User={host.user}\n" if is_system else ""
    return f"""\
# {service}.service: {MARKER}
[Unit]
Description=GPUlayer worker
{network}StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={" ".join(_quoted(word, is_command=True) for word in argv)}
{user}Environment={_quoted(f"PATH={search_path}", is_command=False)}
Restart=always
RestartSec={_RESTART_S}
RestartPreventExitStatus={_NOT_AGAIN}
KillMode=process
Delegate=yes
TimeoutStopSec={_STOP_S}
OOMPolicy=continue

[Install]
WantedBy={"multi-user.target" if is_system else "default.target"}
"""


def _quoted(word: str, *, is_command: bool) -> str:
    """As systemd reads it back (systemd.syntax(7), systemd.unit(5) on specifiers): ``%`` always means something, ``$``
    in a command line alone."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + (text.replace("$", "$$") if is_command else text) + '"'


def _launchd(service: str, argv: Sequence[str], host: Host, log: Path, search_path: str) -> ServicePlan:
    is_system = host.uid == 0
    folder = Path("/Library/LaunchDaemons") if is_system else host.home / "Library" / "LaunchAgents"
    domain = "system" if is_system else f"gui/{host.uid}"
    path, target = folder / f"{service}.plist", f"{domain}/{service}"
    document = {
        "Label": service,
        "ProgramArguments": list(argv),
        "EnvironmentVariables": {"PATH": search_path},
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": _RESTART_S,
        "ExitTimeOut": _STOP_S,
        "AbandonProcessGroup": True,
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    head, rest = plistlib.dumps(document).decode().split("<plist", 1)
    stop = Command(("launchctl", "bootout", target), may_fail=True)
    return ServicePlan(
        name=service,
        path=path,
        content=f"{head}<!-- {MARKER} -->\n<plist{rest}",
        install=(stop, Command(("launchctl", "bootstrap", domain, str(path)))),
        remove=(stop,),
        after_removal=(),
        ask=Command(("launchctl", "print", target), may_fail=True),
        look=(f"launchctl print {target}", f"tail -f {log}"),
        restart=f"launchctl kickstart -k {target}",
        notes=() if is_system else ("it runs while you are logged in; as root it is installed for the whole machine",),
    )
