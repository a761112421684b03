"""What a plugin is written with: ``hookimpl`` to mark hooks, the contracts of what they register, and their values.

A plugin is a module that an entry point of the group ``gpulayer`` names. It says which API it was written for,
``GPULAYER_API = "1.0"``, and implements hooks of ``gpulayer.plugins.hooks``; ``gpulayer.testing`` proves it.
A launcher that changes some of what ``process`` plans asks ``ProcessLauncher().plan`` for that.

The face is lazy: what a process is told of its plugins (``plugins.settings``) is read at its very start, long before it
needs any of them. ``plugins.face`` has the names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulayer.plugins.face import *  # noqa: F403 - type checkers see what is there
    from gpulayer.plugins.face import __all__ as __all__


def __getattr__(name: str) -> Any:  # Any: the face hands on whatever the modules define
    # A module of this package that is not loaded yet is asked for by the import system, too; it is no name of the face.
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'gpulayer.plugins' has no attribute {name!r}")
    face = import_module("gpulayer.plugins.face")
    if name == "__all__" or name in face.__all__:
        return getattr(face, name)
    raise AttributeError(f"module 'gpulayer.plugins' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__getattr__("__all__"))
