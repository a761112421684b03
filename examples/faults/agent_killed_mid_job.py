"""The worker agent dies in the middle of a job: the program runs on, and its output and exit code arrive whole."""

import sys

from stage import Stage

SCRIPT = 'for i in $(seq 20); do echo "line $i"; sleep 0.1; done; exit 7'


def main() -> int:
    with Stage() as stage:
        submit = stage.start("submit", "--", "sh", "-c", SCRIPT)
        assert submit.stdout is not None
        first = submit.stdout.readline()
        stage.say(first.decode().strip())
        before = stage.agent()
        stage.kill("the worker agent", before)
        rest, _ = submit.communicate(timeout=60)
        stage.say(f"… and {len(rest.splitlines())} lines more; exit code {submit.returncode}")
        (job,) = stage.jobs()
        stage.check("every line came once, in order", first + rest == b"".join(b"line %d\n" % n for n in range(1, 21)))
        stage.check("the exit code is the program's own", submit.returncode == 7)
        stage.check("it ran once: one attempt", len(job["attempts"]) == 1)
        stage.check("another agent looks after it now", stage.agent() != before)
        return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
