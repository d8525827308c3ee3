"""The privacy cost of releasing the best of a random number of private runs.

Let x be the probability that a run is at most y, z = 1 - x, and f(x) = E x^K, which is
the probability that the best of K runs is at most y. The privacy of the best run
depends on the law of K only through m = f'(1) = E K and

    rise(z) = log f'(1) - log f'(1 - z),   which is 0 at z = 0 and grows.

* Truncated negative binomials of shape eta > -1 have K >= 1, and Pr[k] in proportion to
  (1 - gamma)^k Gamma(k + eta) / k!. With c = 1/gamma - 1, rise(z) = (1 + eta)
  log(1 + c z). eta is 0 (logarithmic), 1 (geometric) or -1/2 (negative_binomial).
* A Poisson law of mean mu has rise(z) = mu z.
* A binomial law of n draws with probability p has rise(z) = -(n - 1) log(1 - p z).

The best of K runs of density q has the density

    a(y) = q(y) f'(x) = m q(y) e^-rise(z).                                          (1)

If each run has the pure epsilon e, the best has e + rise(z') - rise(z) at z = 1 / (1 +
e^e), z' = 1 - z, and this is tight: `docs/privacy/proofs/choices.md`, 6.3. If each run
has the profile delta and the frontier (2) of `_profiles`, let

    F(r) = sup over z of (f'(1 - z) r - f'(1 - frontier(z)))_+.                      (2)

If F(r) is at most sum_k c_k (r - e^b_k)_+, the best run has the profile sum_k c_k
delta(epsilon + b_k): `docs/privacy/proofs/choices.md`, 6.4. For Renyi divergences see
`docs/privacy/proofs/choices.md`, 6.5. Papernot, Steinke (2022), "Hyperparameter tuning
with Renyi differential privacy", Definition 1 and section 3, have these laws of K.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import scipy.optimize
import scipy.special
from dp_accounting import DpEvent, GaussianDpEvent

from dpjax import _validate
from dpjax._types import REPLACE_ONE
from dpjax.accounting import _profiles
from dpjax.accounting._events import samples_of
from dpjax.accounting._guarantee import PrivacyGuarantee
from dpjax.accounting._profiles import Profile

TrialDistribution = Literal[
    "logarithmic", "geometric", "negative_binomial", "poisson", "binomial"
]
_SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "negative_binomial": -0.5}
_LARGEST_MEAN = 1e6
_SLACK = 1e-9  # rounds sums up by more than their float64 error
_NUM_CELLS = 3_000


@dataclasses.dataclass(frozen=True)
class TrialCount:
    """The distribution of the number K of runs, by its name and its mean.

    The truncated distributions have K >= 1, so their mean is at least 1. The mean of a
    Poisson or binomial distribution includes K = 0.
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
        """Returns c = 1/gamma - 1, the parameter of a law of K >= 1, from its mean."""
        # `rise`, the cost of the selection, needs it. The law is a negative binomial of
        # success probability gamma, truncated to K >= 1; c is 0 if K is always 1.
        mean = float(self.mean)
        if self.distribution == "geometric":  # its mean is 1 / gamma
            return mean - 1
        if self.distribution == "negative_binomial":  # mean (1 + gamma^(-1/2)) / 2
            return (2 * mean - 1) ** 2 - 1
        if mean - 1 < 1e-9:  # the mean below is 1 + c/2, up to the square of c
            return 2 * (mean - 1)
        # The mean is c / log(1 + c), between 1 + c/2 - c^2/12 and 1 + c/2.
        solution = scipy.optimize.root_scalar(
            lambda c: c - mean * math.log1p(c),
            bracket=(mean - 1, 4 * mean * (1 + math.log(mean))),
            xtol=1e-13,
            rtol=1e-14,
        )
        return float(solution.root)

    @property
    def draws(self) -> int:
        """Returns n of the binomial, at least twice the mean, so that p <= 1/2."""
        return math.ceil(2 * self.mean)

    def rise(self, z: np.ndarray) -> np.ndarray:
        """Returns the rise that this module defines, for z in [0, 1]."""
        if self.distribution == "poisson":
            return self.mean * z
        if self.distribution == "binomial":
            n = self.draws
            return (1 - n) * np.log1p(-self.mean / n * z)
        return (1 + _SHAPES[self.distribution]) * np.log1p(self.excess * z)

    def steepness(self, z: np.ndarray) -> np.ndarray:
        """Returns the derivative of `rise`."""
        if self.distribution == "poisson":
            return np.full_like(z, self.mean)
        if self.distribution == "binomial":
            p = self.mean / self.draws
            return (self.draws - 1) * p / (1 - p * z)
        return (1 + _SHAPES[self.distribution]) * self.excess / (1 + self.excess * z)

    def prob(self, k: np.ndarray) -> np.ndarray:
        """Returns Pr[K = k] for integers k (n,), so that `tuning` can draw K."""
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
        # `first` is log Pr[K = 1]: Pr[K = 1] = m e^-rise(1) = f'(0) for f(x) = E x^K.
        shape, k_or_1 = _SHAPES[self.distribution], np.maximum(k, 1)
        first = math.log(self.mean) - (1 + shape) * math.log1p(self.excess)
        log = scipy.special.gammaln(k_or_1 + shape) - scipy.special.gammaln(k_or_1 + 1)
        log -= scipy.special.gammaln(1 + shape)
        log += first - (k_or_1 - 1) * math.log1p(1 / self.excess)
        return np.where(k >= 1, np.exp(log), 0.0)


