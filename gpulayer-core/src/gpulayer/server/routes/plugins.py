"""Plugins, for people: the control plane's own, and what each worker has told of its own."""

from typing import Final

from starlette.responses import Response

from gpulayer.engine import State
from gpulayer.ids import WorkerId
from gpulayer.plugins.reporting import plugin_to_wire
from gpulayer.server.submission import await_local_worker
from gpulayer.server.web import READ, Call, Route, json_response
from gpulayer.wire.plugins import PluginPage, PluginRecord

__all__ = ["ROUTES"]


async def list_plugins(call: Call) -> Response:
    """The control plane's, then each worker's, all on one page; a worker that has not reported since the control plane
    started has none. A plane that has just started waits for its own plugins and its own worker first."""
    plane = call.plane
    await plane.plugins_settled()
    await await_local_worker(plane)
    records = await plane.in_thread(plane.plugins.records)  # it looks whether they are still installed
    found: list[PluginRecord] = [{"where": "plane", **plugin_to_wire(record)} for record in records]
    for name, worker_id in await plane.driver.read(_workers):
        told = sorted(plane.worker_plugins.get(worker_id, ()), key=lambda fields: fields["name"])
        found += [{"where": f"worker {name}", **fields} for fields in told]
    page: PluginPage = {"plugins": found, "next": None}
    return json_response(page)


def _workers(state: State) -> list[tuple[str, WorkerId]]:
    return sorted((worker.name, worker.id) for worker in state.workers.values())


ROUTES: Final = (
    Route(
        "GET",
        "/v1/plugins",
        list_plugins,
        READ,
        "The plugins of the control plane and of its workers, and how they are",
        reply=PluginPage,
    ),
)
