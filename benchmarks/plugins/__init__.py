"""What plugins cost: a call, a start of the program, loading them, a large batch for a scorer."""
