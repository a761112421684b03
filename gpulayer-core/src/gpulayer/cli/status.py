"""``gpulayer status``: which control plane commands go to, and how it is. Starts nothing."""

from gpulayer.cli.console import print_fields, print_json, print_line
from gpulayer.cli.nouns import JsonFlag, StateOption, TargetOption, command_app, settings_for
from gpulayer.cli.records import when
from gpulayer.client import calls
from gpulayer.client.embedded import find_plane
from gpulayer.client.location import Configured, Local
from gpulayer.client.transport import Transport

app = command_app()


@app.command()
def status(*, target: TargetOption = "", state: StateOption = "", json: JsonFlag = False) -> None:
    """Which control plane commands go to, and how it is. Exits with 5 when a configured one does not answer."""
    settings = settings_for(target, state=state)
    where = settings.where
    if isinstance(where, Local):
        endpoint = find_plane(where.state_dir)
        if endpoint is None:
            if json:
                print_json({"running": False, "state_dir": str(where.state_dir)})
            else:
                print_line(f"no control plane runs here; the next submit starts one (state in {where.state_dir})")
            return
        where = Configured(endpoint.location)
    with Transport(where.location, client=settings.client, retry_for_s=settings.retry_for_s) as transport:
        plane = transport.send(calls.get_plane())
    if json:
        print_json({"running": True, **plane})
        return
    mode = "background (ends when idle)" if plane["mode"] == "embedded" else "standing (ended by gpulayer down)"
    print_fields(
        [
            ("control plane", plane["url"]),
            ("mode", mode),
            ("reached from", "this machine; others through a forwarded port only (ssh -L, ssh -R)"),
            ("version", plane["version"]),
            ("process", str(plane["pid"])),
            ("state", plane["state_dir"]),
            ("started", when(plane["started_at"])),
            ("read only", "yes: it can't write; see its log" if plane["read_only"] else ""),
            ("workers", _counts(plane["workers"])),
            ("jobs", _counts(plane["jobs"])),
        ]
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in counts.items() if count) or "none"
