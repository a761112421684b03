"""The SDK against this machine's own control plane and worker: folders out, folders home."""

import asyncio
import os

import pytest

import gpulayer as gl
from gpulayer.client import calls
from gpulayer.client.connect import Settings
from gpulayer.client.embedded import find_plane, wait_until_gone
from gpulayer.client.location import Local
from gpulayer.client.transport import Transport
from gpulayer.errors import BadRequest, UsageError


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    state = tmp_path_factory.mktemp("plane") / "state"
    yield Settings(Local(state), dict(os.environ), gl.__version__, "gpulayer/test", idle_exit_s=120)
    found = find_plane(state)
    if found is not None:
        with Transport(found.location) as transport:
            transport.send(calls.shutdown_plane())
        assert wait_until_gone(found, state, deadline_s=30)


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    (folder / "data").mkdir(parents=True)
    (folder / "run.sh").write_text(
        "#!/bin/sh\necho working\ntr a-z A-Z < data/in.txt > out.txt\nhead -c 3000000 data/big > big.out\n"
        'mkdir sub; echo "$NAME" > sub/env; exit 0\n'
    )
    (folder / "run.sh").chmod(0o755)
    (folder / "data" / "in.txt").write_text("hello\n")
    (folder / "data" / "big").write_bytes(os.urandom(3_000_000))
    return folder


def check_home(home, app):
    assert (home / "out.txt").read_text() == "HELLO\n"
    assert (home / "sub" / "env").read_text() == "x\n"
    assert (home / "big.out").read_bytes() == (app / "data" / "big").read_bytes()


def test_a_folder_goes_out_and_what_it_made_comes_home(settings, app, tmp_path):
    seen = []
    with gl.Client(settings=settings) as client:
        job = client.submit(["./run.sh"], source=app, env={"NAME": "x"}, progress=seen.append)
        assert b"".join(job.logs(follow=True)) == b"working\n"
        assert job.result(timeout=60)["source"]["files"] == 3
        check_home(job.download(tmp_path / "home"), app)
        job.download(tmp_path / "home")
        assert {output["path"] for output in job.outputs()} == {"big.out", "out.txt", "sub/env"}
        sent = seen[-1]
        assert sent.done_bytes == sent.total_bytes > 3_000_000
        seen.clear()
        again = client.submit(["./run.sh"], source=app, progress=seen.append)
        assert seen == []
        assert again.wait(timeout=60)["state"] == "succeeded"


def test_the_async_client_does_the_same(settings, app, tmp_path):
    async def main():
        async with gl.AsyncClient(settings=settings) as client:
            job = await client.submit(["./run.sh"], source=app, env={"NAME": "x"})
            log = b"".join([piece async for piece in job.logs(follow=True)])
            await job.result(timeout=60)
            return log, await job.download(tmp_path / "home")

    log, home = asyncio.run(main())
    assert log == b"working\n"
    check_home(home, app)


def test_a_request_that_can_not_be_meant_is_refused_before_a_source_travels(settings, app):
    with gl.Client(settings=settings) as client:
        with pytest.raises(BadRequest, match="torch"):
            client.submit(["./run.sh"], source=app, frameworks=["torch==what"])
        with pytest.raises(UsageError, match="does not exist"):
            client.submit(["./run.sh"], source=app / "nowhere")


def test_a_batch_runs_and_a_cancelled_job_ends(settings):
    with gl.Client(settings=settings) as client:
        jobs = client.submit_batch([["sh", "-c", f"exit {code}"] for code in (0, 7)])
        assert [job.wait(timeout=60)["exit_code"] for job in jobs] == [0, 7]
        sleeper = client.submit(["sleep", "60"])
        sleeper.cancel(grace=1)
        assert sleeper.wait(timeout=60)["state"] == "cancelled"


def test_a_local_job_finds_the_submitters_programs(settings, tmp_path):
    tool = tmp_path / "bin" / "my-own-tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    mine = Settings(settings.where, {**settings.environment, "PATH": path}, gl.__version__, "gpulayer/test")
    with gl.Client(settings=mine) as client:
        job = client.submit(["my-own-tool"])
        assert b"".join(job.logs(follow=True)) == b"found\n"
