"""Frank-Wolfe steps with a private choice of the vertex, as a transformation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import DpEvent

from dpjax import _validate, mechanisms
from dpjax._keys import secret_repr
from dpjax._tree import clip, like
from dpjax._types import Key, Scalar, SelectionName
from dpjax.accounting._selection import selection_event, total_selection_epsilon
from dpjax.constraints._constraint import VertexConstraint
from dpjax.transforms._chain import KeyState, require_params

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


class FrankWolfe(optax.GradientTransformation):
    """The transformation of `frank_wolfe`, with methods for the cost of its choices.

    `optax.chain` returns a transformation without these methods: call them before.

    Attributes:
        epsilon: privacy parameter of one choice.
        mechanism: the selection mechanism.

    Example:
        >>> import jax
        >>> from dpjax.constraints import L1Ball
        >>> for mechanism in ("exponential", "permute_and_flip"):
        ...     step = frank_wolfe(
        ...         L1Ball(1.0), epsilon=0.1, sensitivity=0.01, limit=1.0,
        ...         key=jax.random.key(0), mechanism=mechanism)
        ...     print(round(step.total_epsilon(1e-5, num_updates=50), 2))
        1.48
        2.84
    """

    epsilon: Scalar
    mechanism: SelectionName

    def total_epsilon(self, delta: float, *, num_updates: int) -> float:
        """Returns the epsilon at delta of num_updates updates on the same data.

        Args:
            delta: in [0, 1); with 0 the result is num_updates times epsilon.
            num_updates: number of updates, one after another.

        Raises:
            ValueError: If an argument is out of its range, or epsilon is traced.
        """
        return total_selection_epsilon(
            self._concrete_epsilon(),
            delta,
            num_selections=num_updates,
            mechanism=self.mechanism,
        )

    def dp_event(self, *, num_updates: int) -> DpEvent:
        """Returns the `dp_accounting` event; see `total_epsilon`, `selection_event`."""
        return selection_event(
            self._concrete_epsilon(),
            num_selections=num_updates,
            mechanism=self.mechanism,
        )

    def _concrete_epsilon(self) -> float:
        rule = "a concrete number, not a traced one, to compute the cost of choices"
        is_fine = _validate.is_concrete(self.epsilon)
        _validate.require(is_fine, "epsilon", self.epsilon, rule)
        return float(self.epsilon)


def frank_wolfe(
    constraint: VertexConstraint,
    *,
    epsilon: Scalar,
    sensitivity: Scalar,
    limit: Scalar,
    key: Key,
    learning_rate: optax.ScalarOrSchedule | None = None,
    mechanism: SelectionName = "exponential",
) -> FrankWolfe:
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
        key: a typed key. It is part of the state; each update draws from a fresh one.
        learning_rate: eta, or a schedule of the step 0, 1, ...; by default
            2 / (t + 3), the papers' 2 / (t + 2) with steps counted from one.
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
        data cost `.total_epsilon(delta, num_updates=T)`, more with permute-and-flip
        than with the exponential mechanism; on disjoint batches they cost one
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
        num_coordinates = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
        change = constraint.diameter("l1", num_coordinates) * sensitivity
        change += 4 * constraint.score_error(num_coordinates) * limit
        change = jnp.asarray(change * _ROUNDED_UP)
        return FrankWolfeState(KeyState.of(key).key, jnp.zeros((), jnp.int32), change)

    def update(updates, state, params=None):
        """Returns the step from params to a vertex, chosen by the mean gradient."""
        require_params(params)
        next_key, choice_key = jax.random.split(state.key)
        index = select(
            choice_key,
            constraint.vertex_scores(clip(updates, limit)),
            epsilon=epsilon,
            sensitivity_range=state.sensitivity_range,
        )
        vertex = constraint.vertex(index, params)
        rate = jnp.asarray(rate_fn(state.num_steps))
        moves = jax.tree.map(lambda v, w: like(rate, v) * (v - w), vertex, params)
        return moves, state._replace(key=next_key, num_steps=state.num_steps + 1)

    transformation = FrankWolfe(init, update)
    transformation.epsilon = epsilon
    transformation.mechanism = mechanism
    return transformation


def _papers_rate(step: jax.typing.ArrayLike) -> jax.Array:
    return 2 / (jnp.asarray(step).astype(jnp.float32) + 3)
