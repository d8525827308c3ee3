"""The privacy cost of releasing the best of a random number of private runs.

Let x be the probability that a run is at most y, z = 1 - x, f(x) = E x^K, and rise as
in `_trial_counts`. The best of K runs of density q has the density

    a(y) = q(y) f'(x) = m q(y) e^-rise(z),   m = E K.                               (1)

Pure epsilon e: e + rise(z') - rise(z) at z = 1 / (1 + e^e), z' = 1 - z, and this is
tight: `docs/privacy/proofs/choices.md`, 6.3. A profile: with (2) of `_profiles`,

    F(r) = sup over z of (f'(1 - z) r - f'(1 - frontier(z)))_+,                      (2)

bounded by sum_k c_k (r - e^b_k)_+, gives sum_k c_k delta(epsilon + b_k):
`docs/privacy/proofs/choices.md`, 6.4. Renyi: `docs/privacy/proofs/choices.md`, 6.5.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.optimize
from dp_accounting import DpEvent, GaussianDpEvent

from dpjax import _validate
from dpjax.accounting._events import samples_of
from dpjax.accounting._guarantee import PrivacyGuarantee
from dpjax.accounting._profiles import Profile, gaussian, profile_of, root, worst
from dpjax.accounting._trial_counts import TrialCount, TrialDistribution

_SLACK = 1e-9  # of sums, upwards; more than their float64 error
_NUM_CELLS = 3_000


def tuning_epsilon(
    base: float | DpEvent | PrivacyGuarantee,
    delta: float,
    *,
    mean_trials: float,
    distribution: TrialDistribution = "geometric",
) -> float:
    """The epsilon of releasing the best of a random number of private runs.

    Args:
        base: the cost of one run, its score included: a pure epsilon; a `dp_accounting`
            event in the conventions of `gaussian_event`, under REPLACE_ONE; or a
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
        to half a per cent; inf without privacy.

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
        Ten runs on average of epsilon 1/3 each; the theorem for any mean gives 1.

        >>> from dp_accounting import DpEvent, GaussianDpEvent
        >>> print(f"{tuning_epsilon(1 / 3, 0.0, mean_trials=10):.3f}")
        0.877
        >>> for law in ("geometric", "poisson"):
        ...     price = tuning_epsilon(
        ...         GaussianDpEvent(8.0), 1e-5, mean_trials=10, distribution=law)
        ...     print(f"{price:.2f}")
        0.68
        0.88

    Reference:
        Papernot, Steinke (2022), "Hyperparameter tuning with Renyi differential
        privacy"; Liu, Talwar (2019), "Private selection from private candidates";
        Koskela, Redberg, Wang (2024), "Privacy profiles for private selection".
    """
    _validate.delta(delta)
    law = TrialCount(distribution, mean_trials)
    if isinstance(base, PrivacyGuarantee):
        return mixture_epsilon([base], delta, law)
    return _price(profile_of(base), float(delta), law)


def mixture_epsilon(
    bases: Sequence[PrivacyGuarantee], delta: float, law: TrialCount
) -> float:
    """Returns `tuning_epsilon` of runs that each have one of several guarantees."""
    rule = (
        "the guarantee of independent runs, where these share a sample: search on the "
        "sample, and pass the guarantee of the search to `Sample.privacy`"
    )
    for base in bases:
        _validate.require(not samples_of(base.dp_event), "base", base, rule)
    return _price(worst([base._profile for base in bases]), float(delta), law)


def tuning_budget(
    epsilon: float,
    delta: float,
    *,
    mean_trials: float,
    distribution: TrialDistribution = "geometric",
) -> float | GaussianDpEvent:
    """The budget of each run, to release the best of a random number of them.

    The inverse of `tuning_epsilon`; epsilon is positive and finite.

    Returns:
        A base for which `tuning_epsilon` is epsilon or slightly less: at delta = 0 the
        pure epsilon of a run, else a Gaussian event with the smallest noise multiplier
        of a run (all its releases together, its score included). For a solver on full
        batches `gaussian_epsilon(event.noise_multiplier, delta, sensitivity=1.0)` is
        then the epsilon that goes with any delta.

    Raises:
        ValueError: If an argument is out of its range.

    Privacy:
        As for `tuning_epsilon`.

    Example:
        >>> print(f"{tuning_budget(1.0, 0.0, mean_trials=10):.3f}")
        0.380
        >>> each = tuning_budget(1.0, 1e-5, mean_trials=10)
        >>> print(f"{each.noise_multiplier:.1f}")
        5.6

    Reference:
        As for `tuning_epsilon`.
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta(delta)
    law = TrialCount(distribution, mean_trials)
    if delta == 0:
        return _largest(lambda x: _pure_price(x, law), epsilon, upper=float(epsilon))
    # Searches 1 / multiplier, in which the cost increases.
    upper = 1.0
    while _price(gaussian(upper), delta, law) <= epsilon:
        upper *= 2
    mu = _largest(lambda x: _price(gaussian(x), delta, law), epsilon, upper=upper)
    return GaussianDpEvent((1 + _SLACK) / mu)


