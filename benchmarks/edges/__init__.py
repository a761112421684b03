"""Other machines over networks: what it costs, how fast all are back. Run with ``python -m benchmarks.edges.NAME``."""
