"""``python -m gpulayer.testing.sim --seed N [--trace]`` or ``--seeds 0:300``: run worlds and tell what happened."""

import argparse
import sys
import time
from collections import Counter

from gpulayer.testing.sim.world import Shape, run


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a run broke a promise; its seed and what happened are on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gpulayer.testing.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--seeds", default="0:100", help="run seeds FROM:TO (default 0:100)")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--workers", type=int, default=Shape().workers)
    parser.add_argument("--jobs", type=int, default=Shape().jobs)
    arguments = parser.parse_args(argv)
    first, last = (int(part) for part in arguments.seeds.split(":"))
    seeds = [arguments.seed] if arguments.seed is not None else range(first, last)
    shape = Shape(workers=arguments.workers, jobs=arguments.jobs)
    began, steps, kinds, failed = time.process_time(), 0, Counter[str](), []
    for seed in seeds:
        try:
            report = run(seed, shape, trace=arguments.trace)
        except AssertionError as error:
            failed.append(seed)
            print(f"seed {seed}: {error}", *getattr(error, "__notes__", ()), sep="\n  ", file=sys.stderr)
            continue
        steps += report.steps
        kinds.update(report.kinds)
        if arguments.trace:
            print("\n".join(report.trace))
            print(report.states)
    seconds = time.process_time() - began
    print("faults: " + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(
        f"{len(seeds)} runs, {steps} steps, {kinds.total()} faults, {len(failed)} failed in {seconds:.1f} s of CPU",
        *failed[:20],
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
