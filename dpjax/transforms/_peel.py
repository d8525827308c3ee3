"""Hard thresholding with a private choice of coordinates, as a transformation."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._tree import clip, flatten
from dpjax._types import Key, Scalar
from dpjax.mechanisms import laplace_peeling, peeling

ROUNDOFF = 2.0**-24  # unit roundoff of float32


class PeelState(NamedTuple):
    """State of `peel` and `laplace_peel`: the key of the next draws."""

    key: Key


def peel(
    sparsity: int, *, rho: Scalar, sensitivity: Scalar, limit: Scalar, key: Key
) -> optax.GradientTransformation:
    """Returns a transformation after which params have few entries, with noise.

    The parameters become `mechanisms.peeling` of params + update, all leaves as one
    vector, with both scales sensitivity·sqrt(s / rho). It goes after the learning rate
    in a chain, which needs no other noise.

    Args:
        sparsity: s, how many entries of all leaves together stay.
        rho: zCDP cost of one update, positive; `accounting.epsilon_to_rho` gives it.
        sensitivity: linf sensitivity of the incoming update, in units of the
            parameters: learning_rate·`estimator.sensitivity(n, d).linf`.
        limit: bound on the entries of the incoming update, learning_rate·
            `estimator.limit`; they are clipped to it. Sums are rounded by a share of
            it.
        key: a typed key. It lives in the state; each update draws from a fresh one.

    Returns:
        An optax transformation; its update needs params. Its state is a pytree of
        arrays.

    Raises:
        ValueError: where an argument is out of its range, or update gets no params.

    Privacy:
        One update is rho-zCDP, under the relation that the sensitivity is stated for,
        where params have been released or are public. In float32 the learning rate's
        product and params + update are each rounded, by 2^-24 of their size, which is
        at most max |params| + limit: for two neighbours four times that is added to the
        sensitivity.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax.accounting import epsilon_to_rho
        >>> from dpjax.estimators import Winsorization
        >>> from dpjax.transforms import aggregate
        >>> estimator, rate = Winsorization(1.0), 0.5
        >>> optimizer = optax.chain(
        ...     aggregate(estimator), optax.sgd(rate),
        ...     peel(1, rho=epsilon_to_rho(1.0, 1e-6), key=jax.random.key(0),
        ...          sensitivity=rate * estimator.sensitivity(10_000, 3).linf,
        ...          limit=rate * estimator.limit))
        >>> params = jnp.zeros(3)
        >>> grads = jnp.tile(jnp.array([0.0, -0.8, 0.1]), (10_000, 1))
        >>> update, _ = optimizer.update(grads, optimizer.init(params), params)
        >>> print([f"{x:.1f}" for x in update])
        ['0.0', '0.4', '0.0']

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithms 3 to 5; Tao, Wu, Cheng, Wang (2022),
        Algorithm 5. One noise for all s choices: Durfee, Rogers (2019).
    """

    def mechanism(key, vector, sensitivity):
        scale = sensitivity * jnp.sqrt(sparsity / rho)
        return peeling(
            key,
            vector,
            sparsity=sparsity,
            selection_scale=scale,
            release_stddev=scale,
        )

    return _peel_by(mechanism, sparsity, rho, sensitivity, limit, key)


def laplace_peel(
    sparsity: int, *, rho: Scalar, sensitivity: Scalar, limit: Scalar, key: Key
) -> optax.GradientTransformation:
    """Returns `peel` with the papers' noise: s rounds of Laplace noise.

    Its scale is b = sensitivity·sqrt(5 s / (2 rho)), more than twice that of `peel`.

    Args:
        sparsity: as for `peel`.
        rho: as for `peel`. For pure epsilon-DP take 5 epsilon^2 / (18 s).
        sensitivity: as for `peel`.
        limit: as for `peel`.
        key: as for `peel`.

    Returns:
        An optax transformation; its update needs params. Its state is a pytree of
        arrays.

    Raises:
        ValueError: where an argument is out of its range, or update gets no params.

    Privacy:
        One update is rho-zCDP, and epsilon-DP with epsilon = 3 s sensitivity / b
        = 3 sqrt(2 s rho / 5); the words at `peel` hold.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> transform = laplace_peel(
        ...     1, rho=0.1, sensitivity=0.001, limit=1.0, key=jax.random.key(0))
        >>> params = jnp.array([1.0, 0.0])
        >>> update, _ = transform.update(
        ...     jnp.array([0.5, 0.5]), transform.init(params), params)
        >>> print((params + update).round(1))
        [1.5 0. ]

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithm 4.
    """

    def mechanism(key, vector, sensitivity):
        scale = sensitivity * jnp.sqrt(2.5 * sparsity / rho)
        return laplace_peeling(key, vector, sparsity=sparsity, scale=scale)

    return _peel_by(mechanism, sparsity, rho, sensitivity, limit, key)


def _peel_by(
    mechanism: Callable[[Key, jax.Array, Scalar], jax.Array],
    sparsity: int,
    rho: Scalar,
    sensitivity: Scalar,
    limit: Scalar,
    key: Key,
) -> optax.GradientTransformation:
    _validate.count(sparsity=sparsity)
    _validate.positive(rho=rho, sensitivity=sensitivity, limit=limit)
    _validate.typed_key(key)

    def init(params):
        num_coordinates = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
        _validate.require(
            sparsity <= num_coordinates,
            "sparsity",
            sparsity,
            f"at most the {num_coordinates} entries of params",
        )
        return PeelState(key)

    def update(updates, state, params=None):
        _validate.optax_params(params)
        next_key, peel_key = jax.random.split(state.key)
        start, unflatten = flatten(params, "params")
        move, _ = flatten(clip(updates, limit), "updates")
        largest = jnp.max(jnp.abs(start)) + limit
        sparse = mechanism(
            peel_key,
            start + move.astype(start.dtype),
            sensitivity + 4 * ROUNDOFF * largest,
        )
        moves = jax.tree.map(jnp.subtract, unflatten(sparse), params)
        return moves, PeelState(next_key)

    return optax.GradientTransformation(init, update)
