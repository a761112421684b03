"""A team's first day, end to end, through the real program: `make demo-team`.

Three machines that have nothing in common but the net between them: a server, a desk behind a home router, a laptop on
a line of 50 ms each way. They are network namespaces of this machine, so this needs root on Linux; nothing leaves
them. Everything printed after a ``$`` is a command you can type, what stands before it says on which machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.net.lab import Lab, missing  # noqa: E402 - found only now
from tests.net.middle import MiddleBox  # noqa: E402
from tests.net.town import Invitation, Place, Town, read_invitation, until  # noqa: E402

DEADLINE_S = 90


class DemoFailed(Exception):
    pass


def tell(text: str) -> None:
    print(f"\n# {text}", flush=True)


def type_in(place: Place, line: str, *, code: int = 0) -> None:
    """Run it there as at a terminal. Raises DemoFailed where it ends with another code."""
    print(f"\n{place.name}$ {line}", flush=True)
    process = place.shell(line, stdout=None, stderr=subprocess.STDOUT)
    if process.wait(DEADLINE_S) != code:
        raise DemoFailed(f"{line} ended with {process.returncode}, not with {code}")
    if code:
        print(f"(exit code {code})", flush=True)


def type_and_read(place: Place, line: str) -> str:
    """The same, for what prints a token. Returns all that it printed."""
    print(f"\n{place.name}$ {line}", flush=True)
    ended = place.end(place.shell(line, stderr=subprocess.STDOUT))
    print(ended.out.decode(), end="", flush=True)
    if ended.code != 0:
        raise DemoFailed(f"{line} ended with {ended.code}")
    return ended.out.decode()


def export(place: Place, variables: dict[str, str]) -> None:
    print(f"\n{place.name}$ export {' '.join(f'{name}={value}' for name, value in variables.items())}", flush=True)
    place.variables.update(variables)


def unset(place: Place) -> None:
    print(f"\n{place.name}$ unset {' '.join(place.variables)}", flush=True)
    place.variables.clear()


def check(what: str, is_so: bool) -> None:
    print(f"  {'yes' if is_so else 'NO '}  {what}", flush=True)
    if not is_so:
        raise DemoFailed(f"it is not so: {what}")


def start(town: Town) -> Invitation:
    tell("The server: one command. It prints a line for workers and a line for laptops.")
    return read_invitation(type_and_read(town.server, "gpulayer up --no-worker --detach"))


def add_desk(town: Town, desk: Place, invitation: Invitation) -> None:
    tell("The desk has a private address behind a home router. The first line is pasted there.")
    print(f"\n{desk.name}$ gpulayer join {' '.join(invitation.join)}", flush=True)
    desk.join(*invitation.join)
    town.ready(desk)
    until(lambda: desk.says("\n"), "it says that it has joined")
    print(desk.log.read_text(), end="", flush=True)


def work(town: Town, laptop: Place, invitation: Invitation) -> None:
    tell("The laptop: the second line is pasted there, and kept under a name.")
    export(laptop, dict(invitation.client))
    type_in(laptop, "gpulayer context add lab")
    unset(laptop)
    type_in(laptop, "gpulayer worker list")
    tell("A folder goes to the desk, output streams back, the file that was made comes home.")
    shutil.copytree(ROOT / "examples/wordcount", laptop.here / "wordcount")
    type_in(laptop, "gpulayer submit --source wordcount -- python3 wordcount.py")
    type_in(
        laptop, "gpulayer submit -- sh -c 'for epoch in 1 2 3; do echo epoch $epoch on $(hostname); sleep 0.5; done'"
    )
    type_in(laptop, "head -n 3 gpulayer_runs/*/counts.csv")
    newest, oldest = town.jobs()
    check("both jobs ran on the desk, once", all(_ran_on(job) == ["desk"] for job in (newest, oldest)))
    check("the record says who submitted them", newest["submitted_by"]["name"] == "client")
    check("nobody can call the desk from outside", not _can_call(town.server, "203.0.113.20"))


def read_only(town: Town, laptop: Place, invitation: Invitation) -> None:
    tell("A colleague may look on. They get a token that reads, and nothing else.")
    printed = type_and_read(town.server, "gpulayer token create --role reader --name bob")
    (token,) = (word for word in printed.split() if word.startswith("glc_"))
    export(laptop, {**invitation.client, "GPULAYER_TOKEN": token})
    type_in(laptop, "gpulayer job list")
    type_in(laptop, "gpulayer submit -- echo mine", code=4)
    unset(laptop)
    check("the reader's job is not there", len(town.jobs()) == 2)


def be_in_the_middle(town: Town, laptop: Place, box: MiddleBox) -> None:
    tell("Somebody on the laptop's line takes the connections over, with a certificate like the server's.")
    type_in(laptop, "gpulayer submit -- echo hello", code=5)
    check("the connection went to them", box.connections > 0)
    check("they saw no token, nor any other byte of it", box.heard == b"")
    box.steps_aside()
    type_in(laptop, "gpulayer submit -- echo hello")


def _ran_on(job: dict) -> list[str]:
    return [node["worker"] for attempt in job["attempts"] for node in attempt["nodes"]]


def _can_call(place: Place, address: str) -> bool:
    code = f"import socket; socket.create_connection(({address!r}, 22), timeout=1)"
    return place.end(place.popen(sys.executable, "-c", code)).code == 0


def tell_story(scratch: Path) -> None:
    with Lab() as lab:
        town = Town(lab, scratch)
        try:
            invitation = start(town)
            desk, _router = town.desk()
            add_desk(town, desk, invitation)
            laptop, exchange = town.laptop(delay_ms=50)
            work(town, laptop, invitation)
            read_only(town, laptop, invitation)
            box = MiddleBox(town, exchange, scratch / "middle")
            try:
                be_in_the_middle(town, laptop, box)
            finally:
                box.close()
        finally:
            town.close()


def main() -> int:
    if why := missing():
        print(f"demo-team: {why}", file=sys.stderr)
        return 1
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpulayer-demo-", ignore_cleanup_errors=True) as scratch:
        try:
            tell_story(Path(scratch))
        except (DemoFailed, AssertionError) as failure:
            print(f"\ndemo-team: {failure}", file=sys.stderr)
            return 1
    print(f"\ndemo-team: a server, a worker and a laptop became a team in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
