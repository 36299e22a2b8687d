"""The costs of configurations of layers, on measured or described devices."""
