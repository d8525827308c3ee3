"""Noise and epsilon of Gaussian training on full, Poisson or fixed-size batches.

`noise_multiplier` always means stddev / l2 sensitivity under the stated relation. A sum
of records of l2 norm at most C has sensitivity 2C when one record is replaced, C when
one is added or removed. dp_accounting uses other units: for the same event class, its
PLD accountant expects stddev / C under either relation, its RDP accountant stddev /
sensitivity. `_sampled_gaussian.py` translates.
"""

import math
from typing import Any

from dp_accounting import DpEvent

from dpjax import _validate
from dpjax._types import REPLACE_ONE, NeighboringRelation, NoiseName
from dpjax.accounting._correlated import Strategy, independent_releases
from dpjax.accounting._sampled_calibration import calibrate
from dpjax.accounting._sampled_gaussian import Scheme, scheme_of


def noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    num_steps: int,
    sampling_prob: float = 1.0,
    num_samples: int | None = None,
    batch_size: int | None = None,
    num_bins: int | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    noise: NoiseName = "gaussian",
    other_multiplier: float = math.inf,
    strategy: Strategy | None = None,
    max_participations: int = 1,
    min_separation: int = 1,
    group_size: int = 1,
) -> float:
    """The smallest stddev / l2 sensitivity that keeps a training run within budget.

    The arguments determine how batches are drawn:

    * neither of those below: every step uses all records; exact Gaussian composition.
    * `sampling_prob` < 1: Poisson batches; privacy loss distributions.
    * `num_samples` and `batch_size`: batches of fixed size, drawn without replacement
      anew in each step; privacy loss distributions. Replace-one only.
    * `num_bins`: each record enters one of every `num_bins` steps, chosen uniformly,
      independently and anew (`dpjax.batching.BallsInBins`); privacy loss distributions.
    * disjoint batches, each used once: pass `num_steps=1` for any number of batches,
      because a replaced record lies in one of them (see `dpjax.batching.Disjoint`).

    Args:
        epsilon: privacy parameter, 0 < epsilon <= inf.
        delta: privacy parameter in [0, 1).
        num_steps: number of noisy steps T; each may depend on the earlier ones.
        sampling_prob: probability in (0, 1] with which each record enters a batch.
        num_samples: public number of records; only with `batch_size`.
        batch_size: number of records in every batch; only with `num_samples`.
        num_bins: c, number of steps of an epoch, of which a record enters one; the last
            epoch may be shorter. In all cases tried the multiplier was at most that of
            Poisson batches under ADD_OR_REMOVE_ONE, and above it by up to 15 per cent
            under REPLACE_ONE and epsilon at most 3 (26 at 20): a looser bound is used.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.
        noise: the `noise` of an estimator. For other noise than "gaussian" the
            multiplier z means that a step is 1 / (2 z^2)-zCDP, as with Gaussian noise
            of multiplier z; batches may then not be sampled.
        other_multiplier: noise multiplier of another Gaussian release, on all records,
            that shares the budget, such as `stats["noise_multiplier"]` of
            `dp_linear_model`; several count as one of (sum of z^-2)^(-1/2). inf: none.
        strategy: one of `dpjax.mechanisms`, such as `BandedToeplitz`, whose noise is
            correlated over at least `num_steps` steps. None: independent noise. With a
            strategy pass `**batching.participation(num_samples, num_steps)`; then
            `sampling_prob` is the probability with which a record enters each of its
            own steps, as in `CyclicPoisson`.
        max_participations: with a strategy, the most steps that a record may enter.
        min_separation: with a strategy, the least distance of two of these steps; 1 if
            they may be consecutive.
        group_size: k, the most records that change at once: all that one person has.
            Under ADD_OR_REMOVE_ONE they are added or removed together. The multiplier
            stays that of one record. Each record is drawn by itself.

    Returns:
        Standard deviation of each step's noise (with a strategy: of the independent
        noise that it correlates), divided by the l2 sensitivity of the step under
        `relation`; rounded up, with sampling or other releases by at most 0.1 per cent.
        It is inf at delta = 0 and 0.0 at epsilon = inf. With sampling it is the
        smallest of three: of full batches, of privacy loss distributions, and of Renyi
        divergences, because for delta below 1e-15 num_steps the second is infinite;
        with `num_bins`, and for groups, of the first two.

    Raises:
        ValueError: If an argument is out of range, two sampling schemes are given,
            fixed-size batches are given under another relation than REPLACE_ONE, noise
            is not Gaussian with sampled batches or bins (no gain is proved there),
            `other_multiplier` alone costs more than epsilon, a strategy has fewer
            steps or, with sampling_prob below 1, more bands than min_separation, or
            group_size is above 1 with num_bins, with batch_size, or with a strategy and
            sampling_prob below 1: no gain from sampling is proved there.

    Privacy:
        The T noisy steps and the other releases, in any order, are together (epsilon,
        delta)-DP under `relation`, if the choice of the records of a batch depends only
        on fresh randomness and stays secret. Divide sums by a public constant, never by
        the realized batch size. With `sampling_prob` or `num_bins`, REPLACE_ONE also
        needs the norm of each record's contribution to be at most half the sensitivity,
        because a record outside the batch contributes zero: a value in [0, 1] has
        sensitivity 1, but counts as 2 here. There one thousandth of delta is reserved
        for batches that exceed their capacity (`batching.Poisson`), which must be one
        for this epsilon and delta, those of the group.

    Example:
        One record in a hundred per step. The sensitivity of a sum of clipped records is
        twice the clip norm, so the noise is 2 x 1.18 clip norms, or 2 x 118 without
        sampling.

        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000, sampling_prob=0.01), 2)
        1.18
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000), 2)
        117.97

        A tenth of the budget for another release, and nine tenths for these, because
        the precisions (inverse variances) of the noise add up:

        >>> tenth = noise_multiplier(1.0, 1e-5, num_steps=1) * 10**0.5
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000, sampling_prob=0.01,
        ...                        other_multiplier=tenth), 2)
        1.25

        The same for all of up to four records of a person, of which a batch has more
        than one only by chance:

        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000, sampling_prob=0.01,
        ...                        group_size=4), 2)
        4.72

        The largest noise of a prefix sum of 64 steps, in units of a step's
        sensitivity, with a binary tree and with independent noise:

        >>> from dpjax.mechanisms import BinaryTree
        >>> tree = noise_multiplier(1.0, 1e-5, num_steps=64, strategy=BinaryTree(64))
        >>> round(tree * math.sqrt(6), 1)  # 63 is a sum of six nodes
        24.2
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1) * math.sqrt(64), 1)
        29.8

    Reference:
        Full batches: Balle, Wang (2018), Theorem 8. Poisson: the worst pair of
        distributions is proved in `_sampled_gaussian.py` for a replaced record, by Zhu,
        Dong, Wang (2022), Theorem 11, for one that is added or removed; composition:
        Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Connect the dots. Fixed
        size: Balle, Barthe, Gaboardi (2018), Privacy amplification by subsampling,
        Theorem 11, proved and composed in `_fixed_size.py`. Bins: Feldman, Shenfeld
        (2025), "Privacy amplification by random allocation"; both relations are proved
        and computed in `_random_allocation.py`. Renyi divergences:
        `_sampled_renyi.py`. Groups: `_sampled_group.py`. Strategies: Denisov, McMahan,
        Rush, Smith, Thakurta (2022), Theorem 2.1, and Choquette-Choo, Ganesh, McKenna,
        McMahan, Rush, Thakurta, Xu (2023), "(Amplified) banded matrix factorization",
        Theorems 2 and 4, with the proof in `_correlated.py`.
    """
    _validate.above_zero(epsilon=epsilon)
    _validate.delta(delta)
    scheme, scale = _scheme(
        strategy,
        max_participations,
        min_separation,
        num_steps=num_steps,
        sampling_prob=sampling_prob,
        num_samples=num_samples,
        batch_size=batch_size,
        num_bins=num_bins,
        relation=relation,
        noise=noise,
        other_multiplier=other_multiplier,
        group_size=group_size,
    )
    return scale * calibrate(float(epsilon), float(delta), scheme)


