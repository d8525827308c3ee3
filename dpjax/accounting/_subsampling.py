"""Noise and epsilon of Gaussian training on full, Poisson or fixed-size batches.

`noise_multiplier` always means stddev / l2 sensitivity under the stated relation. A sum
of records of l2 norm at most C has sensitivity 2C when one record is replaced, C when
one is added or removed. dp_accounting uses other units: for the same event class, its
PLD accountant expects stddev / C under either relation, its RDP accountant stddev /
sensitivity. `_sampled_gaussian.py` translates.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from dp_accounting import DpEvent

from dpjax import _validate
from dpjax._rounding import rounded_up
from dpjax.accounting._gaussian import gaussian_stddev
from dpjax.accounting._sampled_gaussian import (
    ROUNDED_UP,
    epsilon_of_run,
    event_of,
    is_full_batch,
    num_releases,
    without_overflow,
)
from dpjax.accounting._sampling import Sampling, independent
from dpjax.accounting._zcdp import epsilon_to_rho

# The search tries multipliers base 2^(-k / 1024): each is 7e-4 larger than the next.
_PER_HALVING = 1024
_LARGEST_HALVINGS = 1000
_LEAST, _MOST = 1e-9, 1e9  # epsilons are clipped to this range before a comparison
_LARGEST = 1e6  # a larger epsilon gets the noise of this one, which is more
# It is the first guess of the slope of log epsilon in k: halving doubles epsilon.
_RISE = math.log(2) / _PER_HALVING
# A grid of privacy losses that is coarser by this factor gives epsilon to some
# thousandths in a tenth of the time.
_COARSENESS = 16
_MOST_GUESSES = 12  # after so many evaluations a search bisects


def noise_multiplier(epsilon: float, delta: float, sampling: Sampling) -> float:
    """Returns the smallest stddev / l2 sensitivity that keeps a run within its budget.

    Args:
        epsilon: privacy parameter, 0 < epsilon <= inf.
        delta: privacy parameter in [0, 1).
        sampling: the batches of the run, such as `Sampling(num_steps=100)` for T
            releases of all records, or `batching.sampling(num_samples, num_steps)`.

    Returns:
        Standard deviation of each step's noise (with a strategy: of the independent
        noise that it correlates), divided by the l2 sensitivity of the step under the
        relation; rounded up, with sampling or other releases by at most 0.1 percent.
        It is inf at delta = 0 and 0.0 at epsilon = inf. With sampling it is the
        smallest of three bounds: by full batches, by privacy loss distributions
        (infinite for delta below 1e-15 num_steps), and by Renyi divergences; with
        `num_bins`, and for groups, it is the smaller of the first two.

    Raises:
        ValueError: If an argument is out of range, or `other_multiplier` alone costs
            more than epsilon.

    Privacy:
        The T noisy steps and the other releases, in any order, are together (epsilon,
        delta)-DP under the relation, if the choice of the records of a batch depends
        only on fresh randomness and stays secret. Divide sums by a public constant,
        never by the realized batch size. With `sampling_prob` or `num_bins`,
        REPLACE_ONE also needs the norm of each record's contribution to be at most half
        the sensitivity, because a record outside the batch contributes zero: a value in
        [0, 1] has sensitivity 1, but counts as 2 here. With these two fields one
        thousandth of delta is reserved for batches that exceed their capacity
        (`batching.Poisson`): compute the capacity for this epsilon and delta, which
        for groups are the epsilon and delta of the group.

    Example:
        Steps on one record in a hundred, then on all records:

        >>> from dpjax.batching import Poisson
        >>> sampling = Poisson(1_000).sampling(num_samples=100_000, num_steps=1000)
        >>> round(noise_multiplier(1.0, 1e-5, sampling), 2)
        1.18
        >>> round(noise_multiplier(1.0, 1e-5, Sampling(num_steps=1000)), 2)
        117.97

    Reference:
        Full batches: Balle, Wang (2018), Theorem 8. Sampling, groups, strategies:
        `docs/privacy/proofs/composition.md`, 3.5 to 3.9.
    """
    _validate.above_zero(epsilon=epsilon)
    _validate.delta(delta)
    run, scale = independent(sampling)
    return scale * _calibrate(float(epsilon), float(delta), run)


def noise_multiplier_to_epsilon(
    noise_multiplier: float, delta: float, sampling: Sampling
) -> float:
    """Returns the epsilon of a training run with a given noise multiplier.

    It is the inverse of the function `noise_multiplier`, under the same conditions. The
    multiplier is stddev / l2 sensitivity under the relation, from 0 to inf, and delta
    is in [0, 1).

    Returns:
        epsilon >= 0, an upper bound; inf without noise or at delta = 0.

    Privacy:
        The T noisy steps and the other releases are together (epsilon, delta)-DP
        under the relation of the sampling.

    Example:
        >>> sampling = Sampling(num_steps=1000, sampling_prob=0.01)
        >>> round(noise_multiplier_to_epsilon(1.18, 1e-5, sampling), 2)
        1.0
    """
    _validate.within(0.0, math.inf, noise_multiplier=noise_multiplier)
    _validate.delta(delta)
    run, scale = independent(sampling)
    return epsilon_of_run(float(noise_multiplier) / scale, float(delta), run)


def gaussian_event(
    noise_multiplier: float, sampling: Sampling | None = None
) -> DpEvent:
    """Returns the `dp_accounting` event of Gaussian releases of a noise multiplier.

    `sampling` describes the batches of the run; None: one release of all records. With
    a strategy the event describes equally costly releases of independent noise.

    Under the relation of the run these accountants read the event, in the conventions
    that `epsilon_of` describes:

    * Poisson: `PLDAccountant(relation)`.
    * bins: no accountant of `dp_accounting`. The Gaussian event is as for Poisson.
    * fixed size: `RdpAccountant(neighboring_relation=REPLACE_ONE)`, which reports more
      than `noise_multiplier_to_epsilon`.
    * full batch: `RdpAccountant` or `PLDAccountant(ADD_OR_REMOVE_ONE)`; the other
      relation doubles the sensitivity.

    An accountant of another kind reports a larger epsilon, or rejects the event. An
    event describes the steps alone, for one record: `other_multiplier` and
    `group_size` raise `ValueError`.
    """
    run, scale = independent(Sampling(num_steps=1) if sampling is None else sampling)
    for name, default in {"other_multiplier": math.inf, "group_size": 1}.items():
        value, rule = getattr(run, name), f"{default} for an event of the steps alone"
        _validate.require(value == default, name, value, rule)
    return event_of(float(noise_multiplier) / scale, run)


@functools.lru_cache(maxsize=256)
def _calibrate(epsilon: float, delta: float, run: Sampling) -> float:
    """Returns the smallest noise multiplier for which a run costs up to `epsilon`."""
    # The noise of `run` is independent. A multiplier is stddev / sensitivity of a step.
    if not is_full_batch(run) and epsilon < math.inf:
        epsilon = min(epsilon, _LARGEST)
    # Without the other release the run needs less noise: the search starts there.
    if run.other_multiplier < math.inf:
        sampled = dataclasses.replace(run, other_multiplier=math.inf)
        least = epsilon_of_run(math.inf, delta, run)
        rule = f"larger: its cost, {rounded_up(least, 4)}, exceeds epsilon, {epsilon}"
        is_fine = least <= epsilon
        _validate.require(is_fine, "other_multiplier", run.other_multiplier, rule)
        return _smallest(epsilon, delta, run, _calibrate(epsilon, delta, sampled))
    if run.noise != "gaussian":
        rho = epsilon_to_rho(epsilon, delta) / run.num_steps / run.group_size**2
        return math.sqrt(0.5 / rho) * (1 + ROUNDED_UP) if rho > 0 else math.inf
    of_run = {"sensitivity": float(run.group_size), "num_releases": num_releases(run)}
    full_batch = gaussian_stddev(epsilon, without_overflow(delta, run), **of_run)
    if is_full_batch(run):
        return full_batch
    return _smallest(epsilon, delta, run, full_batch)


def _smallest(epsilon: float, delta: float, run: Sampling, base: float) -> float:
    """Returns the smallest noise multiplier of a grid at which a run is in budget."""
    # The grid is base 2^(-k / 1024), for all integers k; `base`, where the search
    # starts, is the multiplier without sampling, or without the other release.
    if base in (0.0, math.inf):
        return base

    def multiplier(k: int) -> float:
        return base * 2.0 ** min(-k / _PER_HALVING, _LARGEST_HALVINGS)

    def excess(coarseness: int) -> Callable[[int], float]:
        @functools.cache
        def at(k: int) -> float:
            reached = epsilon_of_run(multiplier(k), delta, run, coarseness)
            return math.log(min(max(reached, _LEAST), _MOST) / epsilon)

        return at

    start, rise = 0, _RISE
    # A fine evaluation may take a fifth of a second: coarse ones find where to start.
    if run.num_bins is None and run.group_size == 1:
        coarse = excess(_COARSENESS)
        start = _last_within(coarse, 0, _RISE)
        rise = max(coarse(start + 1) - coarse(start), _RISE / 10)
    return multiplier(_last_within(excess(1), start, rise))


def _last_within(excess: Callable[[int], float], start: int, rise: float) -> int:
    """Returns the last integer k at which the increasing `excess` is at most 0."""
    # Calls are slow, so `_smallest` gives a `start`, and a guess `rise` of the slope.
    seen: dict[int, float] = {}
    within, beyond, guess = -math.inf, math.inf, start
    while within + 1 < beyond:
        k = int(guess)
        seen[k] = excess(k)
        within, beyond = (k, beyond) if seen[k] <= 0 else (within, k)
        # `excess` is nearly linear: a secant through the two values nearest to 0, or
        # one of slope `rise` at first, gives the next guess.
        near, *rest = sorted(seen, key=lambda k: abs(seen[k]))[:2]
        for other in rest:
            rise = max((seen[other] - seen[near]) / (other - near), _RISE / 10)
        zero = math.floor(near - seen[near] / rise)
        stride = 2 ** max(len(seen) - 2, 0)
        if beyond == math.inf:
            guess = max(zero, within + stride)
        elif within == -math.inf:
            guess = min(zero, beyond - stride)
        elif len(seen) > _MOST_GUESSES or not within <= zero < beyond:
            guess = (within + beyond) // 2
        else:
            guess = max(zero, within + 1)
    return int(within)
