"""Sums of discrete Gaussian shares: the stddev for an epsilon, and the reverse.

Each of K parties adds an integer share Z_k with Pr[z] proportional to
exp(-z^2 / (2 s^2)). The sum is nearly a discrete Gaussian of sigma = sqrt(K) s: for
s >= 1/2 the error of every log probability is at most

    tau / 2,    tau = 10 sum_{k=1}^{K-1} exp(-2 pi^2 s^2 k / (k + 1)),             (1)

and T adaptive releases of l2 sensitivity D in d coordinates are rho-zCDP with

    rho = T/2 (D / sigma + tau sqrt(d))^2:                                         (2)

`docs/privacy/proofs/mechanisms.md`, 2.8; Kairouz, Liu, Steinke (2021), "The distributed
discrete Gaussian mechanism for federated learning with secure aggregation", Theorem 1.

Another bound compares the sum with a continuous Gaussian that is rounded to integers,
and so is exactly as private as `gaussian_epsilon` says. Where no noise exceeds z sigma,
the error of the log probability of all outcomes is at most

    eta = T d (tau/2 + 5 exp(-2 pi^2 sigma^2) + z^2 / (8 sigma^2)),    z >= 1.     (3)

Let b bound the probability that some noise exceeds z sigma (z sigma - 1/2 for the
rounded Gaussian). If the Gaussian is (epsilon, delta)-DP, then the sum of shares is

    (epsilon + 2 eta, b + e^eta (delta + e^epsilon b)).                            (4)
"""

import bisect
import math

from dpjax import _validate
from dpjax.accounting._gaussian import gaussian_epsilon, gaussian_stddev
from dpjax.accounting._zcdp import rho_to_epsilon

_TAIL = 1e-9  # the share of delta for noise beyond z sigma


def discrete_gaussian_stddev(
    epsilon: float,
    delta: float,
    *,
    sensitivity: float,
    num_shares: int = 1,
    num_coordinates: int,
    num_releases: int = 1,
) -> int:
    """Returns the smallest integer stddev of the shares that makes their sum private.

    `num_shares` shares are secret and certainly in the sum; further shares only add
    noise. A release is a vector of num_coordinates integers of this l2 sensitivity, and
    all num_releases, each of which may depend on the earlier ones, are together
    (epsilon, delta)-DP under the relation for which the sensitivity holds.
    """
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    gaussian = {"sensitivity": sensitivity, "num_releases": num_releases}
    setting = {"num_shares": num_shares, "num_coordinates": num_coordinates, **gaussian}

    def is_private(stddev: int) -> bool:
        return discrete_gaussian_epsilon(stddev, delta, **setting) <= epsilon

    # The search starts below the stddev of the continuous Gaussian (rounded up by
    # 1e-9), doubles its step until the sum is private, and then bisects.
    continuous = gaussian_stddev(epsilon, delta, **gaussian)
    low = max(0, math.floor(continuous * (1 - 1e-8) / math.sqrt(num_shares)) - 1)
    step = 1
    while not is_private(low + step):
        low, step = low + step, 2 * step
    some = range(low + 1, low + step)
    return low + 1 + bisect.bisect_left(some, True, key=is_private)


def discrete_gaussian_epsilon(
    stddev, delta, *, sensitivity, num_shares=1, num_coordinates, num_releases=1
) -> float:
    """Returns the epsilon of integers released with a sum of discrete Gaussian shares.

    It is the smaller of two bounds: by zCDP, and by comparison with rounded Gaussian
    noise. `stddev` >= 1 is that of a share.
    """
    if sensitivity == 0:
        return 0.0
    total = math.sqrt(num_shares) * stddev
    rate = -2 * math.pi**2 * stddev**2
    tau = 10 * sum(math.exp(rate * k / (k + 1)) for k in range(1, num_shares))
    root = sensitivity / total + tau * math.sqrt(num_coordinates)  # equation (2)
    by_zcdp = rho_to_epsilon(num_releases * root**2 / 2, delta)

    # Equations (3) and (4). z is such that b e^epsilon <= delta _TAIL / 2, because all
    # noise here has the tails of a Gaussian, 2 exp(-z^2 / 2).
    gaussian = {"sensitivity": sensitivity, "num_releases": num_releases}
    most = gaussian_epsilon(total, delta / 2, **gaussian)
    num_draws = num_releases * num_coordinates
    z = 1 + math.sqrt(2 * (most + math.log(4 * num_draws / (_TAIL * delta))))
    normalizer = 5 * math.exp(-2 * math.pi**2 * total**2)
    eta = num_draws * (tau / 2 + normalizer + z**2 / (8 * total**2))
    share = math.exp(-eta) - _TAIL
    if share < 1 / 2:
        return by_zcdp
    return min(by_zcdp, gaussian_epsilon(total, delta * share, **gaussian) + 2 * eta)
