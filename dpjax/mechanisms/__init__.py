"""Noise and choices: pure functions of a key and a value.

Guarantees, here and of all that draws from here, are for noise in real numbers. Noise
in floating point has full tails but gaps, and nothing is claimed against attacks on its
last bits (Mironov, 2012). Only `discrete_gaussian` is exact.

Noise of several steps may be correlated, by a strategy: `transforms.privatize` takes
one, and `accounting.noise_multiplier` tells how much noise it needs.
"""

from dpjax.mechanisms._additive import gaussian, laplace
from dpjax.mechanisms._binary_tree import BinaryTree
from dpjax.mechanisms._discrete_gaussian import discrete_gaussian
from dpjax.mechanisms._peeling import peeling
from dpjax.mechanisms._selection import exponential, permute_and_flip
from dpjax.mechanisms._smooth_noise import arsinh_normal, laplace_log_normal
from dpjax.mechanisms._strategy import Strategy
from dpjax.mechanisms._toeplitz import BandedToeplitz, BufferedToeplitz

__all__ = [
    "BandedToeplitz",
    "BinaryTree",
    "BufferedToeplitz",
    "Strategy",
    "arsinh_normal",
    "discrete_gaussian",
    "exponential",
    "gaussian",
    "laplace",
    "laplace_log_normal",
    "peeling",
    "permute_and_flip",
]
