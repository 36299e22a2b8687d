"""Turning the plugin on and off, and seeing what it did."""
