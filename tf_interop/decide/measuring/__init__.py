"""What is worth measuring, and what was learned from it."""
