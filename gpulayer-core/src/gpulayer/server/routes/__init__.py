"""All routes of the control plane, as data."""

from typing import Final

from gpulayer.server.routes import blobs, credentials, jobs, logs, plane, plugins, tokens, why, workers
from gpulayer.server.web import Route

__all__ = ["ROUTES"]

ROUTES: Final[tuple[Route, ...]] = (
    *plane.ROUTES,
    *tokens.ROUTES,
    *jobs.ROUTES,
    *why.ROUTES,
    *logs.ROUTES,
    *workers.ROUTES,
    *plugins.ROUTES,
    *credentials.ROUTES,
    *blobs.ROUTES,
)
