"""Noise and choices: pure functions of a key and a value.

Guarantees, here and of all that draws from here, are for noise in real numbers. Noise
in floating point has full tails but gaps, and nothing is claimed against attacks on its
last bits (Mironov, 2012). Only `discrete_gaussian` is exact.
"""

from dpjax.mechanisms._additive import gaussian, laplace
from dpjax.mechanisms._discrete_gaussian import discrete_gaussian
from dpjax.mechanisms._peeling import peeling
from dpjax.mechanisms._selection import exponential, permute_and_flip
from dpjax.mechanisms._smooth_noise import arsinh_normal, laplace_log_normal

__all__ = [
    "arsinh_normal",
    "discrete_gaussian",
    "exponential",
    "gaussian",
    "laplace",
    "laplace_log_normal",
    "peeling",
    "permute_and_flip",
]
