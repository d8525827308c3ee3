"""A random sample of the records: its budget, and the guarantee of its releases.

A sample has m places, which hold m different records out of n. All n! / (n - m)!
arrangements have the same probability; let q = m / n. If the releases of the sample are
together (epsilon', delta')-DP when the record in one place is replaced, then they are
(epsilon, q delta')-DP for the table, with e^epsilon = 1 + q (e^epsilon' - 1):
`docs/privacy/proofs/composition.md`, 3.4. The random order of the places matters. If
the records were sorted as in the table, a replaced record could move other records to
other places, and a release that treats places differently, such as one with a holdout,
would see several records change. Releases of one sample are not amplified one by one:
after the first, an attacker knows more about which records were drawn than q says.
"""

import dataclasses
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
    """Returns the (epsilon, delta) that all releases of a sample may cost together."""
    # `epsilon` and `delta` are the budget of the table from which the sample is drawn:
    # the result inverts amplification by sampling, as `Sample.budget` explains.
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
    """A random sample of the records: its budget, and the guarantee of its releases.

    `dpjax.loading.sample` returns records and their `Sample`. All releases of one
    sample are amplified once, together: fix their budgets within `budget` before the
    first release, compose them by `privacy`, and spend that guarantee.

    Args:
        num_samples: public number n of records of the table.
        sample_size: public number m of records of the sample; q = m / n.

    Raises:
        ValueError: If a number is not a positive integer, or the sample is larger than
            the table.

    Privacy:
        The guarantee holds if the sample is drawn without replacement in a random
        order, by secret randomness, and the choice of records stays secret. Each draw
        is another `Sample`, even of the same sizes. A guarantee of `privacy` knows its
        sample: a `PrivacyFilter`, a search or another guarantee refuses a second
        guarantee of the same sample. Guarantees from files do not know their sample.

    Example:
        Two releases of one sample:

        >>> from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
        >>> from dpjax.accounting import Sampling, noise_multiplier
        >>> drawn = Sample(num_samples=100_000_000, sample_size=1_000_000)
        >>> epsilon, delta = drawn.budget(1.0, 1e-8)
        >>> print(f"{epsilon:.3f} {delta:.0e}")
        5.152 1e-06
        >>> noise = noise_multiplier(epsilon, delta, Sampling(num_steps=2))
        >>> event = SelfComposedDpEvent(GaussianDpEvent(noise), 2)
        >>> both = PrivacyGuarantee.of(epsilon, delta, dp_event=event)
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
        sampling_prob(**self._sizes)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"num_samples": self.num_samples, "sample_size": self.sample_size}

    def budget(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Returns the budget of all releases of the sample, for a budget of the table.

        Args:
            epsilon: privacy parameter for the table, 0 < epsilon <= inf.
            delta: privacy parameter for the table, in [0, q), q = m / n.

        Returns:
            epsilon' = log(1 + (e^epsilon - 1) / q) and delta' = delta / q, both
            rounded down.
        """
        return sample_budget(epsilon, delta, **self._sizes)

    def privacy(
        self, *releases: PrivacyGuarantee, unit: str = "record"
    ) -> PrivacyGuarantee:
        """Returns the guarantee of all releases of the sample, for the whole table.

        The releases are composed first, and amplified once. The result composes by its
        epsilon and delta alone: a sample needs so little noise that a Renyi bound would
        hardly be smaller than without sampling.

        Args:
            releases: the guarantee of each release, for a replaced record of the
                sample; the budgets must be fixed before the first release.
            unit: a noun for a record, as for `PrivacyGuarantee.of`.

        Raises:
            ValueError: If there is no release, a relation is not REPLACE_ONE, or two
                guarantees are of one sample that was drawn from this sample.
        """
        _validate.require(len(releases) > 0, "releases", releases, "one or more")
        first, *later = releases
        for release in releases:
            check_sampled(release)
        events: Any = tuple(release.dp_event for release in releases)
        if later:
            epsilon = sum_up(*(release.epsilon for release in releases))
            delta = sum_up(*(release.delta for release in releases))
            event = ComposedDpEvent(events)
            if delta > 0:
                profile = profile_of_release(epsilon, delta, event, REPLACE_ONE)
                epsilon = profile.epsilon_at(delta)
            first = PrivacyGuarantee.of(epsilon, delta, dp_event=event)
        outer = sample_privacy(first, **self._sizes, unit=unit)
        if self.sample_size == self.num_samples:
            return outer
        drawn = SampleDpEvent(frozenset({self._identity, *samples_of(*events)}))
        return dataclasses.replace(outer, dp_event=drawn)


def sample_privacy(
    release: PrivacyGuarantee, *, num_samples: int, sample_size: int, unit: str
) -> PrivacyGuarantee:
    """Returns the guarantee, for a table, of the only release of a sample of it."""
    # Sampling amplifies `release`, the guarantee for the sample. Unlike the result of
    # `Sample.privacy`, this one has no identity of the sample. `unit` is a noun for a
    # record, as for `PrivacyGuarantee.of`.
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
    """Requires a guarantee under REPLACE_ONE."""
    rule, relation = "REPLACE_ONE, for a sample of fixed size", release.relation
    _validate.require(relation is REPLACE_ONE, "relation", relation.name, rule)
