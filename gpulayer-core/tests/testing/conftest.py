"""The kit's own plane here, not the scripted one of the tests around."""

from gpulayer.testing.fixtures import plane

__all__ = ["plane"]
