"""Noise and private selection: pure functions of a key and a value.

All guarantees of these functions, and of their callers, are for noise in real numbers.
Floating-point noise has full tails but gaps, and nothing is claimed against attacks on
its last bits (Mironov, 2012). Only `discrete_gaussian` is exact.

A strategy correlates the noise of several steps: pass it to `transforms.privatize`, and
compute its noise multiplier with `accounting.noise_multiplier`.
"""

from dpjax.mechanisms._additive import (
    arsinh_normal,
    gaussian,
    laplace,
    laplace_log_normal,
)
from dpjax.mechanisms._chacha import secret_key
from dpjax.mechanisms._discrete_gaussian import discrete_gaussian
from dpjax.mechanisms._peeling import peeling
from dpjax.mechanisms._selection import exponential, permute_and_flip
from dpjax.mechanisms._strategy import BandedToeplitz, BufferedToeplitz

__all__ = [
    "BandedToeplitz",
    "BufferedToeplitz",
    "arsinh_normal",
    "discrete_gaussian",
    "exponential",
    "gaussian",
    "laplace",
    "laplace_log_normal",
    "peeling",
    "permute_and_flip",
    "secret_key",
]
