"""The control plane: one store, one driver that owns the engine, and HTTP around them. ``serve`` runs it.

The app factory is ``gpulayer.server.app.create_app``; importing this face loads nothing heavy.
"""

from gpulayer.server.serve import serve
from gpulayer.server.settings import DEFAULT_IDLE_EXIT_S, DEFAULT_PORT, PlaneSettings, ServeSettings

__all__ = ["DEFAULT_IDLE_EXIT_S", "DEFAULT_PORT", "PlaneSettings", "ServeSettings", "serve"]
