"""Laws of a random number K of trials, of which the best is released.

With x = Q(at most y) of one trial, the best of K is at most y with probability f(x),
f(x) = E x^K. So all that its privacy asks of a law is f'(1) = E K and, of z = 1 - x,

    rise(z) = log f'(1) - log f'(1 - z),   which is 0 at z = 0 and grows.

* Truncated negative binomials of shape eta > -1 have K >= 1 and, with c = 1/gamma - 1,
  Pr[k] in proportion to (1 - gamma)^k Gamma(k + eta) / k!, hence rise(z) =
  (1 + eta) log(1 + c z): logarithmic (eta = 0), geometric (1), negative_binomial
  (-1/2).
* Poisson of mean mu: rise(z) = mu z.
* Binomial of n draws with probability p: rise(z) = -(n - 1) log(1 - p z).

Reference: Papernot, Steinke (2022), "Hyperparameter tuning with Renyi differential
privacy", Definition 1 and section 3.
"""

import dataclasses
import math
from typing import Literal, get_args

import numpy as np
import scipy.optimize
import scipy.special

from dpjax import _validate

TrialDistribution = Literal[
    "logarithmic", "geometric", "negative_binomial", "poisson", "binomial"
]
_SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "negative_binomial": -0.5}
_LARGEST_MEAN = 1e6


@dataclasses.dataclass(frozen=True)
class TrialCount:
    """The distribution of K, by its name and its mean.

    The truncated distributions have K >= 1, so their mean is at least 1. For the others
    the mean includes K = 0.

    Raises:
        ValueError: If the name is unknown, or no law has such a mean.
    """

    distribution: TrialDistribution
    mean: float

    def __post_init__(self) -> None:
        _validate.choice(TrialDistribution, distribution=self.distribution)
        _validate.positive(mean_trials=self.mean)
        least = 1.0 if self.is_truncated else 0.0
        _validate.within(least, _LARGEST_MEAN, mean_trials=self.mean)

    @property
    def is_truncated(self) -> bool:
        """Tells whether at least one trial always happens."""
        return self.distribution in _SHAPES

    @property
    def excess(self) -> float:
        """The c = 1/gamma - 1 of a truncated law, 0 where K is always 1."""
        mean = float(self.mean)
        if self.distribution == "geometric":  # 1 / gamma
            return mean - 1
        if self.distribution == "negative_binomial":  # (1 + gamma^(-1/2)) / 2
            return (2 * mean - 1) ** 2 - 1
        if mean - 1 < 1e-9:  # c / 2, up to its square
            return 2 * (mean - 1)
        # c / log(1 + c), which lies between 1 + c/2 - c^2/12 and 1 + c/2
        solution = scipy.optimize.root_scalar(
            lambda c: c - mean * math.log1p(c),
            bracket=(mean - 1, 4 * mean * (1 + math.log(mean))),
            xtol=1e-13,
            rtol=1e-14,
        )
        return float(solution.root)

    @property
    def draws(self) -> int:
        """The n of the binomial, at least twice the mean, so that p is at most 1/2."""
        return math.ceil(2 * self.mean)

    def rise(self, z: np.ndarray) -> np.ndarray:
        """Returns what this module calls rise, for z in [0, 1]."""
        if self.distribution == "poisson":
            return self.mean * z
        if self.distribution == "binomial":
            n = self.draws
            return (1 - n) * np.log1p(-self.mean / n * z)
        return (1 + _SHAPES[self.distribution]) * np.log1p(self.excess * z)

    def steepness(self, z: np.ndarray) -> np.ndarray:
        """The derivative of rise."""
        if self.distribution == "poisson":
            return np.full_like(z, self.mean)
        if self.distribution == "binomial":
            p = self.mean / self.draws
            return (self.draws - 1) * p / (1 - p * z)
        return (1 + _SHAPES[self.distribution]) * self.excess / (1 + self.excess * z)

    def prob(self, k: np.ndarray) -> np.ndarray:
        """Pr[K = k], each with a small relative error."""
        k = np.asarray(k, float)
        if self.distribution == "poisson":
            log = scipy.special.xlogy(k, self.mean) - self.mean
            return np.exp(log - scipy.special.gammaln(k + 1))
        if self.distribution == "binomial":
            n = self.draws
            p, left = self.mean / n, np.maximum(n - k, 0)
            log = -np.log(n + 1) - scipy.special.betaln(left + 1, k + 1)
            log += scipy.special.xlogy(k, p) + scipy.special.xlog1py(left, -p)
            return np.where(k <= n, np.exp(log), 0.0)
        if self.excess == 0:
            return np.where(k == 1, 1.0, 0.0)
        # All are in proportion to f', and f'(0) is the probability of one trial.
        shape, k_or_1 = _SHAPES[self.distribution], np.maximum(k, 1)
        first = math.log(self.mean) - (1 + shape) * math.log1p(self.excess)
        log = scipy.special.gammaln(k_or_1 + shape) - scipy.special.gammaln(k_or_1 + 1)
        log -= scipy.special.gammaln(1 + shape)
        log += first - (k_or_1 - 1) * math.log1p(1 / self.excess)
        return np.where(k >= 1, np.exp(log), 0.0)


def names() -> tuple[str, ...]:
    """All distributions."""
    return get_args(TrialDistribution)
