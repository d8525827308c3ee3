"""Iterative training: batches, private steps, checkpoints, and what a run returns."""
