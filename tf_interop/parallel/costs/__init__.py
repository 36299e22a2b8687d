"""The costs of layers' configurations, on measured or described devices."""
