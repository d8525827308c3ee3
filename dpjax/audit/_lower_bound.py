"""Lower bounds on epsilon by attacks that distinguish two neighboring data sets.

An attack guesses from which of the two data sets a release came. With false positive
rate f and true positive rate t, (epsilon, delta)-differential privacy implies

    t <= e^epsilon f + delta   and   1 - f <= e^epsilon (1 - t) + delta,         (1)

and mu-Gaussian differential privacy implies Phi^-1(t) - Phi^-1(f) <= mu         (2).

Counts of independent releases bound f from above and t from below (Clopper and Pearson
1934), hence epsilon and mu from below. Each of the two rates fails with probability
(1 - confidence) / 2. Source of (1): Kairouz, Oh, Viswanath (2015), "The composition
theorem for differential privacy", Theorem 2.1; of (2): Dong, Roth, Su (2022), "Gaussian
differential privacy", Definition 2.6 and Corollary 2.13. Attacks as lower bounds:
Jagielski, Ullman, Oprea (2020), "Auditing differentially private machine learning";
Nasr et al. (2023), "Tight auditing of differentially private machine learning"; Bichsel
et al. (2021), "DP-Sniper", for fitted attacks.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.stats

from dpjax import _validate
from dpjax._types import Key, PyTree
from dpjax.accounting import gaussian_epsilon
from dpjax.audit._releases import Release, Statistic, released

# The first share of the releases chooses the attack, the remaining ones measure it.
_CHOICE = 0.3

# `gaussian_epsilon` rounds up by 1e-10, and below 1e-4 it is an upper bound only.
_EPSILON_SLACK = 1e-9
_SMALLEST_EPSILON = 1e-4

Score = Callable[[np.ndarray], np.ndarray]  # (n, d) -> (n,), high for the neighbor

# A discriminant of this many coordinates needs a few times as many releases.
_MAX_COORDINATES = 256

# The edges of histograms are these quantiles, finer towards both ends.
_TAILS = 2.0 ** -np.arange(6, 13)
_QUANTILES = np.concatenate([_TAILS, np.arange(1, 32) / 32, 1 - _TAILS])


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
        roc: both counts at other thresholds, of shape (k, 2), increasing.
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
    vectorize: bool = True,
) -> Audit:
    """Returns a lower bound on the epsilon of any randomized function, by an attack.

    The first 3/10 of the releases choose the attack (a statistic of the release, a
    threshold, a direction). The rest bound its rates f and t, and so epsilon >=
    max(log((t - delta) / f), log((1 - f - delta) / (1 - t))). With is_gaussian they
    bound mu >= Phi^-1(t) - Phi^-1(f) and, from mu, the epsilon at delta: for small
    delta this bound is much closer to the true epsilon.

    Args:
        release: `release(key, data)`, any traceable function that returns a pytree of
            real arrays. It is compiled once and vectorized over keys, not over data.
        data: a pytree of arrays.
        neighbor: a pytree of the same shapes and dtypes.
        key: a typed key, used once here. Every release gets its own key.
        delta: privacy parameter in [0, 1), and not 0 if is_gaussian.
        num_releases: number of releases, half of each data set; at least 100.
        confidence: the probability that the bound is not too high.
        is_gaussian: whether the claim is mu-Gaussian DP: composed Gaussian noise on
            values of bounded l2 sensitivity, and its post-processing.
        statistic: a traceable function from a release to a scalar that tends to be
            higher (or lower) for one of the data sets. None: the best of three that are
            fitted to the first releases: a linear discriminant, and log ratios of
            histograms of each coordinate, or of counts of each distinct release.
        vectorize: False calls release on the host, for one key after the other.

    Returns:
        An `Audit`, the same for the same key. With is_gaussian, epsilon < 1e-4 is 0.

    Raises:
        ValueError: If an argument is out of its range, the data sets differ in
            structure, shape or dtype, a release has a leaf that is not real, or a
            statistic is not a real scalar.

    Privacy:
        If data and neighbor are neighbors, and release is (epsilon, delta)-DP, then
        audit.epsilon <= epsilon with probability `confidence` over the releases: the
        attack is fixed before the releases that test it are used. A bound above a claim
        refutes it (with is_gaussian, a Gaussian claim only); a low bound proves
        nothing, because other data sets or attacks may give a higher one.

    Example:
        >>> import jax
        >>> from dpjax.mechanisms import laplace
        >>> audit = epsilon_lower_bound(
        ...     lambda key, value: laplace(key, value, scale=1.0), 0.0, 1.0,
        ...     key=jax.random.key(0))
        >>> print(f"{audit.epsilon:.2f} of 1")
        0.92 of 1
    """
    _validate.delta(delta)
    bound, epsilon_fn = partial(_epsilon_bound, delta=delta), float
    if is_gaussian:
        _validate.probability(delta=delta)
        bound, epsilon_fn = _mu_bound, partial(_epsilon_of_mu, delta=delta)
    _validate.typed_key(key)
    _validate.count(num_releases=num_releases)
    _validate.require(num_releases >= 100, "num_releases", num_releases, "at least 100")
    _validate.probability(confidence=confidence)
    num_each = num_releases // 2
    outputs = released(release, data, neighbor, statistic, vectorize, key, num_each)
    first = int(_CHOICE * num_each)
    num_tested = num_each - first

    def value(counts: np.ndarray, total: int) -> np.ndarray:
        low, high = clopper_pearson(counts, total, (1 - confidence) / 2)
        return bound(low[..., 1], high[..., 0])

    half, statistics = 0, [_only_column]
    # One half of the first releases fits the statistics, the other chooses the attack.
    if statistic is None:
        half = first // 2
        statistics = learn_statistics(*(rows[:half] for rows in outputs))
    attacks = []
    for score in statistics:
        scores = [score(rows[half:first]) for rows in outputs]
        thresholds = _thresholds(np.concatenate(scores))
        for direction in (1, -1):
            values = value(_positives(scores, thresholds, direction), first - half)
            i = int(np.argmax(values))
            attacks.append((values[i], score, thresholds, thresholds[i], direction))
    _, score, thresholds, threshold, direction = max(attacks, key=lambda x: x[0])

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


def clopper_pearson(
    counts: np.ndarray, total: int, significance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns exact confidence intervals, low and high, of attacks' counts / total."""
    # Each end fails with probability `significance`.
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
    """Returns the numbers (k, 2) of releases that an attack calls "neighbor"."""
    # There is a row for each of k thresholds. The two columns, and the two arrays (n,)
    # of `scores`, are for releases of the data and of the neighbor. Scores count from
    # the threshold on, upwards for direction 1, downwards for -1.
    if direction == 1:
        counts = [len(x) - np.searchsorted(np.sort(x), thresholds) for x in scores]
    else:
        counts = [np.searchsorted(np.sort(x), thresholds, "right") for x in scores]
    return np.stack(counts, axis=1)


