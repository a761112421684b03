import contextlib
import types

from fakes import FAKE, on_device

__version__ = "13.4.0"
_at = [0]


@contextlib.contextmanager
def _device(number):
    _at[0] = number
    yield


def _count():
    if "failure" in FAKE:
        raise RuntimeError(FAKE["failure"])
    return len(FAKE["devices"])


def array(rows, kind):
    return on_device(rows, _at[0])


cuda = types.SimpleNamespace(
    Device=_device,
    driver=types.SimpleNamespace(get_build_version=lambda: 12080),
    runtime=types.SimpleNamespace(
        is_hip=FAKE.get("is_hip", False), getDeviceCount=_count, driverGetVersion=lambda: FAKE.get("driver", 12080)
    ),
)
