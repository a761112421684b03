"""Core's own probes and launchers."""
