"""Profiles: the measured costs of convolutions and stages, and their files."""
