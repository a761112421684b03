"""A folder of installed plugins, good ones and every kind of bad one."""

import os
import subprocess
import sys
from dataclasses import dataclass

from gpulayer.testing.distribution import install_distribution, install_plugin

__all__ = ["BAD", "GOOD", "HEAD", "REGISTERS", "Ended", "command_of", "site_of", "variables_of"]

HEAD = """
from gpulayer.plugins import *
from gpulayer.plugins import hookimpl
GPULAYER_API = "1.0"
"""


GOOD = f"""{HEAD}
class Licences:
    name = "licences"
    def look(self, site):
        return Findings(resources=(("matlab", 2),))

class Cheap:
    name = "cheap-hour"
    lifetime_s = 60.0
    def score(self, batch):
        return [None for _ in batch.pairs]

@hookimpl
def gpulayer_register_probes(ctx):
    return [Licences()]

@hookimpl
def gpulayer_register_scorers(ctx):
    return [Cheap()]
"""


ODD = f"""{HEAD}
import os, threading
os.environ["HOME"] = "/nowhere"
print("hello, the key is " + os.environ["GPULAYER_PLUGIN_ODD_KEY"])
threading.Thread(target=threading.Event().wait, name="odd-thread").start()

class NoPlan:
    name = "no-plan"

class BadName:
    name = "Bad Name"
    def plan(self, attempt, site):
        return None

class Restless:
    name = "restless"
    count = 0
    def plan(self, attempt, site, machine):
        self.count += 1
        return LaunchPlan(str(self.count), (), site.work_dir, {{}}, site.log_path, site.exit_path)

class BadScorer:
    name = "bad"
    lifetime_s = 0
    def score(self, batch):
        return {{}}

class Rude:
    name = "rude"
    lifetime_s = 60
    def score(self, batch):
        return {{}}

class Async:
    name = "async"
    async def look(self, site):
        return None

class Old:
    name = "torch"
    accelerators = ("cuda",)
    def script(self):
        return CheckScript("")

class Future:
    name = "jax"
    accelerators = (Accelerator.CUDA,)
    def script(self):
        return CheckScript("match 1:\\n    case 1: pass")

class Caller:
    scheme = "S3:"
    def fetch(self, uri, site, extra):
        return site.folder

@hookimpl
def gpulayer_register_launchers(ctx):
    return [NoPlan(), BadName(), Restless()]

@hookimpl
def gpulayer_register_scorers(ctx):
    return [BadScorer(), Rude()]

@hookimpl
def gpulayer_register_probes(ctx):
    return [Async()]

@hookimpl
def gpulayer_register_framework_checks(ctx):
    return [Old(), Future()]

@hookimpl
def gpulayer_register_stagers(ctx):
    return [Caller()]

@hookimpl
def gpulayer_register_environments(ctx):
    return None

@hookimpl
def gpulayer_register_providers(ctx):
    raise ValueError("no account for key " + ctx.options["key"])
"""


REGISTERS = "@hookimpl\ndef gpulayer_register_probes(ctx):\n    return []\n"
BAD = {
    "raises": "raise ValueError('no config')",
    "imports": "import not_there",
    "quits": "import sys\nsys.exit(0)",
    "exits": "import os\nos._exit(3)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "old": HEAD.replace("1.0", "0.3") + REGISTERS,
    "mute": REGISTERS.replace("@hookimpl", "from gpulayer.plugins import hookimpl\n@hookimpl"),
    "sulks": HEAD + REGISTERS.replace("return []", "raise RuntimeError('not today')"),
    "asyncs": HEAD + REGISTERS.replace("def", "async def"),
    "file": HEAD + REGISTERS,
}


@dataclass
class Ended:
    code: int
    out: str
    err: str


def site_of(folder):
    """Install them all there. Returns the folder."""
    install_plugin(folder, "good", GOOD, version="2.1")
    install_plugin(folder, "odd", ODD)
    for name, source in BAD.items():
        install_plugin(folder, name, source)
    for name in ("one", "two"):
        module = f"{name}_same"
        install_distribution(folder, f"gpulayer-{name}", modules={module: HEAD + REGISTERS}, plugins={"same": module})
    commands = {"hello": "hello_cli:app", "bare": "hello_cli"}
    install_distribution(folder, "gpulayer-hello", modules={"hello_cli": "def app(): pass"}, commands=commands)
    return folder


def variables_of(site):
    """Of a process that finds what is installed there."""
    path = f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path, "GPULAYER_PLUGIN_ODD_KEY": "sesame-open"}


def command_of(site):
    """``run(*argv, …)``: ``gpulayer`` with these arguments and variables, where that is installed."""

    def run(*argv, plane=None, **variables):
        env = {**variables_of(site), **variables}
        env |= plane.environment if plane is not None else {}
        done = subprocess.run(
            [sys.executable, "-P", "-m", "gpulayer.cli", *argv],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    return run
