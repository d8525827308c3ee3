"""The algorithms of the papers, those of one kind in one file."""
