"""Noise and epsilon of Gaussian training on full, Poisson or fixed-size batches.

`noise_multiplier` always means stddev / l2 sensitivity under the stated relation. A sum
of records of l2 norm at most C has sensitivity 2C when one record is replaced, C when
one is added or removed. dp_accounting counts otherwise: for the same event class, its
PLD accountant wants stddev / C under either relation, its RDP accountant stddev /
sensitivity. The translation is made once, in `_sampled_gaussian.py`.
"""

import math
from typing import Any

from dp_accounting import DpEvent

from dpjax import _validate
from dpjax._types import REPLACE_ONE, NeighboringRelation, NoiseName
from dpjax.accounting._correlated import Strategy, independent_releases
from dpjax.accounting._sampled_gaussian import Scheme, calibrate, scheme_of


def noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    num_steps: int,
    sampling_prob: float = 1.0,
    num_samples: int | None = None,
    batch_size: int | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    noise: NoiseName = "gaussian",
    other_multiplier: float = math.inf,
    strategy: Strategy | None = None,
    max_participations: int = 1,
    min_separation: int = 1,
) -> float:
    """The smallest stddev / l2 sensitivity that keeps a training run within budget.

    The scheme of the batches follows from the arguments:

    * nothing: every step sees all records; exact Gaussian composition.
    * `sampling_prob` < 1: Poisson batches; privacy loss distributions.
    * `num_samples` and `batch_size`: batches of fixed size, drawn without replacement
      anew in each step; privacy loss distributions. Replace-one only.
    * disjoint batches, each used once: pass `num_steps=1`, however many batches there
      are. A replaced record lies in one of them (see `dpjax.batching.Disjoint`).

    Args:
        epsilon: privacy parameter, 0 < epsilon <= inf.
        delta: privacy parameter in [0, 1).
        num_steps: number of noisy steps T; each may depend on the earlier ones.
        sampling_prob: probability in (0, 1] with which each record enters a batch.
        num_samples: public number of records; only with `batch_size`.
        batch_size: number of records in every batch; only with `num_samples`.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.
        noise: an estimator's `noise`. Other than "gaussian", the multiplier z stands
            for a step that is 1 / (2 z^2)-zCDP, as Gaussian noise of z is; batches may
            not be sampled.
        other_multiplier: noise multiplier of other Gaussian releases, on all records,
            that share the budget, such as `stats["noise_multiplier"]` of
            `dp_linear_model`; several are as one of (sum of z^-2)^(-1/2). inf: none.
        strategy: one of `dpjax.mechanisms`, such as `BandedToeplitz`, whose noise is
            correlated over the steps; at least `num_steps` long. None: independent
            noise. With a strategy the batches are described by
            `**batching.participation(num_samples, num_steps)`, and `sampling_prob` is
            the probability to enter each of a record's own steps, as of
            `CyclicPoisson`.
        max_participations: with a strategy, of how many steps a record may be at most.
        min_separation: with a strategy, how many steps apart two of them are at least;
            1 is next to each other.

    Returns:
        Standard deviation of each step's noise (with a strategy: of the independent
        noise that it correlates), divided by the l2 sensitivity of the step under
        `relation`; rounded up, with sampling or other releases by at most
        0.1 per cent of what the accountant allows. It is inf at delta = 0 and 0.0 at
        epsilon = inf. With sampling it is the least of several: full batches; privacy
        loss distributions; and, as those show nothing where delta is below 1e-15
        num_steps, Renyi divergences.

    Raises:
        ValueError: If an argument is out of range, the two sampling schemes are mixed,
            fixed-size batches are asked for under another relation than REPLACE_ONE,
            `other_multiplier` alone costs more than epsilon, or a strategy has fewer
            steps, or with sampling_prob below 1 more bands than min_separation: no gain
            from sampling is proved there.

    Privacy:
        The T noisy steps and those other releases are together (epsilon, delta)-DP
        under `relation`, in whatever order they see each other, if which records enter
        a batch depends on fresh randomness only and stays secret. Divide sums by a
        public constant, never by the realised batch size. Poisson batches under
        REPLACE_ONE also need each record's contribution within half the sensitivity of
        zero, what a record outside the batch contributes: a value in [0, 1] has
        sensitivity 1, but here counts as 2. One thousandth of delta is set aside for
        Poisson batches that are cut at a capacity (`batching.Poisson`).

    Example:
        One record in a hundred per step. The sensitivity of a sum of clipped records is
        twice the clip norm, so the noise is 2 x 1.18 clip norms, or 2 x 118 without
        sampling.

        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000, sampling_prob=0.01), 2)
        1.18
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000), 2)
        117.97

        A tenth of the budget for another release, and nine tenths for these (precisions
        of noise add up):

        >>> tenth = noise_multiplier(1.0, 1e-5, num_steps=1) * 10**0.5
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1000, sampling_prob=0.01,
        ...                        other_multiplier=tenth), 2)
        1.25

        The largest noise of a prefix sum of 64 steps, in units of a step's
        sensitivity, with a binary tree and with independent noise:

        >>> from dpjax.mechanisms import BinaryTree
        >>> tree = noise_multiplier(1.0, 1e-5, num_steps=64, strategy=BinaryTree(64))
        >>> round(tree * math.sqrt(6), 1)  # 63 is a sum of six nodes
        24.2
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1) * math.sqrt(64), 1)
        29.8

    Reference:
        Full batches: Balle, Wang (2018), Theorem 8. Poisson: the worst pair of laws is
        proved in `_sampled_gaussian.py` for a record that is replaced, by Zhu, Dong,
        Wang (2022), Theorem 11, for one that is added or removed; they are composed by
        Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Connect the dots. Fixed
        size: Balle, Barthe, Gaboardi (2018), Privacy amplification by subsampling,
        Theorem 11, proved and composed in `_fixed_size.py`. Renyi divergences:
        `_sampled_renyi.py`. Strategies: Denisov, McMahan, Rush, Smith, Thakurta (2022),
        Theorem 2.1, and Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu
        (2023), "(Amplified) banded matrix factorization", Theorems 2 and 4, with the
        proof in `_correlated.py`.
    """
    _validate.require(epsilon > 0, "epsilon", epsilon, "positive")
    _validate.delta(delta)
    scheme, scale = _scheme(
        strategy,
        max_participations,
        min_separation,
        num_steps=num_steps,
        sampling_prob=sampling_prob,
        num_samples=num_samples,
        batch_size=batch_size,
        relation=relation,
        noise=noise,
        other_multiplier=other_multiplier,
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
    relation: NeighboringRelation = REPLACE_ONE,
    noise: NoiseName = "gaussian",
    other_multiplier: float = math.inf,
    strategy: Strategy | None = None,
    max_participations: int = 1,
    min_separation: int = 1,
) -> float:
    """The epsilon that a training run with a given noise multiplier costs.

    The inverse of `noise_multiplier`.

    Args:
        noise_multiplier: stddev / l2 sensitivity under `relation`, 0 to inf.
        delta: privacy parameter in [0, 1).
        num_steps: as of `noise_multiplier`, and so are the others.
        sampling_prob: see there.
        num_samples: see there.
        batch_size: see there.
        relation: see there.
        noise: see there.
        other_multiplier: see there.
        strategy: see there.
        max_participations: see there.
        min_separation: see there.

    Returns:
        epsilon >= 0, an upper bound; inf without noise or at delta = 0.

    Raises:
        ValueError: As for `noise_multiplier`.

    Privacy:
        The T noisy steps and those other releases are together (epsilon, delta)-DP
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
        relation=relation,
        noise=noise,
        other_multiplier=other_multiplier,
    )
    return scheme.epsilon(float(noise_multiplier) / scale, float(delta))


def gaussian_event(
    noise_multiplier: float,
    *,
    num_steps: int = 1,
    sampling_prob: float = 1.0,
    num_samples: int | None = None,
    batch_size: int | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    noise: NoiseName = "gaussian",
) -> DpEvent:
    """The `dp_accounting` event of Gaussian releases of a given noise multiplier.

    Args:
        noise_multiplier: stddev / l2 sensitivity under `relation`, 0 to inf.
        num_steps: as of `noise_multiplier`, and so are the others.
        sampling_prob: see there.
        num_samples: see there.
        batch_size: see there.
        relation: see there.
        noise: see there.

    Returns:
        The event, in the convention of the one accountant that reads it right:

        * Poisson: `PLDAccountant(relation)`. The Gaussian within carries stddev / norm
          bound, that is twice the multiplier under REPLACE_ONE. Read it under the
          relation it was made for.
        * fixed size: `RdpAccountant(neighboring_relation=REPLACE_ONE)`, which reports
          more than `noise_multiplier_to_epsilon`. The Gaussian carries the multiplier
          itself.
        * full batch: `RdpAccountant` (any relation) or
          `PLDAccountant(ADD_OR_REMOVE_ONE)`. The Gaussian carries the multiplier
          itself, which `PLDAccountant(REPLACE_ONE)` takes for stddev / norm bound: it
          doubles the sensitivity once more.

    Raises:
        ValueError: As for `noise_multiplier`.

    Privacy:
        An event is a description and costs nothing. An accountant with the relation of
        the event either reads it as above, reports more epsilon, or refuses it.

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
        relation=relation,
        noise=noise,
    )
    return scheme.event(float(noise_multiplier))


# What no claim is made for together with a strategy, and its defaults.
_OF_INDEPENDENT_NOISE = {
    "num_samples": None,
    "batch_size": None,
    "noise": "gaussian",
    "other_multiplier": math.inf,
}


def _scheme(
    strategy: Strategy | None,
    max_participations: int,
    min_separation: int,
    **run: Any,
) -> tuple[Scheme, float]:
    """Returns releases that cost as much as a run, and its noise in units of theirs."""
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
    releases, scale = independent_releases(
        strategy,
        num_steps=run["num_steps"],
        sampling_prob=run["sampling_prob"],
        **pattern,
    )
    return scheme_of(**run | releases), scale
