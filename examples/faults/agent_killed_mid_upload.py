"""The worker agent dies when half of a job's outputs are sent: the next one sends the rest."""

import hashlib
import sys

from stage import Stage

SCRIPT = "yes made | head -c 20000000 > big.bin; for i in $(seq 100); do echo $i > small$i; done"


def main() -> int:
    with Stage() as stage:
        stage.plane_alone()
        # A fault point makes it die exactly there: the small files are sent, the big one is not.
        worker = stage.join("desk", faults="agent.in_outputs")
        job_id = stage.run("submit", "--detach", "--", "sh", "-c", SCRIPT).strip()
        worker.wait(60)
        stage.say(f"the agent has died: {worker.returncode}")
        stage.say(f"the job is {stage.job(job_id)['state']}")
        stage.join("desk")
        job = stage.ended(job_id)
        stage.run("job", "result", job_id, "--download", "--dest", "home")
        home = stage.folder / "home"
        sizes = [file.stat().st_size for file in home.iterdir()]
        stage.say(f"{len(sizes)} files came home, {sum(sizes):,} bytes")
        expected = hashlib.sha256(b"made\n" * 4_000_000).hexdigest()
        stage.check("the agent died of kill -9", worker.returncode == -9)
        stage.check("all 101 files came home", len(sizes) == 101)
        stage.check("the big one is whole", hashlib.sha256((home / "big.bin").read_bytes()).hexdigest() == expected)
        stage.check("it ran once: one attempt", len(job["attempts"]) == 1)
        stage.check("it succeeded", job["state"] == "succeeded")
        return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