def learn_statistics(data: np.ndarray, neighbor: np.ndarray) -> list[Score]:
    """Returns functions from releases (n, d) to scores (n,), high for the neighbor."""
    # The functions are fitted to `data` and `neighbor`, releases (m, d) of the two data
    # sets. By Neyman and Pearson the best attack compares the log ratio of their
    # densities with a threshold: each score is the log ratio of a simple model.
    data, neighbor = _finite(data), _finite(neighbor)
    log_ratios = [_histogram(x, y) for x, y in zip(data.T, neighbor.T, strict=True)]
    # Coordinates that differ most come first; differences by chance would add noise.
    order = np.argsort([-z for z, _ in log_ratios], kind="stable")[:_MAX_COORDINATES]
    informative = [i for i in order if log_ratios[i][0] > 4.0] or [order[0]]

    def marginals(rows: np.ndarray) -> np.ndarray:
        rows = _finite(rows)
        return np.sum([log_ratios[i][1](rows[:, i]) for i in informative], axis=0)

    return [marginals, _discriminant(data, neighbor, order), *_counts(data, neighbor)]


def _histogram(data: np.ndarray, neighbor: np.ndarray) -> tuple[float, Score]:
    """Returns a z-score of how two samples (n,) differ, and a scoring function."""
    # The samples are one coordinate of releases of the two data sets. The z-score ranks
    # this coordinate among the others. The scoring function maps values (k,) of the
    # coordinate to log ratios (k,) of the two histograms.
    both = np.concatenate([data, neighbor])
    edges = np.unique(np.quantile(both, _QUANTILES, method="inverted_cdf"))

    def cells(x: np.ndarray) -> np.ndarray:
        # A cell has an even number between edges, an odd one on an edge (for an atom).
        return np.searchsorted(edges, x, "left") + np.searchsorted(edges, x, "right")

    size = 2 * len(edges) + 1
    counts = [np.bincount(cells(x), minlength=size) for x in (data, neighbor)]
    log_ratio = np.log((counts[1] + 0.5) / (counts[0] + 0.5))
    total = counts[0] + counts[1]
    used = total > 0
    chi_square = np.sum((counts[1] - counts[0])[used] ** 2 / total[used])
    num_free = used.sum() - 1
    z_score = (chi_square - num_free) / np.sqrt(2 * max(num_free, 1))
    return float(z_score), lambda x: log_ratio[cells(x)]


