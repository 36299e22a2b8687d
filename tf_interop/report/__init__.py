"""A plan as a page, a timeline and a trace."""
