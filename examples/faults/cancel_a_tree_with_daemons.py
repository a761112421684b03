"""Cancel of a job that has done all it can to leave something behind: nothing of it survives, nothing else is hit."""

import subprocess
import sys
import time

from stage import Stage, is_alive

# A child in the background, one that ignores SIGTERM, one under nohup, one in a session of its own, and a daemon as
# the books say: two forks, a session, no tie to anything.
PROGRAM = """
import os, signal, subprocess, sys, time

def record(name, pid):
    with open(os.path.join(sys.argv[1], name + ".part"), "w") as file:
        file.write(str(pid))
    os.rename(file.name, os.path.join(sys.argv[1], name))

record("the program", os.getpid())
record("a child", subprocess.Popen(["sleep", "600"]).pid)
record("one that ignores SIGTERM", subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]).pid)
record("one under nohup", subprocess.Popen(["nohup", "sleep", "600"]).pid)
record("one in its own session", subprocess.Popen(["setsid", "sleep", "600"]).pid)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        record("a daemon", os.getpid())
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)

def saved(*_):
    open("saved.txt", "w").write("written in the grace time")
    sys.exit(0)

signal.signal(signal.SIGTERM, saved)
print("ready", flush=True)
time.sleep(600)
"""


def main() -> int:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        with Stage() as stage:
            (stage.folder / "app").mkdir()
            (stage.folder / "app" / "leave_behind.py").write_text(PROGRAM)
            pids = stage.folder / "pids"
            pids.mkdir()
            command = ("--source", "app", "--", "python3", "leave_behind.py", str(pids))
            job_id = stage.run("submit", "--detach", "--grace", "2s", *command).strip()
            names = ["the program", "a child", "one that ignores SIGTERM", "one under nohup", "one in its own session"]
            names.append("a daemon")
            stage.until(lambda: all((pids / name).exists() for name in names), "the tree stands")
            stage.until(lambda: stage.ask("job", "logs", job_id) == "ready\n", "it is ready")
            tree = {name: int((pids / name).read_text()) for name in names}
            for name, pid in tree.items():
                stage.say(f"{'runs' if is_alive(pid) else 'GONE'}  {name}")
            asked = time.monotonic()
            stage.run("job", "cancel", job_id)
            job = stage.ended(job_id)
            took_s = time.monotonic() - asked
            for name, pid in tree.items():
                stage.say(f"{'RUNS' if is_alive(pid) else 'gone'}  {name}")
            stage.check("nothing of the tree is left", not any(map(is_alive, tree.values())))
            stage.check("a process that is not the job's runs on", bystander.poll() is None)
            stage.check(f"the job is {job['state']}", job["state"] == "cancelled")
            stage.check("within the grace time and 5 s", took_s < 2 + 5)
            stage.check(
                "what it wrote in the grace time came home", [o["path"] for o in job["outputs"]] == ["saved.txt"]
            )
            return stage.verdict()
    finally:
        bystander.kill()
        bystander.wait()


if __name__ == "__main__":
    sys.exit(main())
