"""The algorithms of the papers, one a file."""