def tuning_epsilon(
    base: float | DpEvent | PrivacyGuarantee,
    delta: float,
    *,
    mean_trials: float,
    distribution: TrialDistribution = "geometric",
) -> float:
    """Returns the epsilon of releasing the best of a random number of private runs.

    Args:
        base: the cost of one run, its score included: a pure epsilon; a `dp_accounting`
            event as `epsilon_of` takes it, under REPLACE_ONE; or a
            `PrivacyGuarantee` under its own relation. If no accountant reads the event
            of a guarantee, its epsilon and delta are used.
        delta: privacy parameter of the selection, in [0, 1). At 0 only runs with a pure
            epsilon have a finite epsilon.
        mean_trials: the mean of the number K of runs.
        distribution: the distribution of K. "logarithmic", "geometric" and
            "negative_binomial" (of shape -1/2) have K >= 1 and mean_trials >= 1, which
            is the mean after truncation. "poisson" and "binomial" (of ceil(2 mean)
            draws) may have K = 0, which counts in the mean; a public default is then
            released.

    Returns:
        epsilon >= 0, rounded up: by one part in 1e9 for a pure epsilon, otherwise by up
        to half a percent; inf without privacy.

    Raises:
        ValueError: If an argument is out of its range, or no accountant reads the
            event; or if a guarantee is of a drawn `Sample`, which runs would share.

    Privacy:
        The best run and its score are together (epsilon, delta)-DP under the relation
        of the base, if the runs are independent, with candidates of one distribution
        and fresh noise; K is drawn once, independently of the data and the runs;
        neither K nor the other runs are released; and ties are broken independently of
        the data. Renyi bounds are no larger than Theorems 2 and 6 of Papernot and
        Steinke.

    Example:
        Ten runs on average, of epsilon 1/3 each (1 by the theorem for any mean), or
        with Gaussian noise of multiplier 8:

        >>> from dp_accounting import DpEvent, GaussianDpEvent
        >>> print(f"{tuning_epsilon(1 / 3, 0.0, mean_trials=10):.3f}")
        0.877
        >>> print(f"{tuning_epsilon(GaussianDpEvent(8.0), 1e-5, mean_trials=10):.2f}")
        0.68

    Reference:
        Papernot, Steinke (2022), "Hyperparameter tuning with Renyi differential
        privacy"; Liu, Talwar (2019), "Private selection from private candidates";
        Koskela, Redberg, Wang (2024), "Privacy profiles for private selection".
    """
    _validate.delta(delta)
    law = TrialCount(distribution, mean_trials)
    if isinstance(base, PrivacyGuarantee):
        return mixture_epsilon([base], delta, law)
    if isinstance(base, DpEvent):
        return _price(_profiles.readable("base", base, REPLACE_ONE), float(delta), law)
    _validate.within(0.0, math.inf, base=base)
    return _price(_profiles.approximate(float(base), 0.0), float(delta), law)


