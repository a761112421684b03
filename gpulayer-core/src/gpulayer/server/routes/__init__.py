"""All routes of the control plane, as data."""

from typing import Final

from gpulayer.server.routes import blobs, credentials, jobs, logs, plane, workers
from gpulayer.server.web import Route

__all__ = ["ROUTES"]

ROUTES: Final[tuple[Route, ...]] = (
    *plane.ROUTES,
    *jobs.ROUTES,
    *logs.ROUTES,
    *workers.ROUTES,
    *credentials.ROUTES,
    *blobs.ROUTES,
)
