"""A control plane that is killed while it tells an event sink: nothing is left out, and what comes again has its id."""

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from gpulayer import faults
from gpulayer.clock import SystemClock
from gpulayer.engine.events import JobSubmitted
from gpulayer.ids import JobId
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.server import PlaneSettings
from gpulayer.server.announcing import Announcer, Pace
from gpulayer.server.plane import Plane
from gpulayer.server.plugins import no_plugins
from gpulayer.server.store import JobRow, Side
from gpulayer.spec.job import JobEntry, JobSpec
from gpulayer.wire.convert import spec_to_wire

folder, armed, *names = sys.argv[1:]
told = Path(folder) / "told"
done = asyncio.Event()


class Sink:
    name, kinds = "file", None

    def tell(self, event):
        with told.open("a") as file:
            file.write(f"{event.id} {event.job.name}\\n")
        if event.job.name == names[-1]:
            loop.call_soon_threadsafe(done.set)


def job(name):
    spec = JobSpec(command=("true",), name=name)
    return JobRow(JobId(name.ljust(16, "0")), "me", "me", "test", 1, spec, spec_to_wire(spec))


async def main():
    global loop
    loop = asyncio.get_running_loop()
    plane = Plane(PlaneSettings(state_dir=Path(folder)), host=no_plugins(SystemClock()))
    await plane.start()
    host = Host(Registry(event_sinks=(Registered("kept", Sink(), "file"),)), Guard(clock=SystemClock()), lambda: ())
    announcer = Announcer(plane, host, pace=Pace(save_s=3600))
    await announcer.start()
    faults.arm(armed)
    rows = [job(name) for name in names]
    entries = [JobEntry.of(row.id, row.owner, row.spec) for row in rows]
    makes = [lambda at, entry=entry: JobSubmitted(at, entry) for entry in entries]
    await plane.driver.submit(*makes, side=Side(jobs=tuple(rows)))
    async with asyncio.timeout(20):
        await done.wait()
    await announcer.close()
    await plane.close()
    host.close()


asyncio.run(main())
"""


def live(folder: Path, armed: str, *names: str) -> tuple[int, list[tuple[str, str]]]:
    """A life of a control plane to which these jobs are submitted: how it ended, and what was told in it."""
    told = folder / "told"
    told.write_text("", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, armed, *names], capture_output=True, timeout=120, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    lines = told.read_text(encoding="utf-8").splitlines()
    return done.returncode, [(line.split()[0], line.split()[1]) for line in lines]


def test_a_control_plane_that_dies_between_telling_and_writing_it_down_tells_it_again_and_leaves_nothing_out(tmp_path):
    code, first = live(tmp_path, "sinks.after_telling:3", "a", "b", "c", "d", "e")
    assert (code, [name for _, name in first]) == (-signal.SIGKILL, ["a", "b", "c"])
    code, second = live(tmp_path, "", "f")
    assert (code, [name for _, name in second]) == (0, ["a", "b", "c", "d", "e", "f"])
    assert second[:3] == first
    assert len({id_ for id_, _ in second}) == len(second)
    code, third = live(tmp_path, "", "g")
    assert (code, [name for _, name in third]) == (0, ["g"])
