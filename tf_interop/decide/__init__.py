"""What to do with a graph: stages, their check, and the pass. Imports only `know`."""
