"""Steps with a private choice, of a vertex or of the largest coordinates."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, mechanisms
from dpjax._keys import secret_repr
from dpjax._rounding import ROUNDOFF
from dpjax._tree import clip, flatten, like, num_coordinates
from dpjax._types import Key, PeelingNoise, Scalar, SelectionName
from dpjax.constraints._constraint import VertexConstraint
from dpjax.transforms._privatize import KeyState, require_params

# Two factors for each noise: b^2 rho / (s sensitivity^2) gives the scale b of the
# selection, and the second is the standard deviation of the release in units of b.
NOISE_FACTORS: dict[PeelingNoise, tuple[float, float]] = {
    "gumbel": (1.0, 1.0),
    "laplace": (2.5, math.sqrt(2)),
}
# Covers a few float32 roundings of the range, so that epsilon is never exceeded.
_ROUNDED_UP = 1 + 2.0**-20


class FrankWolfeState(NamedTuple):
    """Holds the key of the next choices, the number of steps, and the range of scores.

    The sensitivity range is stored, because for a polytope it costs |V|^2 d operations.
    """

    key: Key
    num_steps: jax.Array
    sensitivity_range: jax.Array
    __repr__ = secret_repr


def frank_wolfe(
    constraint: VertexConstraint,
    *,
    epsilon: Scalar,
    sensitivity: Scalar,
    limit: Scalar,
    key: Key,
    learning_rate: optax.ScalarOrSchedule | None = None,
    mechanism: SelectionName = "exponential",
) -> optax.GradientTransformation:
    """Returns a transformation that moves parameters towards a private vertex.

    The update is eta_t (v - w), where the vertex v is chosen by its score -<v, g>, so
    parameters stay in the set. Use it in place of `optax.sgd`, after `aggregate`.

    Args:
        constraint: a set with vertices: `L1Ball`, `Simplex` or `Polytope`.
        epsilon: privacy parameter of one choice, positive.
        sensitivity: linf sensitivity of the incoming update g, in its units, such as
            `estimator.sensitivity(n, d).linf`.
        limit: bound on the entries of g, such as `estimator.limit`; they are clipped to
            it. It bounds the rounding errors of scores.
        key: a typed key, a part of the state; each update draws from a fresh one.
        learning_rate: eta, or a schedule of the step 0, 1, ...; by default 2 / (t + 3).
        mechanism: "exponential", or "permute_and_flip" for choices on disjoint batches.

    Returns:
        An optax transformation; its update needs params, in the set.

    Raises:
        ValueError: If an argument is out of its range, or update gets no params.

    Privacy:
        One update is one selection with `epsilon`: between neighbors, the changes of
        two scores differ by at most diameter("l1")·sensitivity, because
        <v - w, g - g'> <= ||v - w||_1 ||g - g'||_inf, and rounding moves each of the
        four scores by at most `constraint.score_error`·limit. T updates on the same
        data share a budget rho = `accounting.epsilon_to_rho(epsilon, delta)` if each
        has sqrt(8 rho / T) with the exponential mechanism, sqrt(2 rho / T) with
        permute-and-flip, or epsilon / T at delta = 0. On disjoint batches they cost one
        `epsilon`. All this holds under the relation of the sensitivity.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from dpjax.constraints import L1Ball
        >>> from dpjax.estimators import Winsorization
        >>> from dpjax.transforms import aggregate
        >>> mean, params = Winsorization(1.0), jnp.zeros(2)
        >>> step = frank_wolfe(
        ...     L1Ball(3.0), epsilon=1.0, limit=mean.limit, key=jax.random.key(0),
        ...     sensitivity=mean.sensitivity(1000, 2).linf)
        >>> optimizer = optax.chain(aggregate(mean), step)
        >>> grads = jnp.tile(jnp.array([0.1, -0.9]), (1000, 1))
        >>> print(optimizer.update(grads, optimizer.init(params), params)[0])
        [0. 2.]

    Reference:
        Talwar, Thakurta, Zhang (2015), "Nearly optimal private LASSO"; Hu, Ni, Xiao,
        Wang (2022), Algorithms 1 and 2.
    """
    rule = "a set with vertices: L1Ball, Simplex or Polytope"
    is_fine = isinstance(constraint, VertexConstraint)
    _validate.require(is_fine, "constraint", constraint, rule)
    _validate.positive(epsilon=epsilon, sensitivity=sensitivity, limit=limit)
    _validate.typed_key(key)
    _validate.choice(SelectionName, mechanism=mechanism)
    select, rate_fn = getattr(mechanisms, mechanism), learning_rate
    if rate_fn is None:
        rate_fn = _papers_rate
    elif not callable(rate_fn):
        _validate.within(0, 1, learning_rate=rate_fn)
        rate_fn = optax.constant_schedule(rate_fn)

    def init(params):
        size = num_coordinates(params)
        change = constraint.diameter("l1", size) * sensitivity
        change += 4 * constraint.score_error(size) * limit
        change = jnp.asarray(change * _ROUNDED_UP)
        return FrankWolfeState(KeyState.of(key).key, jnp.zeros((), jnp.int32), change)

    def update(updates, state, params=None):
        """Returns the step from params to a private vertex, and the next state."""
        # `updates` is a mean gradient, a pytree like params.
        require_params(params)
        next_key, choice_key = jax.random.split(state.key)
        scores = constraint.vertex_scores(clip(updates, limit))
        costs = {"epsilon": epsilon, "sensitivity_range": state.sensitivity_range}
        vertex = constraint.vertex(select(choice_key, scores, **costs), params)
        rate = jnp.asarray(rate_fn(state.num_steps))
        moves = jax.tree.map(lambda v, w: like(rate, v) * (v - w), vertex, params)
        return moves, state._replace(key=next_key, num_steps=state.num_steps + 1)

    return optax.GradientTransformation(init, update)


def _papers_rate(step: jax.typing.ArrayLike) -> jax.Array:
    return 2 / (jnp.asarray(step).astype(jnp.float32) + 3)


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
        size = num_coordinates(params)
        rule = f"at most the number of entries of params, {size}"
        _validate.require(sparsity <= size, "sparsity", sparsity, rule)
        return KeyState.of(key)

    def update(updates, state, params=None):
        """Returns the step from params to a sparse release of params + updates."""
        # The second result is the state, with the key of the next draw.
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
        sparse = mechanisms.peeling(
            peel_key,
            start + move.astype(start.dtype),
            sparsity=sparsity,
            selection_scale=scale,
            release_stddev=stddev * scale,
            noise=noise,
        )
        return jax.tree.map(jnp.subtract, unflatten(sparse), params), KeyState(next_key)

    return optax.GradientTransformation(init, update)
