"""Measures the SDK from inside a running program: reads one JSON question a line, answers one JSON line."""

import json
import sys
import time

import gpulayer as gl


def first_log_line() -> float:
    started = time.perf_counter()
    job = gl.submit(["echo", "hello"])
    for _ in job.logs(follow=True):
        break
    taken = time.perf_counter() - started
    job.wait()
    return taken


def batch(jobs: int) -> float:
    specs = [{"command": ["true"]} for _ in range(jobs)]
    started = time.perf_counter()
    accepted = gl.submit_batch(specs)
    taken = time.perf_counter() - started
    if len(accepted) != jobs:
        raise SystemExit(f"{len(accepted)} of {jobs} jobs were accepted")
    return taken


def run(jobs: int) -> float:
    """Two run at a time, first in, first out: the last two are waited for, then all are looked at."""
    specs = [{"command": ["true"]} for _ in range(jobs)]
    started = time.perf_counter()
    accepted = gl.submit_batch(specs)
    for job in accepted[-2:]:
        job.wait()
    taken = time.perf_counter() - started
    states = {job.wait()["state"] for job in accepted}
    if states != {"succeeded"}:
        raise SystemExit(f"not all of {jobs} jobs succeeded: {states}")
    return taken


def main() -> None:
    for line in sys.stdin:
        question = json.loads(line)
        match question["measure"]:
            case "batch":
                seconds = batch(question["jobs"])
            case "run":
                seconds = run(question["jobs"])
            case _:
                seconds = first_log_line()
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
