"""Long runs of tests that prove nothing of PROMISES alone: a search for hostile inputs, kills at random moments."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.soak.frame import REST, Proof, Say, Tally

ROOT: Final = Path(__file__).parents[2]
PERCENT: Final = 100  # a run of this proof is a hundredth of the full numbers
KILLS: Final = "GPULAYER_SOAK_KILLS"  # of those at random moments; unless set, 1,000 at full scale
_OUTCOME: Final = re.compile(r"^(?P<test>\S+::.+?) (?P<outcome>PASSED|FAILED|ERROR|SKIPPED)")


def prove(runs: int, *, seed: int, say: Say) -> Tally:
    """All tests that are marked ``soak``, with their numbers scaled down to ``runs`` hundredths."""
    argv = [sys.executable, "-m", "pytest", "-v", "-m", "soak", "--timeout=7200", "-p", "no:cacheprovider"]
    argv += [f"--seed={seed}", f"--scale={runs / PERCENT:g}"]
    argv += [f"--kills={os.environ[KILLS]}"] if os.environ.get(KILLS) else []
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "search"}
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as tests:
        assert tests.stdout is not None
        try:
            return read(tests.stdout, say, again=f"pytest -m soak --seed={seed}")
        except BaseException:
            tests.terminate()
            raise


def read(lines: Iterable[str], say: Say, *, again: str) -> Tally:
    """What pytest says of each test as it ends."""
    tally, tail = Tally(), []
    for line in lines:
        tail = [*tail, line.rstrip()][-40:]
        if (found := _OUTCOME.match(line)) is None:
            continue
        tally.runs += 1
        say(f"{tally.runs} tests, the last was {found['test'].rpartition('::')[2]}")
        if found["outcome"] in ("FAILED", "ERROR"):
            tally.violations.append(f"{found['test']} failed\nagain: {again} {found['test'].partition('[')[0]}")
    if not tally.runs:
        tally.violations.append("no test ran:\n" + "\n".join(tail))
    return tally


PROOFS: Final = [Proof(REST, "hostile inputs, kills at random, locks", prove, 0, PERCENT, "tests", silence_s=7200)]
