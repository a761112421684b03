"""The core figures: starting, one tiny job, a batch, the size on disk. Run with ``make bench``."""
