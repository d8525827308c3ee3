"""Additive models: a private sum of curves of columns."""