def noise_multiplier_to_epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    num_steps: int,
    sampling_prob: float = 1.0,
    num_samples: int | None = None,
    batch_size: int | None = None,
    num_bins: int | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    noise: NoiseName = "gaussian",
    other_multiplier: float = math.inf,
    strategy: Strategy | None = None,
    max_participations: int = 1,
    min_separation: int = 1,
    group_size: int = 1,
) -> float:
    """The epsilon that a training run with a given noise multiplier costs.

    The inverse of the function `noise_multiplier`, whose other arguments and conditions
    are the same here. The multiplier is stddev / l2 sensitivity under `relation`, from
    0 to inf, and delta a privacy parameter in [0, 1).

    Returns:
        epsilon >= 0, an upper bound; inf without noise or at delta = 0.

    Raises:
        ValueError: As for `noise_multiplier`.

    Privacy:
        The T noisy steps and the other releases are together (epsilon, delta)-DP
        under `relation`.

    Example:
        >>> epsilon = noise_multiplier_to_epsilon(
        ...     1.18, 1e-5, num_steps=1000, sampling_prob=0.01)
        >>> round(epsilon, 2)
        1.0

    Reference:
        As for `noise_multiplier`.
    """
    _validate.within(0.0, math.inf, noise_multiplier=noise_multiplier)
    _validate.delta(delta)
    scheme, scale = _scheme(
        strategy,
        max_participations,
        min_separation,
        num_steps=num_steps,
        sampling_prob=sampling_prob,
        num_samples=num_samples,
        batch_size=batch_size,
        num_bins=num_bins,
        relation=relation,
        noise=noise,
        other_multiplier=other_multiplier,
        group_size=group_size,
    )
    return scheme.epsilon(float(noise_multiplier) / scale, float(delta))


