"""The GPU of a Mac with a processor of Apple's own, asked of ``sysctl`` and ``system_profiler``.

It is one device of the kind ``mps``, whatever framework computes on it: a second one of another kind for MLX would be
the same GPU, lent twice. It has no uuid of the vendor's; there is only ever one in a machine.
"""

import sys
from typing import Final

from gpulayer.plugins.builtin.apple.answers import Gpu, parsed_gpus, parsed_sysctl
from gpulayer.plugins.builtin.child import Child, Unanswered, Unstarted
from gpulayer.plugins.contracts.probe import Findings, ProbeSite
from gpulayer.spec.machine import Device
from gpulayer.spec.request import Accelerator

__all__ = ["AppleProbe"]

_UUID: Final = "MPS-0"
_NAMES: Final = ("hw.memsize", "hw.optional.arm64", "machdep.cpu.brand_string")
_SYSCTL_S: Final = 2.0
_PROFILER_S: Final = 5.0


class AppleProbe:
    """Does nothing at all but on macOS. The system and the programs are parameters for tests."""

    def __init__(
        self,
        *,
        system: str = sys.platform,
        sysctl: str = "/usr/sbin/sysctl",
        profiler: str = "/usr/sbin/system_profiler",
    ) -> None:
        self._system = system
        self._sysctl = sysctl
        self._profiler = profiler
        self._children = (Child(), Child())
        self._gpu: Gpu | None = None  # as once told: it is soldered in, and the program takes a second

    @property
    def name(self) -> str:
        return "apple"

    def look(self, site: ProbeSite) -> Findings:
        if self._system != "darwin":
            return Findings()
        try:
            said = self._children[0].ask([self._sysctl, *_NAMES], environment=site.environment, deadline_s=_SYSCTL_S)
        except Unanswered as why:
            is_silent = not isinstance(why, Unstarted)
            return Findings(missing=((str(Accelerator.MPS), str(why)),), is_silent=is_silent)
        known = parsed_sysctl(said.out)
        cpu_model = known.get("machdep.cpu.brand_string", "")
        if known.get("hw.optional.arm64") != "1":  # also right where this Python itself is translated
            return Findings(cpu_model=cpu_model)
        memory = known.get("hw.memsize", "")
        gpu, why_not = self._asked(site)
        if why_not:
            return Findings(cpu_model=cpu_model, missing=((str(Accelerator.MPS), why_not),))
        device = Device(
            uuid=_UUID,
            index=0,
            kind=Accelerator.MPS,
            model=gpu.model or cpu_model,
            memory_bytes=int(memory) if memory.isdecimal() else None,
            runtime=gpu.metal,
            is_memory_shared=True,
        )
        return Findings(devices=(device,), cpu_model=cpu_model)

    def _asked(self, site: ProbeSite) -> tuple[Gpu, str]:
        """The GPU, or why none can be used. What the program can't tell now is no reason: every such Mac has one."""
        if self._gpu is not None:
            return self._gpu, ""
        unknown = Gpu("", is_apple=True)
        try:
            said = self._children[1].ask(
                [self._profiler, "SPDisplaysDataType", "-json"],
                environment=site.environment,
                deadline_s=_PROFILER_S,
            )
            gpus = parsed_gpus(said.out)
        except (Unanswered, ValueError):
            return unknown, ""
        own = next((gpu for gpu in gpus if gpu.is_apple), None)
        if own is None:
            return unknown, "macOS shows no GPU of Apple's here; a virtual machine without one?"
        self._gpu = own
        return own, ""
