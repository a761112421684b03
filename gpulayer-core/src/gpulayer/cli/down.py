"""``gpulayer down``: the control plane of this machine and its own worker end; joined workers go on and wait."""

from gpulayer.cli.console import say
from gpulayer.cli.nouns import TargetOption, command_app, settings_for
from gpulayer.client import calls
from gpulayer.client.embedded import find_plane, wait_until_gone
from gpulayer.client.location import Configured, Local
from gpulayer.client.transport import Transport
from gpulayer.errors import TimedOut

app = command_app()

_DEADLINE_S = 45.0


@app.command()
def down(*, target: TargetOption = "") -> None:
    """End the control plane and its own worker. Queued jobs stay in its state; joined workers go on and wait."""
    settings = settings_for(target)
    match settings.where:
        case Configured(url, token):
            with Transport(url, token, client=settings.client, retry_for_s=settings.retry_for_s) as transport:
                transport.send(calls.shutdown_plane())
            say(f"the control plane at {url} ends")
        case Local(state_dir):
            endpoint = find_plane(state_dir)
            if endpoint is None:
                say("no control plane runs here")
                return
            with Transport(endpoint.url, endpoint.token, client=settings.client) as transport:
                transport.send(calls.shutdown_plane())
            if not wait_until_gone(endpoint, state_dir, deadline_s=_DEADLINE_S):
                raise TimedOut(
                    f"the control plane (process {endpoint.pid}) still runs after {_DEADLINE_S:.0f} s",
                    hint=f"see {state_dir / 'plane.log'}",
                )
            say("the control plane has ended")
