"""The kinds of columns: what is public about each, and its features."""
