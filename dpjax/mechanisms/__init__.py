"""Noise and choices: pure functions of a key and a value."""

from dpjax.mechanisms._additive import gaussian, laplace

__all__ = ["gaussian", "laplace"]
