"""The algorithms of the papers, with one kind of algorithm in each file."""
