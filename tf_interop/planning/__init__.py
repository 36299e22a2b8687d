"""Plans: what runs together, how that is searched for, what it costs, and why."""
