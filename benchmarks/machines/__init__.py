"""What it costs to find out what a machine has: each probe, the frameworks, and all of it."""
