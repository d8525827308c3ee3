"""Noise and epsilon of Gaussian training on full, Poisson or fixed-size batches.

`noise_multiplier` always means stddev / l2 sensitivity under the stated relation. A sum
of records of l2 norm at most C has sensitivity 2C when one record is replaced, C when
one is added or removed. dp_accounting counts otherwise: for the same event class, its
PLD accountant wants stddev / C under either relation, its RDP accountant stddev /
sensitivity. The translation is made once, in `_sampled_gaussian.py`.
"""

import math

from dp_accounting import DpEvent

from dpjax import _validate
from dpjax._types import REPLACE_ONE, NeighboringRelation, NoiseName
from dpjax.accounting._sampled_gaussian import calibrate, scheme_of


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

    Returns:
        Standard deviation of each step's noise, divided by the l2 sensitivity of the
        step under `relation`; rounded up, with sampling or other releases by at most
        0.1 per cent of what the accountant allows. It is inf at delta = 0 and 0.0 at
        epsilon = inf. With sampling it is the least of several: full batches; privacy
        loss distributions; and, as those show nothing where delta is below 1e-15
        num_steps, Renyi divergences.

    Raises:
        ValueError: If an argument is out of range, the two sampling schemes are mixed,
            fixed-size batches are asked for under another relation than REPLACE_ONE,
            or `other_multiplier` alone costs more than epsilon.

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

    Reference:
        Full batches: Balle, Wang (2018), Theorem 8. Poisson: the worst pair of laws is
        proved in `_sampled_gaussian.py` for a record that is replaced, by Zhu, Dong,
        Wang (2022), Theorem 11, for one that is added or removed; they are composed by
        Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022), Connect the dots. Fixed
        size: Balle, Barthe, Gaboardi (2018), Privacy amplification by subsampling,
        Theorem 11, proved and composed in `_fixed_size.py`. Renyi divergences:
        `_sampled_renyi.py`.
    """
    _validate.require(epsilon > 0, "epsilon", epsilon, "positive")
    _validate.delta(delta)
    scheme = scheme_of(
        num_steps=num_steps,
        sampling_prob=sampling_prob,
        num_samples=num_samples,
        batch_size=batch_size,
        relation=relation,
        noise=noise,
        other_multiplier=other_multiplier,
    )
    return calibrate(float(epsilon), float(delta), scheme)


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
    scheme = scheme_of(
        num_steps=num_steps,
        sampling_prob=sampling_prob,
        num_samples=num_samples,
        batch_size=batch_size,
        relation=relation,
        noise=noise,
        other_multiplier=other_multiplier,
    )
    return scheme.epsilon(float(noise_multiplier), float(delta))


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
