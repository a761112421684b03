"""What the promises cost: durable events, very many jobs and workers, and a fleet of which some die."""