def _discriminant(data: np.ndarray, neighbor: np.ndarray, order: np.ndarray) -> Score:
    """Returns a linear discriminant, a function from releases (n, d) to scores (n,)."""
    # It is the log ratio of two Gaussians of one covariance, fitted to `data` and
    # `neighbor`, releases (m, d) of the two data sets, in the coordinates `order`.
    both = np.concatenate([data, neighbor])[:, order].astype(np.float64)
    # Values are clipped, because with heavy tails a mean or covariance may not exist.
    low, high = np.quantile(both, [0.001, 0.999], axis=0)
    center = np.median(both, axis=0)
    scale = np.where(high > low, high - low, 1.0)
    cut = (np.clip(both, low, high) - center) / scale
    x, y = cut[: len(data)], cut[len(data) :]
    x_mean, y_mean = x.mean(axis=0), y.mean(axis=0)
    centered = np.concatenate([x - x_mean, y - y_mean])
    covariance = centered.T @ centered / len(centered)
    ridge = 1e-6 * np.trace(covariance) / len(order) + 1e-12
    covariance += ridge * np.eye(len(order))
    weights = np.linalg.solve(covariance, y_mean - x_mean)

    def score(rows: np.ndarray) -> np.ndarray:
        return (_finite(rows)[:, order].astype(np.float64) - center) / scale @ weights

    return score


def _counts(data: np.ndarray, neighbor: np.ndarray) -> list[Score]:
    """Returns [score], for attacks on discrete noise, or [] if few releases recur."""
    # `score` maps releases (n, d) to log ratios (n,) of how often equal releases occur
    # in `neighbor` and in `data`, releases (m, d) of the two data sets.
    both = _as_keys(np.concatenate([data, neighbor]))
    rows, cells = np.unique(both, return_inverse=True)
    if len(rows) > len(both) / 4:
        return []
    parts = np.split(cells, [len(data)])
    counts = [np.bincount(part, minlength=len(rows)) for part in parts]
    log_ratio = np.append(np.log((counts[1] + 0.5) / (counts[0] + 0.5)), 0.0)

    def score(new: np.ndarray) -> np.ndarray:
        keys = _as_keys(_finite(new))
        place = np.minimum(np.searchsorted(rows, keys), len(rows) - 1)
        return log_ratio[np.where(rows[place] == keys, place, len(rows))]

    return [score]


def _finite(rows: np.ndarray) -> np.ndarray:
    # A NaN is a separate outcome, below all finite ones.
    return np.nan_to_num(rows, nan=-3e38, posinf=1e38, neginf=-1e38)


def _as_keys(rows: np.ndarray) -> np.ndarray:
    """Returns one comparable scalar for each row."""
    rows = np.ascontiguousarray(rows + 0.0)  # no negative zeros
    return rows.view(f"S{rows.dtype.itemsize * rows.shape[1]}")[:, 0]
