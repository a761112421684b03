"""The framework checks over the real packages, each in a throw-away environment: ``make frameworks``.

    python -m tests.frameworks [torch jax …]

Prints what each check said and how long it took. Downloads gigabytes, so no other test needs it; what computes there is
the processor, and a GPU where there is one.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from gpulayer.plugins.builtin.frameworks import CHECKS
from gpulayer.worker.check_answers import read_answer
from gpulayer.worker.check_script import run_script

# The second of a name is built for CUDA: without a GPU it has to say why it does not compute.
PACKAGES = {
    "torch": ("torch==2.13.0",),
    "jax": ("jax",),
    "jax-cuda": ("jax", "jax-cuda12-plugin", "jax-cuda12-pjrt"),
    "cupy": ("cupy-cuda12x",),
    "mlx": ("mlx[cpu]" if sys.platform == "linux" else "mlx",),
    "tensorflow": ("tensorflow-cpu",),
    "onnxruntime": ("onnxruntime",),
    "onnxruntime-gpu": ("onnxruntime-gpu",),
}


def main(wanted: list[str]) -> int:
    """1 where one of them does not compute on the processor, though it could."""
    checks = {check.name: check for check in CHECKS}
    is_good = True
    for package in wanted or list(PACKAGES):
        name = package.partition("-")[0]
        with tempfile.TemporaryDirectory(prefix=f"gpulayer-{name}-") as folder:
            python = _environment(Path(folder), PACKAGES[package])
            began_s = time.monotonic()
            ran = asyncio.run(
                run_script(
                    checks[name].script().source,
                    Path(folder) / "run",
                    python=str(python),
                    variables={"PATH": os.environ["PATH"], "HOME": folder},
                )
            )
            took_s = time.monotonic() - began_s
            if ran.failure:
                print(f"{name}: {ran.failure}")
                is_good = False
                continue
            for one in read_answer(name, checks[name].accelerators, ran.out).frameworks:
                says = "computes" if one.usable else one.reason
                print(f"{one.name} {one.version} ({one.build}) on {one.accelerator}: {says}")
                is_good = is_good and (one.usable or one.accelerator != "cpu")
            print(f"  {took_s:.1f} s", flush=True)
    return 0 if is_good else 1


def _environment(folder: Path, packages: tuple[str, ...]) -> Path:
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-cache-dir"]
    subprocess.run([*pip, *packages], check=True)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
