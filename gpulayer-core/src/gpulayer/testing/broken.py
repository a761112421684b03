"""Plugins that are wrong in one way each, as source text: what a host has to survive."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["BROKEN"]

_GOOD: Final = 'from gpulayer.plugins import hookimpl\nGPULAYER_API = "1.0"\n'


def _registers(what: str) -> str:
    return f"{_GOOD}@hookimpl\ndef gpulayer_register_probes(ctx):\n    {what}\n"


def _looks(what: str) -> str:
    return (
        f"{_GOOD}import time\n"
        "class Bad:\n"
        '    name = "bad"\n'
        f"    def look(self, site):\n        {what}\n"
        "@hookimpl\ndef gpulayer_register_probes(ctx):\n    return [Bad()]\n"
    )


BROKEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        # at import
        "raises": 'raise RuntimeError("not today")\n',
        "no_syntax": "def (\n",
        "lacks": "import a_module_that_nobody_has\n",
        "exits": "import sys\nsys.exit(3)\n",
        "hangs": "import time\ntime.sleep(3600)\n",
        "dies": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "moves": _GOOD + 'import os\nos.chdir("/")\n',
        # by what it says of itself
        "no_api": "from gpulayer.plugins import hookimpl\n",
        "later_api": 'GPULAYER_API = "2.0"\n',
        "nonsense_api": 'GPULAYER_API = "the newest"\n',
        # by the form of its hooks
        "unknown_hook": _GOOD + "@hookimpl\ndef gpulayer_register_wheels(ctx):\n    return []\n",
        "async_hook": _GOOD + "@hookimpl\nasync def gpulayer_register_probes(ctx):\n    return []\n",
        "defaulted_hook": _GOOD + "@hookimpl\ndef gpulayer_register_probes(ctx=None):\n    return []\n",
        "keyword_hook": _GOOD + "@hookimpl\ndef gpulayer_register_probes(*, ctx):\n    return []\n",
        # at registration
        "register_raises": _registers('raise RuntimeError("not today")'),
        "register_exits": _registers("raise SystemExit(3)"),
        "register_nothing": _registers("return None"),
        "register_nonsense": _registers('return ["a probe"]'),
        "register_endlessly": _registers("import itertools; return itertools.repeat(None)"),
        # when asked
        "look_raises": _looks('raise RuntimeError("not today")'),
        "look_exits": _looks("raise SystemExit(3)"),
        "look_hangs": _looks("time.sleep(3600)"),
        "look_nonsense": _looks('return {"cpus": 4}'),
    }
)
"""By what is wrong. ``look_…``: those load well, as a probe ``bad`` that fails when it is asked."""
