"""Lower bounds on epsilon by attacks that distinguish two neighboring data sets.

An attack guesses from which of the two data sets a release came. With false positive
rate f and true positive rate t, (epsilon, delta)-differential privacy implies

    t <= e^epsilon f + delta   and   1 - f <= e^epsilon (1 - t) + delta,         (1)

and mu-Gaussian differential privacy implies Phi^-1(t) - Phi^-1(f) <= mu         (2).

Counts of independent releases bound f from above and t from below (Clopper and Pearson
1934), hence epsilon and mu from below.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.stats

from dpjax import _validate
from dpjax._types import Key, PyTree
from dpjax.accounting import gaussian_epsilon
from dpjax.audit._releases import Release, Releases, Statistic
from dpjax.audit._statistics import learn_statistics

Bound = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of t from below, f from above

# The first share of the releases chooses the attack, the others measure it.
_CHOICE = 0.3

# `gaussian_epsilon` rounds up by 1e-10, and below 1e-4 it is an upper bound only.
_EPSILON_SLACK = 1e-9
_SMALLEST_EPSILON = 1e-4


@dataclasses.dataclass(frozen=True)
class Audit:
    """A lower bound on epsilon, and the attack that proves it.

    The attack guesses "neighbor" if direction * (statistic - threshold) >= 0.

    Attributes:
        epsilon: the lower bound, at least zero.
        delta: the delta for which the bound holds.
        confidence: the probability that the bound holds.
        num_releases: number of releases, of both data sets together.
        num_tested: number of releases of each data set that measured the attack.
        threshold: threshold of the statistic.
        direction: 1 or -1.
        false_positives: tested releases of the data that were guessed "neighbor".
        true_positives: tested releases of the neighbor that were guessed "neighbor".
        roc: these two counts at other thresholds, of shape (k, 2), increasing.
    """

    epsilon: float
    delta: float
    confidence: float
    num_releases: int
    num_tested: int
    threshold: float
    direction: int
    false_positives: int
    true_positives: int
    roc: np.ndarray = dataclasses.field(repr=False, compare=False)

    @property
    def mu(self) -> float:
        """The lower bound on mu of Gaussian differential privacy, by this attack."""
        low, _ = self.rate_bounds(self.true_positives)
        _, high = self.rate_bounds(self.false_positives)
        return max(0.0, float(_mu_bound(low, high)))

    def rate_bounds(self, counts: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ends of confidence intervals of rates, from counts of positives.

        Each end fails with probability (1 - confidence) / 2.
        """
        significance = (1 - self.confidence) / 2
        return clopper_pearson(np.asarray(counts), self.num_tested, significance)


