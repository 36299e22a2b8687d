"""Stands for matplotlib in the processes of tests: Keras would import it, which takes a second."""

raise ImportError("The processes of tests have no matplotlib.")