def mixture_epsilon(
    bases: Sequence[PrivacyGuarantee], delta: float, law: TrialCount
) -> float:
    """Returns the epsilon of releasing only the best of K runs, at a given delta."""
    # Each run has one of the guarantees `bases`, by a draw that ignores the data (of a
    # candidate, for example). `law` is the distribution of K; see `tuning_epsilon`.
    rule = (
        "the guarantee of runs that do not share a sample: search on the sample, "
        "and pass the guarantee of the search to `Sample.privacy`"
    )
    for base in bases:
        _validate.require(not samples_of(base.dp_event), "base", base, rule)
    return _price(_profiles.worst([base._profile for base in bases]), float(delta), law)


def tuning_budget(
    epsilon: float,
    delta: float,
    *,
    mean_trials: float,
    distribution: TrialDistribution = "geometric",
) -> float | GaussianDpEvent:
    """Returns the budget of each run, to release the best of a random number of runs.

    It is the inverse of `tuning_epsilon`; epsilon is positive and finite.

    Returns:
        A base for which `tuning_epsilon` is epsilon or slightly less: at delta = 0 the
        pure epsilon of a run, else a Gaussian event with the smallest noise multiplier
        of a run (all its releases together, its score included). For a solver on full
        batches `gaussian_epsilon(event.noise_multiplier, delta, sensitivity=1.0)` is
        then the epsilon of a run at any delta.

    Privacy:
        As for `tuning_epsilon`.

    Example:
        >>> print(f"{tuning_budget(1.0, 0.0, mean_trials=10):.3f}")
        0.380
        >>> each = tuning_budget(1.0, 1e-5, mean_trials=10)
        >>> print(f"{each.noise_multiplier:.1f}")
        5.6
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    law = TrialCount(distribution, mean_trials)
    if delta == 0:
        return _largest(lambda x: _pure_price(x, law), epsilon, upper=float(epsilon))

    def price(mu: float) -> float:  # increases with mu = 1 / multiplier
        return _price(_profiles.gaussian(mu), delta, law)

    upper = 1.0
    while price(upper) <= epsilon:
        upper *= 2
    return GaussianDpEvent((1 + _SLACK) / _largest(price, epsilon, upper=upper))


def _price(profile: Profile, delta: float, law: TrialCount) -> float:
    pure = _pure_price(profile.pure, law)
    if delta == 0:
        return pure
    price = min(pure, _profile_price(profile, delta, law))
    if profile.renyi is not None:
        price = min(price, _renyi_price(profile, delta, law))
    return price


def _pure_price(epsilon: float, law: TrialCount) -> float:
    """Returns the pure epsilon of the best of runs with a pure epsilon each."""
    if epsilon in (0.0, math.inf):
        return epsilon
    z = np.exp(-np.logaddexp(0.0, np.array([epsilon, -epsilon])))
    low, high = law.rise(z)
    return float(epsilon + high - low) * (1 + _SLACK)


def _profile_price(profile: Profile, delta: float, law: TrialCount) -> float:
    """Returns epsilon at `delta` of the best of K runs, by a run's privacy profile."""
    slopes, roots = _support(profile, law)
    # The maximum of the lines slope (r - root) and 0 is sum_k c_k (r - e^b_k)_+, where
    # `steps` are c_k and `shifts` are b_k. The best run then has the delta
    # sum_k c_k delta(epsilon + b_k).
    steps = np.diff(slopes, prepend=0.0)
    shifts = np.log(np.diff(slopes * roots, prepend=0.0) / steps)

    def excess(epsilon: float) -> float:
        parts = steps * profile.delta_at(epsilon + shifts)
        return float(np.sum(parts)) * (1 + _SLACK) - delta

    return _profiles.root(excess)


