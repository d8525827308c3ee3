"""Synthetic regression and classification, as in papers 001 and 004."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import Key
from dpjax.datasets._laws import Law, LogNormal, Normal

_STANDARD_NORMAL = Normal()
_SKEWED_NOISE = LogNormal(location=1.0, scale=1.0).centered()
_SKEWED_FEATURES = LogNormal(scale=0.6**0.5)


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
        """The pair (features, targets), the `data` of a solver."""
        return self.features, self.targets


def l1_ball_params(key: Key, num_features: int) -> jax.Array:
    """Draws w*, shape (num_features,), uniformly from the unit l1 ball.

    Example:
        >>> import jax
        >>> bool(abs(l1_ball_params(jax.random.key(0), 50)).sum() <= 1)
        True

    Reference:
        004, section 6.1 (||w*||_1 <= 1).
    """
    _validate.typed_key(key)
    _validate.count(num_features=num_features)
    size_key, sign_key = jax.random.split(key)
    # Exponentials divided by their sum are uniform on the simplex; one more of them
    # than features leaves room for the inside of the ball.
    sizes = jax.random.exponential(size_key, (num_features + 1,))
    signs = jax.random.rademacher(sign_key, (num_features,), sizes.dtype)
    return signs * sizes[:-1] / jnp.sum(sizes)


def sparse_params(sparsity: int) -> Callable[[Key, int], jax.Array]:
    """Makes a sampler of w* with few nonzero entries, on the unit l2 sphere.

    Normal entries, all but `sparsity` of them, taken at random, set to zero. The paper
    draws with scale 100 and projects onto the unit l2 ball; vectors of that size land
    on the sphere, whatever the scale.

    Args:
        sparsity: s*, the number of nonzero entries.

    Returns:
        A function (key, num_features) -> w*, shape (num_features,).

    Raises:
        ValueError: If the sparsity is no count, or exceeds the number of features.

    Example:
        >>> import jax
        >>> params = sparse_params(3)(jax.random.key(0), 50)
        >>> int((params != 0).sum()), round(float((params**2).sum()), 3)
        (3, 1.0)

    Reference:
        004, section 6.1.
    """
    _validate.count(sparsity=sparsity)

    def draw(key: Key, num_features: int) -> jax.Array:
        _validate.typed_key(key)
        _validate.count(num_features=num_features)
        _validate.within(1, num_features, sparsity=sparsity)
        value_key, place_key = jax.random.split(key)
        values = jax.random.normal(value_key, (sparsity,))
        places = jax.random.permutation(place_key, num_features)[:sparsity]
        unit = values / jnp.linalg.norm(values)
        return jnp.zeros(num_features, unit.dtype).at[places].set(unit)

    return draw


def linear_model(
    key: Key,
    *,
    num_samples: int,
    num_features: int,
    feature_law: Law = _STANDARD_NORMAL,
    noise_law: Law | None = _SKEWED_NOISE,
    params_fn: Callable[[Key, int], jax.Array] = l1_ball_params,
) -> Synthetic:
    """Draws a linear regression problem.

    y = <w*, x> + e, with independent features and noise.

    The defaults are the experiment of 001, with n = 1e5 and d = 10: log-normal noise
    (mu, sigma) = (1, 1), less its mean. That paper names neither the law of x nor w*:
    standard normal features are taken, since the noise is what it makes heavy-tailed,
    and w* from the unit l1 ball, as in 004. The experiments of 004 take their noise as
    it comes, with its mean.

    Args:
        key: a typed JAX key.
        num_samples: n.
        num_features: d.
        feature_law: law of every entry of x.
        noise_law: law of e; None for no noise.
        params_fn: (key, d) -> w*, shape (d,).

    Returns:
        The problem, with features (n, d), targets (n,) and true parameters (d,).

    Raises:
        ValueError: If the key or a count is not of its kind.

    Example:
        >>> import jax
        >>> problem = linear_model(  # 004, figure 7
        ...     jax.random.key(0),
        ...     num_samples=100,
        ...     num_features=40,
        ...     feature_law=Normal(scale=5**0.5),
        ...     noise_law=LogNormal(scale=0.5**0.5),
        ...     params_fn=sparse_params(20),
        ... )
        >>> problem.features.shape, problem.targets.shape
        ((100, 40), (100,))

    Reference:
        001, section 6 and appendix C; 004, section 6.
    """
    laws = feature_law, noise_law, params_fn
    return Synthetic(*_latent_model(key, num_samples, num_features, *laws))


def logistic_model(
    key: Key,
    *,
    num_samples: int,
    num_features: int,
    feature_law: Law = _SKEWED_FEATURES,
    noise_law: Law | None = None,
    params_fn: Callable[[Key, int], jax.Array] = l1_ball_params,
    sign: int = 1,
) -> Synthetic:
    """Draws a binary classification problem.

    The target is the sign of sign·z, z = <w*, x> + e, and -1 where that is not above
    zero. With sign = 1, as in 004, y = sign(sigmoid(z) - 1/2), and the logistic loss
    falls along w*. With sign = -1, as 001 writes it, y = sign(1 / (1 + exp(z)) - 1/2),
    and the loss falls along -w*.

    The defaults are the experiment of 004's figure 2: log-normal features, no noise.

    Args:
        key: a typed JAX key.
        num_samples: n.
        num_features: d.
        feature_law: as `noise_law` and `params_fn`, of `linear_model`.
        noise_law: law of e.
        params_fn: law of w*.
        sign: 1 or -1.

    Returns:
        As `linear_model`, with targets in {-1, +1}.

    Raises:
        ValueError: If the key, a count or the sign is not of its kind.

    Example:
        >>> import jax
        >>> problem = logistic_model(
        ...     jax.random.key(0), num_samples=100, num_features=40
        ... )
        >>> sorted({float(label) for label in problem.targets})
        [-1.0, 1.0]

    Reference:
        004, sections 6.1 and 6.3; 001, section 6 and appendix C.
    """
    _validate.require(sign in (1, -1), "sign", sign, "1 or -1")
    laws = feature_law, noise_law, params_fn
    features, latent, true_params = _latent_model(key, num_samples, num_features, *laws)
    ones = jnp.ones_like(latent)
    return Synthetic(features, jnp.where(sign * latent > 0, ones, -ones), true_params)


def _latent_model(
    key: Key,
    num_samples: int,
    num_features: int,
    feature_law: Law,
    noise_law: Law | None,
    params_fn: Callable[[Key, int], jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draws x, z = <w*, x> + e and w*, which all models share."""
    _validate.typed_key(key)
    _validate.count(num_samples=num_samples, num_features=num_features)
    params_key, feature_key, noise_key = jax.random.split(key, 3)
    true_params = params_fn(params_key, num_features)
    features = feature_law.sample(feature_key, (num_samples, num_features))
    # In full precision: the latent variable defines the targets.
    latent = jnp.dot(features, true_params, precision="highest")
    if noise_law is not None:
        latent += noise_law.sample(noise_key, (num_samples,))
    return features, latent, true_params
