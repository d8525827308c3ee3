"""A trained model as one file, in the units of its table, and its private scores."""
