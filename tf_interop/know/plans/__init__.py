"""Plans and the problems that they solve: data and files."""