def epsilon_lower_bound(
    release: Release,
    data: PyTree,
    neighbor: PyTree,
    *,
    key: Key,
    delta: float = 0.0,
    num_releases: int = 100_000,
    confidence: float = 1 - 1e-6,
    is_gaussian: bool = False,
    statistic: Statistic | None = None,
    batch_size: int | None = None,
    vectorize: bool = True,
) -> Audit:
    """A lower bound on the epsilon of any randomized function, by an attack.

    The attack (a statistic of the release, a threshold, a direction) is chosen on the
    first 3/10 of the releases. The other releases bound its rates f and t, and

        epsilon >= max(log((t - delta) / f), log((1 - f - delta) / (1 - t))),

    by (1) of this module. If the claim is Gaussian differential privacy, the attack
    bounds mu >= Phi^-1(t) - Phi^-1(f) by (2), and the epsilon of this mu at delta is
    returned. For small delta this bound is much closer to the truth, because frequent
    outcomes reveal mu, but only rare ones reveal epsilon at delta.

    Args:
        release: `release(key, data)`, any traceable function that returns a pytree of
            real arrays. It is compiled once and vectorized over keys, not over data.
        data: a pytree of arrays.
        neighbor: a pytree of the same shapes and dtypes.
        key: a typed key, used once here. Every release gets its own key.
        delta: privacy parameter for which to bound epsilon, in [0, 1), and not 0 if
            is_gaussian.
        num_releases: number of releases, half of each data set; at least 100.
        confidence: the probability that the bound is not too high.
        is_gaussian: whether the claim is mu-Gaussian DP: composed Gaussian noise on
            values of bounded l2 sensitivity, and its post-processing.
        statistic: a traceable function from a release to a scalar that tends to be
            higher (or lower) for one of the data sets. By default the best of those
            fitted to the first releases: a linear discriminant, log ratios of
            histograms of each coordinate, or of counts of each distinct release.
        batch_size: number of releases that are vectorized together; by default it
            follows from the sizes of data and release, at most 10,000.
        vectorize: whether release can be traced. If not, it is called on the host for
            one release after the other.

    Returns:
        An `Audit`, the same for the same key; `audit.mu` is the bound on mu. With
        is_gaussian an epsilon below 1e-4 is returned as zero.

    Raises:
        ValueError: If an argument is out of its range, the data sets differ in
            structure, shape or dtype, a release has a leaf that is not real, or a
            statistic is not a real scalar.

    Privacy:
        If data and neighbor are neighbors, and release is (epsilon, delta)-DP, then
        audit.epsilon <= epsilon with probability `confidence` over the releases,
        because the attack is fixed before the releases that test it are used, their
        counts are binomial, and each of the two rates fails with probability
        (1 - confidence) / 2. A bound above a claim refutes it; a low bound proves
        nothing, because other data sets or attacks may give a higher one. With
        is_gaussian the bound refutes Gaussian claims only, not a claim of (epsilon,
        delta) for one delta.

    Example:
        >>> import jax
        >>> from dpjax.mechanisms import laplace
        >>> audit = epsilon_lower_bound(
        ...     lambda key, value: laplace(key, value, scale=1.0), 0.0, 1.0,
        ...     key=jax.random.key(0))
        >>> print(f"{audit.epsilon:.2f} of 1")
        0.92 of 1
        >>> from dpjax.accounting import gaussian_stddev
        >>> from dpjax.mechanisms import gaussian
        >>> stddev = gaussian_stddev(1.0, 1e-5, sensitivity=1.0)
        >>> audit = epsilon_lower_bound(
        ...     lambda key, value: gaussian(key, value, stddev=stddev), 0.0, 1.0,
        ...     key=jax.random.key(0), delta=1e-5, is_gaussian=True)
        >>> print(f"{audit.epsilon:.2f} of 1")
        0.71 of 1

    Reference:
        Kairouz, Oh, Viswanath (2015), "The composition theorem for differential
        privacy", Theorem 2.1, for (1). Dong, Roth, Su (2022), "Gaussian differential
        privacy", Definition 2.6 and Corollary 2.13, for (2). Clopper, Pearson (1934).
        Attacks as lower bounds: Jagielski, Ullman, Oprea (2020), "Auditing
        differentially private machine learning"; Nasr et al. (2023), "Tight auditing of
        differentially private machine learning"; Bichsel et al. (2021), "DP-Sniper",
        for fitted attacks.
    """
    _validate.delta(delta)
    source = Releases(release, data, neighbor, statistic, batch_size, vectorize)
    if is_gaussian:
        _validate.probability(delta=delta)
        bound, epsilon_fn = _mu_bound, partial(_epsilon_of_mu, delta=delta)
    else:
        bound, epsilon_fn = partial(_epsilon_bound, delta=delta), float
    return _attack(source, key, delta, num_releases, confidence, bound, epsilon_fn)


