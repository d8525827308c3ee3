"""Trained models, in the units of their tables: files, exports and private scores."""
