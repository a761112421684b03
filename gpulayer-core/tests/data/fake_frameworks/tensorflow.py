import contextlib
import types

from fakes import FAKE, Matrix, on_device, say

__version__ = "2.18.0"
_at = [""]


def _list_physical_devices(kind):
    if kind == "CPU":
        return [None]
    if "said" in FAKE:
        say(FAKE["said"])
    return [None for _ in FAKE.get("devices", ())]


@contextlib.contextmanager
def device(place):
    _at[0] = place
    yield


def constant(rows):
    kind, _, number = _at[0].partition(":")
    there = f"/job:localhost/replica:0/task:0/device:{FAKE.get('instead') or _at[0]}"
    return Matrix(rows, there) if kind == "CPU" else on_device(rows, int(number), there)


linalg = types.SimpleNamespace(matmul=lambda a, b: a @ b)
reduce_sum = Matrix.sum
config = types.SimpleNamespace(
    list_physical_devices=_list_physical_devices, set_soft_device_placement=lambda wanted: None
)
_cuda = {"is_cuda_build": True, "cuda_version": "12.5.1", "cuda_compute_capabilities": ["sm_60", "compute_90"]}
sysconfig = types.SimpleNamespace(get_build_info=lambda: _cuda if FAKE.get("cuda") else {"is_cuda_build": False})
