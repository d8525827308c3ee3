"""A run on a random sample of the records: what it may spend, and what it costs.

Let a sample have m places, which hold different ones of the n records, each of the
n! / (n - m)! ways with the same probability, and q = m / n. Let whatever runs on the
sample be (epsilon', delta')-DP where the record in one place is replaced. Neighboring
tables differ in one record. With probability 1 - q it has no place; let the run then
have the distribution P_0, the same for both tables. Else let it have P_1 and P_1'.

Pairing the ways with the record and those without shows P_1 <= e^epsilon' P_0 + delta'
and P_1 <= e^epsilon' P_1' + delta'; a mixture of both gives (epsilon, q delta') for the
table, e^epsilon = 1 + q (e^epsilon' - 1). Proof: `docs/privacy/proofs/composition.md`,
3.4. The order of the places matters: sorted by their numbers in the table, records
would move where another takes a place, and whatever treats places differently, such as
a part that is held out, would see several records change.
"""

import math

import numpy as np

from dpjax import _validate
from dpjax._types import ArrayLike

SLACK = 1e-12  # more than the rounding of float64 here


def subsample_budget(
    epsilon: float, delta: float, *, num_samples: int, sample_size: int
) -> tuple[float, float]:
    """The budget of a run on a sample that keeps a budget for all records.

    Args:
        epsilon: privacy parameter for the table, 0 < epsilon <= inf.
        delta: privacy parameter for the table, in [0, q).
        num_samples: public number of records of the table.
        sample_size: public number of records of the sample.

    Returns:
        epsilon' = log(1 + (e^epsilon - 1) / q) and delta' = delta / q, rounded down,
        with q = sample_size / num_samples.

    Raises:
        ValueError: If an argument is out of range.

    Privacy:
        Whatever runs on the sample, if it is (epsilon', delta')-DP under replace-one,
        is (epsilon, delta)-DP for the table, where the sample is drawn without
        replacement in a random order, by secret randomness, and anew for each run
        (`dpjax.loading.sample`). Proof: named at the head of this file.

    Example:
        >>> epsilon, delta = subsample_budget(
        ...     1.0, 1e-8, num_samples=100_000_000, sample_size=1_000_000)
        >>> f"{epsilon:.3f} {delta:.0e}"
        '5.152 1e-06'

    Reference:
        Balle, Barthe, Gaboardi (2018), "Privacy amplification by subsampling", Theorem
        9.
    """
    _validate.require(epsilon > 0, "epsilon", epsilon, "positive")
    _validate.delta(delta)
    prob = sampling_prob(num_samples, sample_size)
    rule = f"below sample_size / num_samples = {sample_size} / {num_samples}"
    _validate.require(delta < prob, "delta", delta, rule)
    if prob == 1:
        return epsilon, delta
    inner = float(without_sampling(np.float64(epsilon), prob))
    return inner * (1 - 3 * SLACK), delta / prob * (1 - 3 * SLACK)


def without_sampling(epsilons: ArrayLike, prob: float) -> np.ndarray:
    """Returns log(1 + (e^epsilon - 1) / q), of epsilons above log(1 - q)."""
    epsilons = np.asarray(epsilons)
    with np.errstate(over="ignore"):
        return np.where(
            epsilons < 1,
            np.log1p(np.expm1(epsilons) / prob),
            # Without e^epsilon, which may overflow.
            epsilons + np.log1p((prob - 1) * np.exp(-epsilons)) - math.log(prob),
        )


def subsampled_epsilon(epsilon: float, prob: float) -> float:
    """Returns log(1 + q (e^epsilon - 1)), rounded up."""
    if prob == 1:
        return epsilon
    if epsilon < 700:
        outer = math.log1p(prob * math.expm1(epsilon))
    else:  # e^epsilon overflows soon, and 1 - q is nothing beside q e^epsilon
        outer = epsilon + math.log(prob)
    return outer * (1 + SLACK)


def sampling_prob(num_samples: int, sample_size: int) -> float:
    """Returns q = m / n."""
    _validate.count(num_samples=num_samples, sample_size=sample_size)
    rule = f"at most num_samples, {num_samples}"
    _validate.require(sample_size <= num_samples, "sample_size", sample_size, rule)
    return sample_size / num_samples
