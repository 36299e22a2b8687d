"""The command `profile`."""
