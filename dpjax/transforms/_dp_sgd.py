"""Heavy-tailed DP-SGD as an optax optimizer."""

import optax

from dpjax._sharding import AxisName
from dpjax._types import REPLACE_ONE, Key, NeighboringRelation, Scalar
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.mechanisms import Strategy
from dpjax.transforms._chain import PrivateMean, chain
from dpjax.transforms._privatize import privatize


def dp_sgd(
    learning_rate: optax.ScalarOrSchedule,
    estimator: Estimator | AdaptiveThreshold | Scaled,
    *,
    noise_multiplier: Scalar,
    key: Key,
    normalize_by: Scalar | None = None,
    relation: NeighboringRelation = REPLACE_ONE,
    axis_name: AxisName | None = None,
    noise: Strategy | None = None,
) -> PrivateMean:
    """Returns the optimizer: privatize per-sample gradients, then a step of SGD.

    params - learning_rate·(robust mean + noise_multiplier·l2 sensitivity·N(0, I)).

    Args:
        learning_rate: step size, or a schedule of the step.
        estimator: as for `privatize`; with `Clipping` this is the DP-SGD of Abadi et
        al.
        noise_multiplier: stddev / l2 sensitivity under `relation`.
        key: as for `privatize`.
        normalize_by: as for `privatize`.
        relation: as for `privatize`.
        axis_name: as for `privatize`.
        noise: as for `privatize`.

    Returns:
        An optax optimizer that takes per-sample gradients with leaves (n, ...), and the
        keyword is_padding_example.

    Raises:
        ValueError: As for `privatize`.

    Privacy: that of `privatize`; the step is post-processing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedTruncation
        >>> optimizer = dp_sgd(0.1, SmoothedTruncation(1.0), noise_multiplier=0.5,
        ...                    key=jax.random.key(0))
        >>> params = jnp.zeros(3)
        >>> updates, _ = optimizer.update(
        ...     jnp.ones((8, 3)), optimizer.init(params), params)
        >>> print(updates.shape)
        (3,)

    Reference:
        Abadi et al. (2016); Wang, Xiao, Devadas, Xu (2020), Algorithm 4.
    """
    return chain(
        privatize(
            estimator,
            noise_multiplier=noise_multiplier,
            key=key,
            normalize_by=normalize_by,
            relation=relation,
            axis_name=axis_name,
            noise=noise,
        ),
        optax.scale_by_learning_rate(learning_rate),
    )
