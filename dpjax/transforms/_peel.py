"""Hard thresholding with a private choice of coordinates, as a transformation."""

import math

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._rounding import ROUNDOFF
from dpjax._tree import clip, flatten
from dpjax._types import Key, PeelingNoise, Scalar
from dpjax.mechanisms import peeling
from dpjax.transforms._chain import KeyState, require_params

# Two factors for each noise: b^2 rho / (s sensitivity^2) gives the scale b of the
# selection, and the second is the standard deviation of the release in units of b.
NOISE_FACTORS: dict[PeelingNoise, tuple[float, float]] = {
    "gumbel": (1.0, 1.0),
    "laplace": (2.5, math.sqrt(2)),
}


def peel(
    sparsity: int,
    *,
    rho: Scalar,
    sensitivity: Scalar,
    limit: Scalar,
    key: Key,
    noise: PeelingNoise = "gumbel",
) -> optax.GradientTransformation:
    """Returns a transformation that keeps the s largest entries of params, with noise.

    Put it last in a chain. The parameters become `mechanisms.peeling` of params +
    update, with all leaves as one vector. Gumbel and Gaussian noise both have the scale
    sensitivity·sqrt(s / rho), Laplace noise has b = sensitivity·sqrt(5 s / (2 rho)).

    Args:
        sparsity: s, the number of entries of all leaves together that are kept.
        rho: zCDP cost of one update, positive, from `accounting.epsilon_to_rho`; for
            pure epsilon-DP with Laplace noise use 5 epsilon^2 / (18 s).
        sensitivity: linf sensitivity of the incoming update, in units of the
            parameters: learning_rate·`estimator.sensitivity(n, d).linf`.
        limit: bound on the entries of the incoming update, which are clipped to it:
            learning_rate·`estimator.limit`. It bounds the rounding of sums.
        key: a typed key. It is part of the state; each update draws from a fresh one.
        noise: "gumbel", or "laplace" as in the papers.

    Returns:
        An optax transformation; its update needs params.

    Raises:
        ValueError: If an argument is out of its range, or update gets no params.

    Privacy:
        One update is rho-zCDP, under the relation of the sensitivity, if params are
        released or public; with Laplace noise it is also epsilon-DP, with
        epsilon = 3 s sensitivity / b = 3 sqrt(2 s rho / 5). In float32 the product with
        the learning rate and params + update are each rounded, by at most
        2^-24 (max |params| + limit): four times this is added to the sensitivity.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax.accounting import epsilon_to_rho
        >>> from dpjax.estimators import Winsorization
        >>> from dpjax.transforms import aggregate
        >>> estimator, rate, params = Winsorization(1.0), 0.5, jnp.zeros(3)
        >>> optimizer = optax.chain(
        ...     aggregate(estimator), optax.sgd(rate),
        ...     peel(1, rho=epsilon_to_rho(1.0, 1e-6), key=jax.random.key(0),
        ...          sensitivity=rate * estimator.sensitivity(10_000, 3).linf,
        ...          limit=rate * estimator.limit))
        >>> grads = jnp.tile(jnp.array([0.0, -0.8, 0.1]), (10_000, 1))
        >>> update, _ = optimizer.update(grads, optimizer.init(params), params)
        >>> print([f"{x:.1f}" for x in update])
        ['0.0', '0.4', '0.0']

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithms 3 to 5; Tao, Wu, Cheng, Wang (2022),
        Algorithm 5. Noise drawn once for all s choices: Durfee, Rogers (2019).
    """
    _validate.choice(PeelingNoise, noise=noise)
    _validate.count(sparsity=sparsity)
    _validate.positive(rho=rho, sensitivity=sensitivity, limit=limit)
    _validate.typed_key(key)

    def init(params):
        num_coordinates = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
        rule = f"at most the {num_coordinates} entries of params"
        _validate.require(sparsity <= num_coordinates, "sparsity", sparsity, rule)
        return KeyState.of(key)

    def update(updates, state, params=None):
        """Returns the step from params to a sparse release of params + updates."""
        require_params(params)
        next_key, peel_key = jax.random.split(state.key)
        start, unflatten = flatten(params, "params")
        move, _ = flatten(clip(updates, limit), "updates")
        # Use float64 if it is enabled, so that no number is rounded down to float32.
        largest, most, change, cost = (
            jnp.asarray(x, float)
            for x in (jnp.max(jnp.abs(start)), limit, sensitivity, rho)
        )
        widened = change + 4 * ROUNDOFF * (largest + most)
        factor, stddev = NOISE_FACTORS[noise]
        scale = widened * jnp.sqrt(factor * sparsity / cost)
        sparse = peeling(
            peel_key,
            start + move.astype(start.dtype),
            sparsity=sparsity,
            selection_scale=scale,
            release_stddev=stddev * scale,
            noise=noise,
        )
        moves = jax.tree.map(jnp.subtract, unflatten(sparse), params)
        return moves, KeyState(next_key)

    return optax.GradientTransformation(init, update)
