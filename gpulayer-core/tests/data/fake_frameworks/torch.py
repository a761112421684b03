import types
import warnings

from fakes import FAKE, Matrix, on_device

__version__ = FAKE.get("version", "2.6.0")
version = types.SimpleNamespace(cuda=FAKE.get("cuda"), hip=FAKE.get("hip"), xpu=FAKE.get("xpu"))
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_80 sm_90")
_places = {"cuda": 0, "xpu": 0, "mps": 0}


def _is_available():
    if "warning" in FAKE:
        warnings.warn(FAKE["warning"], stacklevel=2)
    return bool((version.cuda or version.hip) and FAKE.get("devices"))


def _init():
    if not version.cuda and not version.hip:
        raise AssertionError("Torch not compiled with CUDA enabled")
    raise RuntimeError(FAKE["init"])


cuda = types.SimpleNamespace(
    is_available=_is_available,
    init=_init,
    device_count=lambda: len(FAKE["devices"]),
    get_arch_list=lambda: ["sm_80", "sm_90"] if FAKE.get("devices") else [],
)
xpu = types.SimpleNamespace(is_available=lambda: bool(version.xpu), device_count=lambda: len(FAKE["devices"]))
backends = types.SimpleNamespace(
    mps=types.SimpleNamespace(is_built=lambda: bool(FAKE.get("mps")), is_available=lambda: bool(FAKE.get("mps")))
)


def tensor(rows, device):
    kind, _, index = device.partition(":")
    return Matrix(rows) if kind == "cpu" else on_device(rows, int(index or 0))
