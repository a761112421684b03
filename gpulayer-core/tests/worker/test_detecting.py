"""What looks at a machine says what it waits for; it loads nothing of vendors and frameworks into its own process."""

import json
import subprocess
import sys

from gpulayer.plugins.settings import PluginSettings
from gpulayer.worker.detecting import detect
from tests.nvidia import FakeSmi, row

LOOK = """
import json, os, sys
from gpulayer.plugins.settings import PluginSettings
from gpulayer.worker.detecting import detect
import gpulayer.worker.life
found = detect(environment=dict(os.environ), plugins=PluginSettings.of(os.environ), python=sys.executable)
there = [[one.device, one.pid] for one in found.processes or ()]
print(json.dumps([[device.uuid for device in found.facts.devices], there, sorted(found.checked), sorted(sys.modules)]))
"""
TRAP = "open(__file__ + '.pids', 'a').write(f'{__import__(\"os\").getpid()}\\n')\nraise ImportError('a trap')\n"
THEIRS = ("pynvml", "amdsmi", "torch", "jax", "jaxlib", "cupy", "mlx", "tensorflow", "onnxruntime")


def test_nothing_of_vendors_and_frameworks_is_imported_into_a_worker(tmp_path):
    fake = FakeSmi(tmp_path / "bin", rows=[row(0, "GPU-1", "NVIDIA L4", bus="01")], apps="GPU-1, 4711, 100\n")
    (tmp_path / "libnvidia-ml.so.1").touch()  # before this machine's own; it can't be loaded
    traps = tmp_path / "traps"
    traps.mkdir()
    for name in THEIRS:
        (traps / f"{name}.py").write_text(TRAP)
    script = f"import sys; sys.path.insert(0, {str(traps)!r}); sys.dont_write_bytecode = True\n{LOOK}"
    (tmp_path / "look.py").write_text(script + "print(os.getpid())\n")
    done = subprocess.run(
        [sys.executable, "-P", str(tmp_path / "look.py")],
        env={"PATH": str(fake.folder), "HOME": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
        | {"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told, own = done.stdout.splitlines()
    devices, there, checked, modules = json.loads(told)
    assert (devices, there) == (["GPU-1"], [["GPU-1", 4711]])
    assert {"torch", "jax"} <= set(checked)
    assert not {name.partition(".")[0] for name in modules}.intersection(THEIRS)
    tried = {pid for path in traps.glob("*.pids") for pid in path.read_text().split()}
    assert own not in tried  # an import that failed leaves no module behind


def test_who_waits_is_told_which_frameworks_it_waits_for(tmp_path):
    """A torch whose import ends when that was told, and not before."""
    (tmp_path / "packages").mkdir()
    go_on = tmp_path / "go-on"
    hanging = f"import os, time\nwhile not os.path.exists({str(go_on)!r}):\n    time.sleep(0.01)\nraise ImportError\n"
    (tmp_path / "packages/torch.py").write_text(hanging)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    told = []

    def now(what):
        told.append(what)
        if what.startswith("waiting for torch: "):
            go_on.touch()

    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    detect(environment=environment, plugins=PluginSettings(), python=str(python), now=now, tell_every_s=0.05)
    assert go_on.exists(), told
    assert told[0].startswith("looking at the machine, 10 s at most")
    assert any(what.startswith(f"computing with the frameworks of {python}, 60 s at most") for what in told)
