"""``gpulayer status``: which control plane commands go to, and how it is. Starts nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from gpulayer.cli.console import print_fields, print_json, print_line, say
from gpulayer.cli.nouns import JsonFlag, StateOption, TargetOption, command_app, settings_for
from gpulayer.cli.records import when
from gpulayer.client import calls
from gpulayer.client.connect import open_transport
from gpulayer.client.embedded import find_plane, is_stale, is_starting
from gpulayer.client.holder import is_restored
from gpulayer.client.location import Configured, Local, Location

app = command_app()


def not_running(state_dir: Path) -> str:
    """Where no control plane serves this machine: what became of it, and what starts one. Its jobs, if it had any, are
    in its state."""
    if is_restored(state_dir):
        return "a control plane was restored here from a backup, and is not started yet: gpulayer up does that"
    if is_stale(state_dir):
        return "the control plane of this machine has died; the next command that asks it anything starts it again"
    if is_starting(state_dir):
        return "the control plane of this machine is starting, or about to end"
    return "no control plane runs here; the next command that needs one starts it"


@app.command()
def status(*, target: TargetOption = "", state: StateOption = "", json: JsonFlag = False) -> None:
    """Which control plane commands go to, and how it is. Exits with 5 when a configured one does not answer."""
    settings = settings_for(target, state=state)
    where = settings.where
    context = where.context if isinstance(where, Configured) else ""
    if isinstance(where, Local):
        endpoint = find_plane(where.state_dir)
        if endpoint is None:
            if json:
                print_json({"running": False, "state_dir": str(where.state_dir), "has_died": is_stale(where.state_dir)})
            else:
                print_line(f"{not_running(where.state_dir)} (state in {where.state_dir})")
            return
        where = Configured(endpoint.location)
    with open_transport(replace(settings, where=where), say=say) as transport:
        plane = transport.send(calls.get_plane())
        if plane["workers"].get("silent"):  # or not heard of yet, since a start just now
            transport.send(calls.list_workers())  # which waits for the control plane's own
            plane = transport.send(calls.get_plane())
        address = transport.url
    trust = _trust(where.location, address)
    if json:
        print_json({"running": True, **plane, "context": context, "address": address, "trust": trust})
        return
    mode = "background (ends when idle)" if plane["mode"] == "embedded" else "standing (ended by gpulayer down)"
    others = [url for url in plane["urls"] if url != address]
    you = plane["you"]
    print_fields(
        [
            ("control plane", address),
            ("context", context),
            ("trusted by", _TRUSTED_BY[trust]),
            ("proxy", str(where.location.proxy or "")),
            ("you are", f"{you['name']} ({you['role']}, token {you['token_id']})"),
            ("token is good", f"until {when(you['expires_at'])}" if you["expires_at"] else "as long as it runs"),
            ("mode", mode),
            ("others reach it", "\n".join(others) or ("" if plane["urls"] else "not: it listens on its machine alone")),
            ("version", plane["version"]),
            ("process", str(plane["pid"])),
            ("state", plane["state_dir"]),
            ("started", when(plane["started_at"])),
            ("read only", "yes: it can't write; see its log" if plane["read_only"] else ""),
            ("workers", _counts(plane["workers"])),
            ("jobs", _counts(plane["jobs"])),
        ]
    )


_TRUSTED_BY: Final = {
    "pin": "the pinned fingerprint",
    "ca": "a certificate authority that this machine trusts",
    "loopback": "being on this machine (plain http on loopback)",
}


def _trust(location: Location, address: str) -> str:
    if not address.startswith("https://"):
        return "loopback"
    return "pin" if location.pins else "ca"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts.items() if count) or "none"
