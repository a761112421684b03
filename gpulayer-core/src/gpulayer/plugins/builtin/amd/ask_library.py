"""Asks AMD's own library, in a process of its own: one line of JSON. Never imported; started with the probe's Python.

``amdsmi`` comes with ROCm (its folder is the argument, where it is no installed package). Each figure is asked for by
itself, so that one which a GPU does not have leaves the others. The library's objects are of any type: Any.
https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Prints ``gpus``, or ``error``."""
    if len(sys.argv) > 1:
        sys.path.insert(0, sys.argv[1])
    out = sys.stdout
    sys.stdout = sys.stderr  # the library prints
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
        amdsmi.amdsmi_init()
        answer: dict[str, object] = {"gpus": [gpu(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]}
    except Exception as error:  # its errors share no base across releases; the driver's are among them
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    json.dump(answer, out, default=str)
    out.write("\n")
    out.flush()


def gpu(amdsmi: Any, handle: Any) -> dict[str, object]:
    """What could be asked of one; ``fault`` where that is nothing of use."""
    found: dict[str, object] = {}
    faults: list[str] = []

    def ask(name: str, call: Callable[[], object]) -> None:
        try:
            found[name] = call()
        except Exception as error:  # of any type
            faults.append(f"{type(error).__name__}: {error}"[:200])

    def heat(place: str) -> object:
        kind = getattr(amdsmi.AmdSmiTemperatureType, place)
        return amdsmi.amdsmi_get_temp_metric(handle, kind, amdsmi.AmdSmiTemperatureMetric.CURRENT)

    ask("bdf", lambda: amdsmi.amdsmi_get_gpu_device_bdf(handle))
    ask("asic", lambda: amdsmi.amdsmi_get_gpu_asic_info(handle))
    ask("board", lambda: amdsmi.amdsmi_get_gpu_board_info(handle))
    ask("driver", lambda: amdsmi.amdsmi_get_gpu_driver_info(handle))
    ask("vram", lambda: amdsmi.amdsmi_get_gpu_vram_info(handle))
    ask("vram_usage", lambda: amdsmi.amdsmi_get_gpu_vram_usage(handle))
    ask("activity", lambda: amdsmi.amdsmi_get_gpu_activity(handle))
    ask("hotspot", lambda: heat("HOTSPOT"))
    ask("edge", lambda: heat("EDGE"))
    ask("ecc", lambda: bool(amdsmi.amdsmi_get_gpu_ecc_enabled(handle)))
    ask("processes", lambda: amdsmi.amdsmi_get_gpu_process_list(handle))
    if not {"asic", "vram", "vram_usage"} & found.keys():
        found["fault"] = faults[0]
    return found


if __name__ == "__main__":
    main()
