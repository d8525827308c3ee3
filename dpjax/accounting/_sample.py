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

All that runs on one sample is one run: P_0, P_1 and P_1' are distributions of all its
outcomes together. Amplified one by one, twenty releases of one sample would be counted
as releases of twenty samples, which cost less: who has seen the first knows more of
which records were drawn than q says.
"""

import math

import numpy as np

from dpjax import _validate
from dpjax._types import ArrayLike

SLACK = 1e-12  # more than the rounding of float64 here


def sample_budget(
    epsilon: float, delta: float, *, num_samples: int, sample_size: int
) -> tuple[float, float]:
    """Returns `Sample.budget` of a sample of which there is one release."""
    _validate.above_zero(epsilon=epsilon)
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
