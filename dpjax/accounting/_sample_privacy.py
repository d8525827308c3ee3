"""What a run on a random sample of the records costs: see `_sample.py`."""

from dp_accounting import UnsupportedDpEvent

from dpjax import _validate
from dpjax._types import REPLACE_ONE
from dpjax.accounting._guarantee import PrivacyGuarantee
from dpjax.accounting._sample import SLACK, sampling_prob, subsampled_epsilon


def subsample_privacy(
    guarantee: PrivacyGuarantee,
    *,
    num_samples: int,
    sample_size: int,
    unit: str = "record",
) -> PrivacyGuarantee:
    """The guarantee for all records of a run on a sample, rounded up.

    The inverse of `subsample_budget`, with its arguments, of a guarantee where a record
    of the sample is replaced. It composes as an (epsilon, delta): of so little noise as
    a sample needs, a bound of Renyi divergences would hardly be smaller than without
    sampling. The unit is a noun for a record, as for `PrivacyGuarantee.of`.

    Raises:
        ValueError: If a number is out of range, or the relation is not REPLACE_ONE.

    Example:
        >>> from dpjax.accounting import gaussian_event
        >>> inner = PrivacyGuarantee.of(5.152, 1e-6, dp_event=gaussian_event(0.9))
        >>> outer = subsample_privacy(
        ...     inner, num_samples=100_000_000, sample_size=1_000_000)
        >>> f"{outer.epsilon:.3f} {outer.delta:.0e}"
        '1.000 1e-08'
    """
    rule, relation = "REPLACE_ONE, for a sample of fixed size", guarantee.relation
    _validate.require(relation is REPLACE_ONE, "relation", relation.name, rule)
    prob = sampling_prob(num_samples, sample_size)
    epsilon, delta = subsampled_epsilon(guarantee.epsilon, prob), guarantee.delta
    event = guarantee.dp_event
    if prob < 1:
        delta, event = prob * delta * (1 + SLACK), UnsupportedDpEvent()
    return PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples, unit=unit
    )
