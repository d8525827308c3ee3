"""Synthetic regression, as in papers 001 and 004."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import Key
from dpjax.datasets._laws import Law, LogNormal, Normal

_STANDARD_NORMAL = Normal()
_SKEWED_NOISE = LogNormal(location=1.0, scale=1.0).centered()


class Synthetic(NamedTuple):
    """A synthetic data set and the parameters that made it.

    Args:
        features: x, shape (n, d).
        targets: y, shape (n,).
        true_params: w*, shape (d,).
    """

    features: jax.Array
    targets: jax.Array
    true_params: jax.Array

    @property
    def data(self) -> tuple[jax.Array, jax.Array]:
        """The pair (features, targets), which solvers take as `data`."""
        return self.features, self.targets


def l1_ball_params(key: Key, num_features: int) -> jax.Array:
    """Draws w*, (num_features,), uniformly from the unit l1 ball (004, section 6.1)."""
    _validate.typed_key(key)
    _validate.count(num_features=num_features)
    size_key, sign_key = jax.random.split(key)
    # Exponentials divided by their sum are uniform on the simplex. One entry more is
    # drawn and dropped, which makes the remaining entries uniform inside the ball.
    sizes = jax.random.exponential(size_key, (num_features + 1,))
    signs = jax.random.rademacher(sign_key, (num_features,), sizes.dtype)
    return signs * sizes[:-1] / jnp.sum(sizes)


def linear_model(
    key: Key,
    *,
    num_samples: int,
    num_features: int,
    feature_law: Law = _STANDARD_NORMAL,
    noise_law: Law | None = _SKEWED_NOISE,
    params_fn: Callable[[Key, int], jax.Array] = l1_ball_params,
) -> Synthetic:
    """Draws a linear regression problem: y = <w*, x> + e, x and e independent.

    The defaults follow the experiment of paper 001, with n = 1e5 and d = 10: log-normal
    noise (mu, sigma) = (1, 1), minus its mean (paper 004 does not subtract it). 001
    states neither the law of x nor w*. Features are standard normal here, because in
    001 the noise has the heavy tail, and w* comes from the unit l1 ball, as in 004.

    Args:
        key: a typed JAX key.
        num_samples: n.
        num_features: d.
        feature_law: law of every entry of x.
        noise_law: law of e; None for no noise.
        params_fn: (key, d) -> w*, shape (d,), such as one with few weights not zero.

    Returns:
        The problem, with features (n, d), targets (n,) and true parameters (d,).

    Example:
        >>> import jax
        >>> problem = linear_model(  # 004, figure 7
        ...     jax.random.key(0), num_samples=100, num_features=40,
        ...     feature_law=Normal(scale=5**0.5), noise_law=LogNormal(scale=0.5**0.5))
        >>> problem.features.shape, problem.targets.shape
        ((100, 40), (100,))

    Reference:
        001, section 6 and appendix C; 004, section 6.
    """
    _validate.typed_key(key)
    _validate.count(num_samples=num_samples, num_features=num_features)
    params_key, feature_key, noise_key = jax.random.split(key, 3)
    true_params = params_fn(params_key, num_features)
    features = feature_law.sample(feature_key, (num_samples, num_features))
    # The product has full precision, because it defines the targets.
    targets = jnp.dot(features, true_params, precision="highest")
    if noise_law is not None:
        targets += noise_law.sample(noise_key, (num_samples,))
    return Synthetic(features, targets, true_params)