def clopper_pearson(
    counts: np.ndarray, total: int, significance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns both ends of exact confidence intervals of the rates counts / total.

    Each end fails with probability `significance`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        low = scipy.stats.beta.ppf(significance, counts, total - counts + 1)
        high = scipy.stats.beta.isf(significance, counts + 1, total - counts)
    return np.where(counts > 0, low, 0.0), np.where(counts < total, high, 1.0)


def _epsilon_of_mu(mu: np.ndarray, delta: float) -> float:
    if mu <= 0:
        return 0.0
    epsilon = gaussian_epsilon(1 / float(mu), delta, sensitivity=1.0)
    return 0.0 if epsilon <= _SMALLEST_EPSILON else epsilon * (1 - _EPSILON_SLACK)


def _epsilon_bound(low: np.ndarray, high: np.ndarray, delta: float) -> np.ndarray:
    # (1) with t >= low and f <= high; neither denominator can be zero.
    ratios = np.maximum((low - delta) / high, (1 - high - delta) / (1 - low))
    return np.log(np.maximum(ratios, 1e-300))


def _mu_bound(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    # (2), with -inf where low is 0 or high is 1.
    return scipy.stats.norm.ppf(low) - scipy.stats.norm.ppf(high)


def _attack(
    source: Releases,
    key: Key,
    delta: float,
    num_releases: int,
    confidence: float,
    bound: Bound,
    epsilon_fn: Callable[[np.ndarray], float],
) -> Audit:
    _validate.typed_key(key)
    _validate.count(num_releases=num_releases)
    _validate.require(num_releases >= 100, "num_releases", num_releases, "at least 100")
    _validate.probability(confidence=confidence)
    if source.batch_size is not None:
        _validate.count(batch_size=source.batch_size)
    num_each = num_releases // 2
    outputs = source.draw(key, num_each)
    first = int(_CHOICE * num_each)
    num_tested = num_each - first
    significance = (1 - confidence) / 2

    def value(counts: np.ndarray, total: int) -> np.ndarray:
        low, high = clopper_pearson(counts, total, significance)
        return bound(low[..., 1], high[..., 0])

    half, statistics = 0, [_only_column]
    if source.statistic is None:
        half = first // 2
        statistics = learn_statistics(*(rows[:half] for rows in outputs))
    best = None
    for score in statistics:
        scores = [score(rows[half:first]) for rows in outputs]
        thresholds = _thresholds(np.concatenate(scores))
        for direction in (1, -1):
            values = value(_positives(scores, thresholds, direction), first - half)
            i = int(np.argmax(values))
            if best is None or values[i] > best[0]:
                best = values[i], score, thresholds, thresholds[i], direction
    assert best is not None
    _, score, thresholds, threshold, direction = best

    scores = [score(rows[first:]) for rows in outputs]
    counts = _positives(scores, np.array([threshold]), direction)[0]
    return Audit(
        epsilon=max(0.0, epsilon_fn(value(counts, num_tested))),
        delta=delta,
        confidence=confidence,
        num_releases=2 * num_each,
        num_tested=num_tested,
        threshold=float(threshold),
        direction=direction,
        false_positives=int(counts[0]),
        true_positives=int(counts[1]),
        roc=_positives(scores, thresholds, direction)[::-direction],
    )


def _only_column(rows: np.ndarray) -> np.ndarray:
    return np.nan_to_num(rows[:, 0], nan=-np.inf, posinf=np.inf, neginf=-np.inf)


def _thresholds(scores: np.ndarray) -> np.ndarray:
    """Returns a few hundred of the scores, increasing, denser at both ends."""
    scores = np.sort(scores)
    ranks = np.geomspace(1, len(scores), 200).astype(int) - 1
    even = np.linspace(0, len(scores) - 1, 200).astype(int)
    return np.unique(scores[np.concatenate([ranks, len(scores) - 1 - ranks, even])])


def _positives(
    scores: list[np.ndarray], thresholds: np.ndarray, direction: int
) -> np.ndarray:
    """Returns the number of positives of each side and threshold, of shape (k, 2)."""
    counts = []
    for side in scores:
        side = np.sort(side)
        if direction == 1:
            count = len(side) - np.searchsorted(side, thresholds, "left")
        else:
            count = np.searchsorted(side, thresholds, "right")
        counts.append(count)
    return np.stack(counts, axis=1)
