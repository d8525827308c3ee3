"""The algorithms of the papers, each in its own file."""
