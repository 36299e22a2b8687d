"""Profiles: what convolutions and stages cost, their files, and how they are measured."""
