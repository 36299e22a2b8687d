"""Models of users: loading and tracing them, and what is found in their graphs."""