def _price(profile: Profile, delta: float, law: TrialCount) -> float:
    pure = _pure_price(profile.pure, law)
    if delta == 0:
        return pure
    price = min(pure, _profile_price(profile, delta, law))
    if profile.renyi is not None:
        price = min(price, _renyi_price(profile, delta, law))
    return price


def _pure_price(epsilon: float, law: TrialCount) -> float:
    """The epsilon at the corner of a pure epsilon's region."""
    if epsilon in (0.0, math.inf):
        return epsilon
    z = np.exp(-np.logaddexp(0.0, np.array([epsilon, -epsilon])))
    low, high = law.rise(z)
    return float(epsilon + high - low) * (1 + _SLACK)


def _profile_price(profile: Profile, delta: float, law: TrialCount) -> float:
    slopes, roots = _support(profile, law)
    steps = np.diff(slopes, prepend=0.0)
    shifts = np.log(np.diff(slopes * roots, prepend=0.0) / steps)

    def excess(epsilon: float) -> float:
        parts = steps * profile.delta_at(epsilon + shifts)
        return float(np.sum(parts)) * (1 + _SLACK) - delta

    return root(excess)


def _support(profile: Profile, law: TrialCount) -> tuple[np.ndarray, np.ndarray]:
    """Bounds F by the largest of lines slope (r - root) and 0.

    The lines are those of the ends of pieces of z: the proof names them.

    Returns:
        Slopes and roots, both increasing, of the lines that are the largest somewhere.
    """

    def g(w: np.ndarray) -> np.ndarray:
        return law.mean * np.exp(-law.rise(w))

    least = 1e-30 / max(law.mean, 1.0) ** 2
    z = np.union1d(np.geomspace(least, 1.0, _NUM_CELLS), np.linspace(0.05, 1.0, 1_000))
    reach = profile.reach(z)
    chord = np.diff(reach) / np.diff(z)
    # Where the chords of the cells on both sides meet; a cell at an end has one.
    before, after = chord[:-2], chord[2:]
    left, right = z[1:-2], z[2:-1]
    rise, bend = reach[2:-1] - reach[1:-2], np.maximum(before - after, 1e-300)
    meets = np.clip(left + (rise - after * (right - left)) / bend, left, right)
    at_meets = np.minimum(
        reach[1:-2] + before * (meets - left), reach[2:-1] - after * (right - meets)
    )
    # From 0, and in cells without two neighbors, use the largest value.
    z = np.r_[0.0, np.sort(np.r_[z, meets])]
    reach = np.sort(np.r_[reach[0], reach, at_meets])
    reach = np.minimum(reach * (1 + _SLACK), 1.0)
    low, high = reach[:-1].copy(), reach[1:]
    low[[0, 1, -1]] = high[[0, 1, -1]]
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
    """Returns, by slope, the indices of lines that somewhere exceed 0 and the rest."""
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
    """Where two lines of different slope meet."""
    rise = slopes[high] * roots[high] - slopes[low] * roots[low]
    return float(rise / (slopes[high] - slopes[low]))


def _renyi_price(profile: Profile, delta: float, law: TrialCount) -> float:
    """The Renyi bound at the best of the orders."""
    assert profile.renyi is not None
    orders, values = profile.renyi
    slope = max(float(law.rise(np.array([1e-12]))[0]) * 1e12, 1.0)
    ends = np.union1d(
        np.geomspace(1e-9 / slope, 1.0, 10_000), np.linspace(0, 1, 20_000)
    )
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
    """The largest argument in (0, upper] whose price is at most epsilon."""
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
