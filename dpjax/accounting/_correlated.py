"""Noise and epsilon of training with correlated noise, C^-1 z for a strategy C.

What T steps release is C^-1 (C g + z): the Gaussian mechanism on C g, for steps that
depend on those before as well (Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem
2.1), whichever batches the records enter, as long as that does not depend on the data.

Sampled batches. Let C have at most b bands, and a record take part, with probability q
each time and independently, in steps of its own, b apart at least. Row t of C g
then has the record's part of one of its steps at most, that of step i in the rows i to
i + b - 1, as column i of C times the record's vector u_i. This vector is known, but for
the coin, from what is released before row i: the rows i to i + b - 1 are one
Poisson-subsampled Gaussian mechanism whose record moves its value by |column i| |u_i|.
No column is longer than the sensitivity to one step. So the run costs as much as its k
such steps composed (Choquette-Choo et al. 2023, Theorem 4; the relation enters only
through the pair of one step, for which see `_sampled_gaussian.py`).
"""

from typing import Protocol

from dpjax import _validate
from dpjax._types import REPLACE_ONE, NeighboringRelation
from dpjax.accounting._poisson_capacity import check_sampling_prob
from dpjax.accounting._subsampling import noise_multiplier, noise_multiplier_to_epsilon


class _Strategy(Protocol):
    """What of `dpjax.mechanisms.BandedToeplitz` and its kin is needed here."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_bands(self) -> int: ...

    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float: ...


def correlated_noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    strategy: _Strategy,
    num_steps: int,
    max_participations: int = 1,
    min_separation: int = 1,
    sampling_prob: float = 1.0,
    relation: NeighboringRelation = REPLACE_ONE,
) -> float:
    """The smallest noise multiplier of a run with correlated noise within a budget.

    It is the standard deviation of z, the independent noise that the strategy
    correlates, over the l2 sensitivity of one step: what `privatize(..., noise=
    strategy)` takes. How records take part is what `Batching.participation` tells:
    `correlated_noise_multiplier(epsilon, delta, strategy=strategy,
    **batching.participation(num_samples, num_steps))`.

    Args:
        epsilon: privacy parameter, 0 < epsilon <= inf.
        delta: privacy parameter in [0, 1).
        strategy: one of `dpjax.mechanisms`: `BandedToeplitz`, `BufferedToeplitz`,
            `BinaryTree`.
        num_steps: number of noisy steps T, at most those of the strategy.
        max_participations: of how many steps one record may be at most.
        min_separation: how many steps apart two of them are at least; 1 is next to each
            other.
        sampling_prob: probability in (0, 1] to enter each of a record's own steps, by
            an independent coin, as of `CyclicPoisson`.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.

    Returns:
        The noise multiplier, rounded up as `noise_multiplier`'s.

    Raises:
        ValueError: where an argument is out of range, there are more steps than the
            strategy has, or sampling_prob is below 1 with more bands than steps between
            two of a record: no gain from sampling is proved there.

    Privacy:
        The T noisy steps together are (epsilon, delta)-DP under `relation`, if no step
        has another sensitivity or noise multiplier, and which records enter a batch
        does not depend on the data, and with sampling_prob < 1 stays secret.

    Example:
        The largest noise of a prefix sum of 64 steps, in units of a step's
        sensitivity, with a binary tree and with independent noise:

        >>> import math
        >>> from dpjax.mechanisms import BinaryTree
        >>> tree = correlated_noise_multiplier(
        ...     1.0, 1e-5, strategy=BinaryTree(64), num_steps=64)
        >>> round(tree * math.sqrt(6), 1)  # 63 is a sum of six nodes
        24.2
        >>> round(noise_multiplier(1.0, 1e-5, num_steps=1) * math.sqrt(64), 1)
        29.8

    Reference:
        Denisov, McMahan, Rush, Smith, Thakurta (2022), "Improved differential privacy
        for SGD via optimal private linear operators on adaptive streams", Theorem 2.1;
        Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu (2023),
        "(Amplified) banded matrix factorization", Theorems 2 and 4; sensitivities:
        `Strategy` in dpjax.mechanisms.
    """
    sampling, scale = _scaled(
        strategy, num_steps, max_participations, min_separation, sampling_prob
    )
    return scale * noise_multiplier(epsilon, delta, relation=relation, **sampling)


def correlated_noise_multiplier_to_epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    strategy: _Strategy,
    num_steps: int,
    max_participations: int = 1,
    min_separation: int = 1,
    sampling_prob: float = 1.0,
    relation: NeighboringRelation = REPLACE_ONE,
) -> float:
    """The epsilon that a run with correlated noise costs.

    The inverse of `correlated_noise_multiplier`; all arguments mean the same.

    Args:
        noise_multiplier: standard deviation of the independent noise, over the l2
            sensitivity of a step under `relation`, 0 to inf.
        delta: privacy parameter in [0, 1).
        strategy: one of `dpjax.mechanisms`.
        num_steps: number of noisy steps T, at most those of the strategy.
        max_participations: of how many steps one record may be at most.
        min_separation: how many steps apart two of them are at least.
        sampling_prob: probability in (0, 1] to enter each of a record's own steps.
        relation: REPLACE_ONE or ADD_OR_REMOVE_ONE.

    Returns:
        epsilon >= 0, an upper bound; inf without noise or at delta = 0.

    Raises:
        ValueError: as for `correlated_noise_multiplier`.

    Privacy:
        As for `correlated_noise_multiplier`.

    Example:
        >>> from dpjax.mechanisms import BandedToeplitz
        >>> strategy = BandedToeplitz.square_root(num_steps=100, num_bands=10)
        >>> epsilon = correlated_noise_multiplier_to_epsilon(
        ...     12.0, 1e-5, strategy=strategy, num_steps=100, max_participations=5,
        ...     min_separation=20)
        >>> round(epsilon, 2)
        0.92

    Reference:
        As for `correlated_noise_multiplier`.
    """
    _validate.within(0.0, float("inf"), noise_multiplier=noise_multiplier)
    sampling, scale = _scaled(
        strategy, num_steps, max_participations, min_separation, sampling_prob
    )
    return noise_multiplier_to_epsilon(
        noise_multiplier / scale, delta, relation=relation, **sampling
    )


def _scaled(
    strategy: _Strategy,
    num_steps: int,
    max_participations: int,
    min_separation: int,
    sampling_prob: float,
) -> tuple[dict, float]:
    """Returns the independent releases that the run costs as much as, and their scale.

    Noise of the run is that of the releases times the scale.
    """
    _validate.require(
        hasattr(strategy, "sensitivity") and hasattr(strategy, "num_bands"),
        "strategy",
        strategy,
        "one of dpjax.mechanisms, such as BandedToeplitz.square_root(...)",
    )
    _validate.count(
        num_steps=num_steps,
        max_participations=max_participations,
        min_separation=min_separation,
    )
    _validate.require(
        num_steps <= strategy.num_steps,
        "num_steps",
        num_steps,
        f"at most the {strategy.num_steps} steps of {strategy}",
    )
    check_sampling_prob(sampling_prob)
    if sampling_prob == 1:
        scale = strategy.sensitivity(
            max_participations=max_participations, min_separation=min_separation
        )
        return {"num_steps": 1}, scale
    _validate.require(
        strategy.num_bands <= min_separation,
        "min_separation",
        min_separation,
        f"at least the {strategy.num_bands} bands of {strategy} with sampling_prob "
        f"= {sampling_prob}: take fewer bands, or longer cycles of CyclicPoisson, or "
        "sampling_prob = 1, which claims no gain from sampling",
    )
    num_turns = min(max_participations, -(-num_steps // min_separation))
    return (
        {"num_steps": num_turns, "sampling_prob": sampling_prob},
        strategy.sensitivity(),
    )
