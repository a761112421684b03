"""A short film, rendered as an array of one frame each, then joined here.

    python examples/render/film.py [--frames 24] [--at-once 0] [--size 320x180] [--tracer any] [--dest film]

Where some frames fail the others are kept; run it again with those that are missing rendered by hand, or all anew.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import gpulayer as gl

HERE = Path(__file__).parent


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Render a short film as an array.")
    parser.add_argument("--frames", type=int, default=24, metavar="N")
    parser.add_argument("--at-once", type=int, default=0, metavar="M", help="0: as many as there is room for")
    parser.add_argument("--size", default="320x180", metavar="WxH")
    parser.add_argument("--tracer", default="any", choices=["any", "python", "povray"])
    parser.add_argument("--dest", type=Path, default=Path("film"))
    options = parser.parse_args()
    at_once = f"%{options.at_once}" if options.at_once else ""
    job = gl.submit(
        ["python3", "render.py", "--size", options.size, "--tracer", options.tracer],
        source=HERE,
        array=f"{options.frames}{at_once}",
        outputs=["frames/*.png"],
        name="film",
    )
    print(f"job {job.id}: {options.frames} frames", flush=True)  # it may take a while
    record = job.wait()
    job.download(options.dest)
    if record["state"] != "succeeded":
        failed = ", ".join(str(element["index"]) for element in job.elements(failed=True))
        print(f"{record['state']}: frames {failed} failed; those that came home are in {options.dest}", file=sys.stderr)
        return 1
    joined = [sys.executable, str(HERE / "join.py"), str(options.dest / "frames"), str(options.dest / "film")]
    return subprocess.run(joined, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
