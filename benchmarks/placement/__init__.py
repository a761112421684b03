"""What it costs to place: which devices of one machine a task gets, beside exhaustive search."""
