import types

from fakes import FAKE, Matrix, on_device

if "failure" in FAKE:
    raise ImportError(FAKE["failure"])
__version__ = "0.25.0"
cpu, gpu = "cpu", "gpu"
metal = types.SimpleNamespace(is_available=lambda: bool(FAKE.get("devices")))
array = Matrix


def matmul(a, b, stream):
    return (a if stream == cpu else on_device(a.rows, 0)) @ b


def sum(matrix, stream):  # noqa: A001
    return Matrix.sum(matrix)
