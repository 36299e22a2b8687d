"""The search for the cheapest configurations of all layers."""
