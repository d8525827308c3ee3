"""Private scores of released parameters, by which a search chooses among its runs."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from dp_accounting import LaplaceDpEvent

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee, gaussian_stddev
from dpjax.accounting._subsampling import gaussian_event
from dpjax.estimators import Winsorization
from dpjax.mechanisms import gaussian, laplace

ScoredRecords = Literal["holdout", "training"]


@dataclasses.dataclass(frozen=True)
class Score:
    """A private score of released parameters, and its guarantee.

    Attributes:
        fn: `fn(params, key)` returns a scalar, larger for better params; NaN counts as
            worst. It must add noise to everything that depends on private records.
        privacy: the guarantee of fn, for any params.
        records: the records that fn uses. "holdout": records that no run is trained on,
            fixed by public index. A replaced record then affects either the run or its
            score, and the larger of the two costs counts. "training": any records; both
            costs count together. A score of public records only may use "holdout" and
            epsilon = 0.

    Example:
        >>> from dp_accounting import NoOpDpEvent
        >>> from dpjax.accounting import PrivacyGuarantee
        >>> free = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
        >>> smallest = Score(lambda params, key: -abs(params), free)
        >>> smallest.records
        'holdout'
    """

    fn: Callable[[PyTree, Key], Scalar]
    privacy: PrivacyGuarantee
    records: ScoredRecords = "holdout"

    def __post_init__(self) -> None:
        _validate.require(callable(self.fn), "fn", self.fn, "a function (params, key)")
        given, rule = self.privacy, "a dpjax.accounting.PrivacyGuarantee (see its `of`)"
        _validate.require(isinstance(given, PrivacyGuarantee), "privacy", given, rule)
        _validate.choice(ScoredRecords, records=self.records)


def clipped_loss(
    loss_fn: LossFn,
    data: PyTree,
    *,
    limit: float,
    epsilon: float,
    delta: float,
    records: ScoredRecords = "holdout",
) -> Score:
    """Returns a score: minus the private mean of losses that are clipped to [0, limit].

    Args:
        loss_fn: `loss_fn(params, example)`, a scalar, zero or above. NaN counts as the
            limit.
        data: the records to score; leaves of shape (n, ...), n public.
        limit: positive and public, in units of the loss.
        epsilon: privacy of one score, positive and finite.
        delta: privacy of one score, in [0, 1); at 0 the noise is Laplace, otherwise
            Gaussian.
        records: as for `Score`.

    Returns:
        A `Score` in units of the loss, in [-limit, 0] except for its noise.

    Privacy:
        (epsilon, delta)-DP under replace-one, for any params: the mean moves by at most
        limit / n, plus float32 rounding (`estimators.Winsorization`).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses
        >>> data = jnp.ones((1_000, 2)), jnp.full(1_000, 3.0)
        >>> score = clipped_loss(
        ...     losses.squared, data, limit=2.0, epsilon=1.0, delta=0.0)
        >>> for weight in (1.0, 1.5):  # halved squares: 1/2 and 0
        ...     found = score.fn(jnp.full(2, weight), jax.random.key(0))
        ...     print(f"{abs(found):.1f}")
        0.5
        0.0

    Reference:
        Dwork, McSherry, Nissim, Smith (2006), Proposition 1; Balle, Wang (2018),
        Theorem 8.
    """
    _validate.loss_fn(loss_fn)
    _validate.positive(limit=limit, epsilon=epsilon)
    data = arrays(data)
    num_samples = _validate.leading_size(data, "data")
    estimator = Winsorization(limit / 2)
    stddev = gaussian_stddev(epsilon, delta, sensitivity=1.0)  # inf at delta = 0
    event = gaussian_event(stddev) if delta > 0 else LaplaceDpEvent(1 / epsilon)

    def fn(params: PyTree, key: Key) -> Scalar:
        """Returns minus the noisy mean of the clipped losses of params."""
        check_key_of_rows(key, data)
        losses = jax.vmap(loss_fn, (None, 0))(params, data)
        losses = jnp.where(jnp.isnan(losses), limit, losses) - limit / 2
        size = estimator.sensitivity(num_samples, 1, rounded=False).l2
        mean = estimator.unrounded(losses)
        if delta > 0:
            noisy = gaussian(key, mean, stddev=stddev * size)
        else:
            noisy = laplace(key, mean, scale=size / epsilon)
        return -(noisy + limit / 2)

    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples
    )
    return Score(fn, privacy, records)
