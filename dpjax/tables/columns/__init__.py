"""Kinds of columns, with their public constants and features."""
