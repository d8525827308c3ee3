"""A random sample of the records: what may be spent on it, and what it costs.

Let a sample have m places, which hold different ones of the n records, each of the
n! / (n - m)! ways with the same probability, and q = m / n. Let whatever runs on the
sample be (epsilon', delta')-DP where the record in one place is replaced. Then it is
(epsilon, q delta')-DP for the table, e^epsilon = 1 + q (e^epsilon' - 1):
`docs/privacy/proofs/composition.md`, 3.4. The order of the places matters: sorted by
their numbers in the table, records would move where another takes a place, and whatever
treats places differently, such as a part that is held out, would see several records
change.

All that runs on one sample is one run. Amplified one by one, twenty releases of one
sample would be counted as releases of twenty samples, which cost less: an attacker who
has seen the first knows more of which records were drawn than q says.
"""

import dataclasses
import math
import secrets
from typing import Any

import numpy as np
from dp_accounting import ComposedDpEvent, UnsupportedDpEvent

from dpjax import _validate
from dpjax._rounding import sum_up
from dpjax._types import REPLACE_ONE
from dpjax.accounting._events import SampleDpEvent, samples_of
from dpjax.accounting._guarantee import PrivacyGuarantee
from dpjax.accounting._profiles import profile_of_release
from dpjax.accounting._sampled_gaussian import (
    SLACK,
    subsampled_epsilon,
    without_sampling,
)


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


def sampling_prob(num_samples: int, sample_size: int) -> float:
    """Returns q = m / n."""
    _validate.count(num_samples=num_samples, sample_size=sample_size)
    rule = f"at most num_samples, {num_samples}"
    _validate.require(sample_size <= num_samples, "sample_size", sample_size, rule)
    return sample_size / num_samples


@dataclasses.dataclass(frozen=True)
class Sample:
    """A random sample of the records: what may be spent on it, and what that costs.

    Let `sample` be (records, Sample) of `dpjax.loading.sample`. The releases of one
    sample are amplified once, all together: fix their budgets within `budget` before
    the first, state them by `privacy`, and spend that guarantee.

    Args:
        num_samples: public number n of records of the table.
        sample_size: public number m of records of the sample; q = m / n.

    Raises:
        ValueError: If a number is no count, or the sample is larger than the table.

    Privacy:
        Holds if the sample is drawn without replacement in a random order, by secret
        randomness, and which records were drawn stays secret. Each draw is another
        `Sample`, even of the same sizes: guarantees know which one they are of, and a
        `PrivacyFilter`, a search or another guarantee refuses a second one of it.
        Guarantees that are read from files do not know it.

    Example:
        Two releases of one sample:

        >>> from dpjax.accounting import Sampling, gaussian_event, noise_multiplier
        >>> drawn = Sample(num_samples=100_000_000, sample_size=1_000_000)
        >>> epsilon, delta = drawn.budget(1.0, 1e-8)
        >>> print(f"{epsilon:.3f} {delta:.0e}")
        5.152 1e-06
        >>> noise = noise_multiplier(epsilon, delta, Sampling(num_steps=2))
        >>> both = PrivacyGuarantee.of(
        ...     epsilon, delta, dp_event=gaussian_event(noise, Sampling(2)))
        >>> print(drawn.privacy(both))
        Replacing any one of the 100,000,000 records changes the probability of any
        event to at most e^1 = 2.72 times what it was, plus 1e-08.

    Reference:
        Balle, Barthe, Gaboardi (2018), "Privacy amplification by subsampling", Theorem
        9. Proof: `docs/privacy/proofs/composition.md`, 3.4.
    """

    num_samples: int
    sample_size: int
    _identity: str = dataclasses.field(
        default_factory=lambda: secrets.token_hex(16), init=False, repr=False
    )

    def __post_init__(self) -> None:
        sampling_prob(self.num_samples, self.sample_size)

    def budget(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Returns the budget of all releases of the sample, from that of all records.

        Args:
            epsilon: privacy parameter for the table, 0 < epsilon <= inf.
            delta: privacy parameter for the table, in [0, q).

        Returns:
            epsilon' = log(1 + (e^epsilon - 1) / q) and delta' = delta / q, both
            rounded down.

        Raises:
            ValueError: If an argument is out of range.
        """
        sizes = {"num_samples": self.num_samples, "sample_size": self.sample_size}
        return sample_budget(epsilon, delta, **sizes)

    def privacy(
        self, *releases: PrivacyGuarantee, unit: str = "record"
    ) -> PrivacyGuarantee:
        """Returns the guarantee for all records of all releases of the sample.

        They are composed first, and amplified once. It composes as an (epsilon, delta):
        of so little noise as a sample needs, a bound of Renyi divergences would hardly
        be smaller than without sampling.

        Args:
            releases: the guarantee of each release, where a record of the sample is
                replaced; their budgets must be fixed before the first is made.
            unit: a noun for a record, as for `PrivacyGuarantee.of`.

        Raises:
            ValueError: If there is no release, a relation is not REPLACE_ONE, or two
                of them are of one sample that was drawn from this one.
        """
        _validate.require(len(releases) > 0, "releases", releases, "one or more")
        first, *later = releases
        for release in releases:
            check_sampled(release)
        events: Any = tuple(release.dp_event for release in releases)
        if later:
            epsilons = [release.epsilon for release in releases]
            epsilon = math.inf if math.inf in epsilons else sum_up(*epsilons)
            delta = sum_up(*(release.delta for release in releases))
            event = ComposedDpEvent(events)
            if delta > 0:
                profile = profile_of_release(epsilon, delta, event, REPLACE_ONE)
                epsilon = profile.epsilon_at(delta)
            first = PrivacyGuarantee.of(epsilon, delta, dp_event=event)
        sizes = {"num_samples": self.num_samples, "sample_size": self.sample_size}
        outer = sample_privacy(first, **sizes, unit=unit)
        if self.sample_size == self.num_samples:
            return outer
        drawn = SampleDpEvent(frozenset({self._identity, *samples_of(*events)}))
        return dataclasses.replace(outer, dp_event=drawn)


def sample_privacy(
    release: PrivacyGuarantee, *, num_samples: int, sample_size: int, unit: str
) -> PrivacyGuarantee:
    """Returns `Sample.privacy` of a sample of which there is one release.

    It does not know the sample, which nothing else can be released from.
    """
    check_sampled(release)
    prob = sampling_prob(num_samples, sample_size)
    epsilon, delta = subsampled_epsilon(release.epsilon, prob), release.delta
    event = release.dp_event
    if prob < 1:
        delta, event = prob * delta * (1 + SLACK), UnsupportedDpEvent()
    return PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples, unit=unit
    )


def check_sampled(release: PrivacyGuarantee) -> None:
    """Requires a guarantee for records that are replaced."""
    rule, relation = "REPLACE_ONE, for a sample of fixed size", release.relation
    _validate.require(relation is REPLACE_ONE, "relation", relation.name, rule)
