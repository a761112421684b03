"""All processes of a worker die at once, and it is not back in time: its job runs again on another worker.

The machine stays up. (A loss of power would take the program along.) So the program is left over, with nobody to end
it, until the worker is started again, and that is shown as well. The lease is 3 s instead of 30, to spare the wait.
"""

import sys

from stage import Stage, is_alive

# The first attempt would run for ten minutes, a later one for a moment.
SCRIPT = 'echo $$ > "$PIDS/$GPULAYER_ATTEMPT"; [ $GPULAYER_ATTEMPT -gt 1 ] || sleep 600; echo done'


def main() -> int:
    with Stage(lease="3s") as stage:
        stage.plane_alone()
        desk = stage.join("desk")
        pids = stage.folder / "pids"
        pids.mkdir()
        job_id = stage.run("submit", "--detach", "--env", f"PIDS={pids}", "--", "sh", "-c", SCRIPT).strip()
        program = int(stage.until(lambda: (pids / "1").exists() and (pids / "1").read_text(), "it has begun"))
        stage.until(lambda: stage.job(job_id)["state"] == "running", "it is known to run")
        stage.join("shelf")
        floor = stage.floor(stage.folder / "desk")
        stage.kill_at_once({"its watchdog": floor["watchdog"], "its spawner": floor["spawner"], "its agent": desk.pid})
        desk.wait(60)
        job = stage.ended(job_id)
        for attempt in job["attempts"]:
            why = f" ({attempt['evidence']})" if attempt["evidence"] else ""
            stage.say(f"attempt {attempt['number']} on {attempt['nodes'][0]['worker']}: {attempt['ended_by']}{why}")
        is_left = is_alive(program)
        stage.join("desk")
        stage.until(lambda: not is_alive(program), "what was left over is gone")
        ran_on = [attempt["nodes"][0]["worker"] for attempt in job["attempts"]]
        stage.check("the job ran again, on the other worker", ran_on == ["desk", "shelf"])
        stage.check("it succeeded there", job["state"] == "succeeded")
        stage.check("the program of the first attempt had been left over", is_left)
        stage.check("it is ended once its worker is back", not is_alive(program))
        return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
