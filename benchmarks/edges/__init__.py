"""What it costs to be reached from other machines: connections, tokens, and coming back all at once."""
