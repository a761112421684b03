"""A worker whose control plane says that it is busy: it comes again when it was told to, and tells nobody of a loss."""

import asyncio
import json
import random

import pytest

from gpulayer.clock import SystemClock
from gpulayer.errors import Overloaded
from gpulayer.worker.disk import Reserve
from gpulayer.worker.http import Response
from gpulayer.worker.identity import IdentityStore
from gpulayer.worker.session import Endpoints, Plane, is_passing

BUSY = json.dumps({"error": {"code": "overloaded", "message": "busy", "hint": "", "blame": "infrastructure"}}).encode()


class Http:
    """Answers every request so."""

    def __init__(self, retry_after):
        self.headers = {} if retry_after is None else {"retry-after": retry_after}
        self.asked = []

    async def request(self, address, method, path, **_):
        self.asked.append(str(address))
        return Response(503, self.headers, BUSY)


@pytest.mark.parametrize(
    ("said", "least_s", "most_s"), [("3", 3, 4.5), ("7200", 10, 15), ("tomorrow", 1, 1.5), (None, 1, 1.5)]
)
def test_a_worker_comes_again_when_a_busy_control_plane_told_it_to(tmp_path, said, least_s, most_s):
    http = Http(said)
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    plane = Plane(
        http,
        Endpoints(urls=urls),
        IdentityStore(tmp_path, reserve=Reserve(tmp_path)),
        clock=SystemClock(),
        random=random.random,
        on_session=lambda _: None,
    )
    for _ in range(2):
        with pytest.raises(Overloaded) as refused:
            asyncio.run(plane.enrol({}, token="gle_abc_def", name="box", default_name="box"))
    waits = [plane.backoff_s(1, after=refused.value) for _ in range(20)]
    assert all(least_s <= wait <= most_s for wait in waits)
    assert len(set(waits)) > 1
    assert is_passing(refused.value)
    assert set(http.asked) == {urls[0]}, "it is there: nobody else is asked"