def _support(profile: Profile, law: TrialCount) -> tuple[np.ndarray, np.ndarray]:
    """Returns slopes, increasing, and roots of lines that bound a function F(r)."""
    # The privacy profile of the best of K runs follows from a bound of F, (2) of this
    # module. F(r) is at most the maximum of 0 and of the lines slope (r - root):
    # `docs/privacy/proofs/choices.md`, 6.4.

    def g(w: np.ndarray) -> np.ndarray:
        return law.mean * np.exp(-law.rise(w))

    least = 1e-30 / max(law.mean, 1.0) ** 2
    z = np.union1d(np.geomspace(least, 1.0, _NUM_CELLS), np.linspace(0.05, 1.0, 1_000))
    reach = profile.reach(z)
    chord = np.diff(reach) / np.diff(z)
    # In a cell the concave frontier is below the extended chords of both neighbors,
    # which cross at `meets`.
    before, after = chord[:-2], chord[2:]
    left, right = z[1:-2], z[2:-1]
    rise, bend = reach[2:-1] - reach[1:-2], np.maximum(before - after, 1e-300)
    meets = np.clip(left + (rise - after * (right - left)) / bend, left, right)
    by_after = reach[2:-1] - after * (right - meets)
    at_meets = np.minimum(reach[1:-2] + before * (meets - left), by_after)
    # In cells without two neighbors the bound is the largest value.
    z = np.r_[0.0, np.sort(np.r_[z, meets])]
    reach = np.sort(np.r_[reach[0], reach, at_meets])
    reach = np.minimum(reach * (1 + _SLACK), 1.0)
    low, high = reach[:-1].copy(), reach[1:]
    low[[0, 1, -1]] = high[[0, 1, -1]]
    # The tangent of the convex g is a lower bound; where it is poor, g(high) serves.
    middle = (low + high) / 2
    tangent = -g(middle) * law.steepness(middle)
    ends = [g(middle) + tangent * (end - middle) for end in (low, high)]
    is_fine = ends[1] > g(high) / 2
    values = [np.where(is_fine, value, g(high)) for value in ends]
    slopes = np.r_[g(z[:-1]), np.where(is_fine, g(z[1:]), g(z[:-1]))]
    roots = np.concatenate(values) / slopes
    envelope = _envelope(slopes, roots)
    return slopes[envelope], roots[envelope]


def _envelope(slopes: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Returns the indices of the lines on the upper envelope, in order of slope."""
    # Line i is slopes[i] (r - roots[i]). The envelope is the maximum of all lines and
    # 0, over r; `_profile_price` has no use for lines that never reach it.
    order = np.lexsort((roots, slopes))
    hull: list[int] = []
    for i in order.tolist():
        if hull and slopes[i] == slopes[hull[-1]] and roots[i] >= roots[hull[-1]]:
            continue
        while hull:
            top = hull[-1]
            if slopes[i] == slopes[top] or roots[i] <= roots[top]:
                hull.pop()  # below the new line wherever it is above zero
                continue
            if len(hull) == 1:
                break
            under = hull[-2]
            if _meeting(slopes, roots, top, i) <= _meeting(slopes, roots, under, top):
                hull.pop()
                continue
            break
        hull.append(i)
    return np.array(hull)


def _meeting(slopes: np.ndarray, roots: np.ndarray, low: int, high: int) -> float:
    """Returns the point where two lines of different slope meet."""
    rise = slopes[high] * roots[high] - slopes[low] * roots[low]
    return float(rise / (slopes[high] - slopes[low]))


def _renyi_price(profile: Profile, delta: float, law: TrialCount) -> float:
    """Returns epsilon at `delta` of the best of K runs, by each run's Renyi bounds."""
    assert profile.renyi is not None
    orders, values = profile.renyi
    slope = max(float(law.rise(np.array([1e-12]))[0]) * 1e12, 1.0)
    fine = np.geomspace(1e-9 / slope, 1.0, 10_000)
    ends = np.union1d(fine, np.linspace(0, 1, 20_000))
    rises, reached = law.rise(ends), law.rise(profile.reach(ends))
    least = math.inf
    for order, value in zip(orders.tolist(), values.tolist(), strict=True):
        largest = np.max((order - 1) * reached[1:] - order * rises[:-1])
        selected = value + (float(largest) + math.log(law.mean)) / (order - 1)
        epsilon = selected + math.log1p(-1 / order)
        epsilon -= (math.log(delta) + math.log(order)) / (order - 1)
        least = min(least, epsilon)
    return max(least * (1 + _SLACK), 0.0)


def _largest(price: Callable[[float], float], epsilon: float, *, upper: float) -> float:
    """Returns the largest x in (0, upper] for which price(x) is at most epsilon."""
    # `price`, increasing, is the epsilon of the best of K runs of privacy x each: an
    # epsilon, or a sensitivity / stddev.
    if price(upper) <= epsilon:
        return upper
    lower = upper / 2
    while price(lower) > epsilon:
        lower, upper = lower / 2, lower
    solution = scipy.optimize.root_scalar(
        lambda x: price(x) - epsilon, bracket=(lower, upper), rtol=1e-6
    )
    crossing = float(solution.root)
    while price(crossing) > epsilon:
        crossing *= 1 - 1e-6
    return crossing
