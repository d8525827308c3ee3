"""What training with correlated noise costs, C^-1 z for a strategy C.

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
from dpjax.accounting._poisson_capacity import check_sampling_prob


class Strategy(Protocol):
    """What of `dpjax.mechanisms.BandedToeplitz` and its kin is needed here."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_bands(self) -> int: ...

    def sensitivity(
        self, *, max_participations: int = 1, min_separation: int = 1
    ) -> float: ...


def independent_releases(
    strategy: Strategy,
    *,
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
