"""Plans: the search for stages, their costs, and the reasons."""
