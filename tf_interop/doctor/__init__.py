"""What works on this machine."""
