"""What configurations of layers cost, on devices that are measured or described."""