def gaussian_event(
    noise_multiplier: float,
    *,
    num_steps: int = 1,
    sampling_prob: float = 1.0,
    num_samples: int | None = None,
    batch_size: int | None = None,
    num_bins: int | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    noise: NoiseName = "gaussian",
) -> DpEvent:
    """The `dp_accounting` event of Gaussian releases of a given noise multiplier.

    The arguments are those of `noise_multiplier_to_epsilon`.

    Returns:
        The event, in the convention of the one accountant that reads it correctly:

        * Poisson: `PLDAccountant(relation)`, with the same relation. The Gaussian event
          inside holds stddev / norm bound, which is twice the multiplier under
          REPLACE_ONE.
        * bins: none of `dp_accounting`. The Gaussian event inside is as for Poisson.
        * fixed size: `RdpAccountant(neighboring_relation=REPLACE_ONE)`, which reports
          more than `noise_multiplier_to_epsilon`. The Gaussian event holds the
          multiplier.
        * full batch: `RdpAccountant` (any relation) or
          `PLDAccountant(ADD_OR_REMOVE_ONE)`. The Gaussian event holds the multiplier.
          `PLDAccountant(REPLACE_ONE)` reads it as stddev / norm bound, and so doubles
          the sensitivity.

    Raises:
        ValueError: As for `noise_multiplier`.

    Privacy:
        An event describes a release and costs nothing. An accountant with the relation
        of the event reads it as above, reports a larger epsilon, or rejects it.

    Example:
        >>> import dp_accounting
        >>> accountant = dp_accounting.pld.PLDAccountant()
        >>> round(accountant.compose(gaussian_event(3.7306)).get_epsilon(1e-5), 3)
        1.0
        >>> gaussian_event(1.18, num_steps=1000, sampling_prob=0.01).event
        PoissonSampledDpEvent(sampling_probability=0.01,
                              event=GaussianDpEvent(noise_multiplier=2.36))
    """
    _validate.within(0.0, math.inf, noise_multiplier=noise_multiplier)
    scheme = scheme_of(
        num_steps=num_steps,
        sampling_prob=sampling_prob,
        num_samples=num_samples,
        batch_size=batch_size,
        num_bins=num_bins,
        relation=relation,
        noise=noise,
    )
    return scheme.event(float(noise_multiplier))


# Arguments that a strategy does not support, and their defaults.
_OF_INDEPENDENT_NOISE = {
    "num_samples": None,
    "batch_size": None,
    "num_bins": None,
    "noise": "gaussian",
    "other_multiplier": math.inf,
}


def _scheme(
    strategy: Strategy | None, max_participations: int, min_separation: int, **run: Any
) -> tuple[Scheme, float]:
    """Returns releases that cost as much as a run, and the run's noise over theirs."""
    pattern = {
        "max_participations": max_participations,
        "min_separation": min_separation,
    }
    if strategy is None:
        for name, value in pattern.items():
            _validate.require(value == 1, name, value, "1 without a strategy")
        return scheme_of(**run), 1.0
    for name, default in _OF_INDEPENDENT_NOISE.items():
        rule = f"{default}, the default, with a strategy"
        _validate.require(run[name] == default, name, run[name], rule)
    rule = "1 with a strategy and sampling_prob < 1: proved for one record"
    has_gain = run["sampling_prob"] < 1 and run["group_size"] != 1
    _validate.require(not has_gain, "group_size", run["group_size"], rule)
    releases, scale = independent_releases(
        strategy,
        num_steps=run["num_steps"],
        sampling_prob=run["sampling_prob"],
        **pattern,
    )
    return scheme_of(**run | releases), scale
