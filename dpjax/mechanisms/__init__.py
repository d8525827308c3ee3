"""Noise and choices: pure functions of a key and a value."""

from dpjax.mechanisms._additive import gaussian, laplace
from dpjax.mechanisms._peeling import laplace_peeling, peeling
from dpjax.mechanisms._selection import exponential, permute_and_flip

__all__ = [
    "exponential",
    "gaussian",
    "laplace",
    "laplace_peeling",
    "peeling",
    "permute_and_flip",
]
