"""What a graph holds, which of its convolutions are independent, and writing stages into it."""
