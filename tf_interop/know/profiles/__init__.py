"""Measurements of convolutions and stages: their table and its files."""
