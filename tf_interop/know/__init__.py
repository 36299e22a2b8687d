"""What is known: graphs, convolutions, plans, profiles, the library. Imports nothing above."""
