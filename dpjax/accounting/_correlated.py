"""The privacy cost of training with correlated noise C^-1 z, for a strategy C.

The T steps release C^-1 (C g + z). This is the Gaussian mechanism on C g, also where a
step depends on the earlier ones (Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem
2.1), whichever batches the records enter, if that does not depend on the data.

Sampled batches. Let C have at most b bands. Let a record have steps of its own, at
least b apart, and enter each of them with probability q, independently. Then each row
of C g depends on at most one of the record's steps. Step i contributes to the rows i to
i + b - 1: column i of C times the record's vector u_i, which is fixed by the releases
before row i, except for the coin. So these rows are one Poisson-subsampled Gaussian
mechanism, in which the record moves the value by |column i| |u_i|. The norm of a column
is at most the sensitivity to one step. So the run costs as much as its k such steps
composed (Choquette-Choo et al. 2023, Theorem 4). The relation enters only through the
pair of distributions of one step (see `_sampled_group.py`).

That is exact: a Monte Carlo estimate would not be lower. Where steps of a record are
closer than there are bands, estimates are known (Choquette-Choo, Ganesh, Steinke,
Thakurta 2024, "Privacy amplification for matrix mechanisms"). They hold with a
confidence, not always, so nothing is claimed there. Nor is it for groups of records:
their steps may be closer than one record's.
"""

from typing import Protocol

from dpjax import _validate
from dpjax.accounting._poisson_capacity import check_sampling_prob


class Strategy(Protocol):
    """The part of a strategy of `dpjax.mechanisms` that accounting needs."""

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
    """Returns independent releases of equal cost, and the run's noise over theirs."""
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
        f"= {sampling_prob}: use fewer bands, or longer cycles of CyclicPoisson, or "
        "sampling_prob = 1, which claims no gain from sampling",
    )
    num_turns = min(max_participations, -(-num_steps // min_separation))
    releases = {"num_steps": num_turns, "sampling_prob": sampling_prob}
    return releases, strategy.sensitivity()
