"""The discrete Gaussian, sampled exactly on the host.

Parties of a protocol add shares of this noise to integers. Each party uses its own
entropy, a function `random_bytes(n) -> bytes`, because other parties might know a JAX
key.
"""

import decimal
import os
from fractions import Fraction

import numpy as np

from dpjax import _validate
from dpjax._types import RandomBytes

# Up to this stddev, int64 numbers overflow with probability e^-2048.
LARGEST_STDDEV = 2**26

# The error of a float64 exp(-x) is a few units of 2^-53. If a random number is closer
# to it than this margin, they are compared in exact arithmetic.
_MARGIN = 2.0**-46


def discrete_gaussian(
    shape: int | tuple[int, ...], *, stddev: int, random_bytes: RandomBytes = os.urandom
) -> np.ndarray:
    """Draws integers z with Pr[z] proportional to exp(-z^2 / (2 stddev^2)).

    Args:
        shape: shape of the result.
        stddev: sigma, an integer from 1 to 2^26. The variance is at most sigma^2, and
            equal to it in float64 from sigma = 2 on.
        random_bytes: source of uniform, independent bytes that nobody can guess; use
            `np.random.default_rng(0).bytes` only for tests.

    Returns:
        An int64 NumPy array.

    Privacy:
        Adding this noise to integers of l2 sensitivity D is (D^2 / (2 sigma^2))-zCDP,
        like the continuous Gaussian: for an epsilon and delta, sigma is at least
        D / sqrt(2 `accounting.epsilon_to_rho(epsilon, delta)`). Several parties' shares
        add up to nearly this noise: `docs/privacy/proofs/mechanisms.md`, 2.8.
        The distribution is exact, in its tails and last bits, because a probability is
        compared with as many random bits as necessary. The running time depends on the
        values drawn.

    Example:
        >>> noise = discrete_gaussian(100_000, stddev=1000)
        >>> print(noise.dtype, abs(noise.std() / 1000 - 1) < 0.02)
        int64 True

    Reference:
        Canonne, Kamath, Steinke (2020), The discrete Gaussian for differential privacy,
        Algorithms 2 and 3, Theorem 4.
    """
    _validate.count(stddev=stddev)
    rule = f"at most {LARGEST_STDDEV}"
    _validate.require(stddev <= LARGEST_STDDEV, "stddev", stddev, rule)
    size = int(np.prod(shape, dtype=np.int64))
    parts, missing = [np.empty(0, np.int64)], size
    while missing > 0:
        # About four in ten proposals are accepted.
        values = _accepted(3 * missing + 16, int(stddev), random_bytes)[:missing]
        parts.append(values)
        missing -= values.size
    return np.concatenate(parts).reshape(shape)


def _accepted(count: int, stddev: int, random_bytes: RandomBytes) -> np.ndarray:
    """Returns a vector of discrete Gaussians: about 4 in 10 of `count` proposals."""
    # Algorithm 2: |y| of the discrete Laplace distribution of scale t is u + t v.
    scale = stddev + 1
    u = _words(count, random_bytes) >> (64 - scale.bit_length())
    u = u.astype(np.int64)[u < scale]
    u = u[_bernoulli_exp(u, scale, random_bytes)]
    v = np.zeros_like(u)
    active = np.arange(u.size)
    while active.size:
        active = active[_bernoulli_exp(np.ones(active.size, np.int64), 1, random_bytes)]
        v[active] += 1
    y = u + scale * v
    is_negative = (_words(y.size, random_bytes) >> 63) == 1
    y = np.where(is_negative, -y, y)[~(is_negative & (y == 0))]

    # Algorithm 3: y is kept with probability exp(-(|y| - sigma^2/t)^2 / (2 sigma^2)).
    root = np.abs(y) * scale - stddev**2
    return y[_bernoulli_exp(root, scale * stddev, random_bytes, squared=True)]


def _bernoulli_exp(numerators, denominator, random_bytes, *, squared=False):
    """Draws booleans, true with probability exp(-r), or exp(-r^2/2) if squared."""
    # r = numerators (n,) / denominator, integers. The rejection needs exact draws.
    ratio = numerators / denominator
    probability = np.exp(-(ratio**2) / 2 if squared else -ratio)
    words = _words(numerators.size, random_bytes) >> 11
    excess = probability - words * 2.0**-53
    is_true = excess > 0
    for i in np.flatnonzero(np.abs(excess) < _MARGIN):
        exact = Fraction(int(numerators[i]), denominator)
        exponent = exact**2 / 2 if squared else exact
        is_true[i] = _is_below_exp(int(words[i]), 53, exponent, random_bytes)
    return is_true


def _is_below_exp(
    word: int, num_bits: int, exponent: Fraction, random_bytes: RandomBytes
) -> bool:
    """Returns whether a uniform number that begins with `word` is below exp(-exponent).

    `word` has num_bits bits. More are drawn until the answer is certain: it is exact.
    """
    while True:
        # 22 digits beyond those of the word: an exponent below 2^22 and the two
        # roundings leave an error far below 10^-10 of the word's last bit.
        digits = num_bits // 3 + 22
        context = decimal.Context(prec=digits, Emin=decimal.MIN_EMIN)
        parts = map(decimal.Decimal, (-exponent.numerator, exponent.denominator))
        bound = Fraction(context.exp(context.divide(*parts)))
        error = Fraction(1, 10 ** (digits - 10))
        if Fraction(word + 1, 2**num_bits) <= bound - error:
            return True
        if Fraction(word, 2**num_bits) >= bound + error:
            return False
        word = (word << 64) | int.from_bytes(random_bytes(8), "little")
        num_bits += 64


def _words(count: int, random_bytes: RandomBytes) -> np.ndarray:
    return np.frombuffer(random_bytes(8 * count), np.uint64)
