"""Users' models: loading, tracing, analyzing and planning them."""
