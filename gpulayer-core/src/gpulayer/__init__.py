"""What ``import gpulayer as gl`` shows.

Nothing is imported until it is used: the import itself must stay below a tenth of a second, and the
spawner, which may import nothing but the standard library, lives in this package too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulayer.errors import GpulayerError as GpulayerError
    from gpulayer.sdk import AsyncClient as AsyncClient
    from gpulayer.sdk import Client as Client
    from gpulayer.sdk import Job as Job
    from gpulayer.sdk import configure as configure
    from gpulayer.sdk import explain as explain
    from gpulayer.sdk import submit as submit
    from gpulayer.sdk import submit_batch as submit_batch

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "Client",
    "GpulayerError",
    "Job",
    "__version__",
    "configure",
    "explain",
    "submit",
    "submit_batch",
]

_LATER = ("File", "Folder", "RemoteError", "as_completed", "current", "progress", "remote", "service", "wait")


def __getattr__(name: str) -> Any:  # Any: the face hands on whatever the SDK defines
    if name == "GpulayerError":
        from gpulayer.errors import GpulayerError  # noqa: PLC0415 - lazy on purpose

        return GpulayerError
    if name in _LATER:
        raise AttributeError(f"gl.{name} comes with a later version", name=name)
    if name in __all__:
        from gpulayer import sdk  # noqa: PLC0415 - lazy on purpose

        return getattr(sdk, name)
    raise AttributeError(f"module 'gpulayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
