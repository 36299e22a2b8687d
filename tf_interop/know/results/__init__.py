"""What a run or a benchmark leaves behind: data and files."""
