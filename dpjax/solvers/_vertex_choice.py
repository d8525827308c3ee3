"""Frank-Wolfe steps by private choices: what its solvers share."""

import math
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._types import Key, LossFn, PyTree, Scalar, SelectionName
from dpjax.accounting import (
    PrivacyGuarantee,
    selection_epsilon,
    selection_event,
    total_selection_epsilon,
)
from dpjax.batching import Disjoint
from dpjax.constraints import VertexConstraint
from dpjax.estimators import Estimator
from dpjax.solvers._descent import Loop, Part, descend, run
from dpjax.transforms import FrankWolfeState, frank_wolfe

FAILURE_PROB = 0.01  # of the error bounds in defaults and stats


class Choices(NamedTuple):
    """How the choices of a run are made, and what they cost together.

    Attributes:
        mechanism: "exponential" or "permute_and_flip".
        epsilon: of one choice.
        num_composed: how many choices one record meets.
        privacy: (epsilon, delta) of all of them.
    """

    mechanism: SelectionName
    epsilon: float
    num_composed: int
    privacy: tuple[float, float]

    @classmethod
    def tight(cls, loop: Loop, epsilon: float, delta: float) -> "Choices":
        """Returns the choices that a budget affords, exponential only where it wins."""
        if isinstance(loop.batching, Disjoint):
            return cls("permute_and_flip", epsilon, 1, (epsilon, 0.0))
        by_name: dict[SelectionName, float] = {
            name: selection_epsilon(
                epsilon, delta, num_selections=loop.num_steps, mechanism=name
            )
            for name in ("permute_and_flip", "exponential")
        }
        # At the same epsilon permute-and-flip, the first of them, is never worse.
        name = max(by_name, key=lambda name: by_name[name])
        return cls(name, by_name[name], loop.num_steps, (epsilon, delta))

    @classmethod
    def exponential(cls, each: float, delta: float, *, num_composed: int) -> "Choices":
        """Returns exponential mechanisms of a given epsilon, at what they cost."""
        delta = 0.0 if num_composed == 1 else delta
        total = total_selection_epsilon(each, delta, num_selections=num_composed)
        return cls("exponential", each, num_composed, (total, delta))

    def guarantee(self, num_samples: int) -> PrivacyGuarantee:
        """Returns the guarantee of all choices together."""
        event = selection_event(
            self.epsilon, num_selections=self.num_composed, mechanism=self.mechanism
        )
        return PrivacyGuarantee.of(
            *self.privacy, dp_event=event, num_samples=num_samples
        )


def choose_vertices(
    loop: Loop,
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    choices: Choices,
    constraint: VertexConstraint,
    estimator: Estimator,
    learning_rate: optax.ScalarOrSchedule | None,
) -> tuple[PyTree, dict[str, Scalar]]:
    """Runs w <- w + eta_t (v_t - w), v_t a private choice among the vertices.

    Returns:
        The last iterate, and what was taken.
    """
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    schedule = cast(optax.Schedule, learning_rate) if callable(learning_rate) else None
    if not callable(learning_rate) and learning_rate is not None:
        _validate.within(0, 1, learning_rate=learning_rate)
    return run(
        _descend,
        Method(loop, loss_fn, choices.mechanism, schedule),
        params=params,
        data=data,
        key=key,
        constraint=constraint,
        estimator=estimator,
        epsilon=choices.epsilon,
        learning_rate=None if callable(learning_rate) else learning_rate,
    )


class Method(NamedTuple):
    """The static part of a run: a call with another one compiles anew."""

    loop: Loop
    loss_fn: LossFn
    mechanism: SelectionName
    schedule: optax.Schedule | None


@partial(jax.jit, static_argnums=0)
def _descend(
    method: Method,
    params: PyTree,
    data: PyTree,
    key: Key,
    constraint: VertexConstraint,
    estimator: Estimator,
    epsilon: Scalar,
    learning_rate: Any,
    part: Part | None,
) -> tuple[tuple[PyTree, dict[str, Scalar]], PyTree]:
    loop = method.loop
    num_samples = jax.tree.leaves(data)[0].shape[0]
    num_coordinates = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
    batch_size = int(loop.batching.divisor(num_samples, loop.num_steps))
    sensitivity = estimator.sensitivity(batch_size, num_coordinates).linf
    choice_key, batch_key = jax.random.split(key)
    params, state, carry = descend(
        loop,
        loop.mean_grad(method.loss_fn, estimator, batch_size),
        frank_wolfe(
            constraint,
            epsilon=epsilon,
            sensitivity=sensitivity,
            limit=cast(Scalar, estimator.limit),
            key=choice_key,
            learning_rate=method.schedule or learning_rate,
            mechanism=method.mechanism,
        ),
        params,
        data,
        batch_key,
        part,
    )
    # Both mechanisms: Pr[score < best - (range / epsilon) log(|V| / p)] <= p.
    num_choices = constraint.num_vertices(num_coordinates) * loop.num_steps
    unit = cast(FrankWolfeState, state).sensitivity_range / epsilon
    stats = {
        "num_steps": loop.num_steps,
        "batch_size": batch_size,
        "selection_epsilon": epsilon,
        "linf_sensitivity": sensitivity,
        "selection_error": unit * math.log(num_choices / FAILURE_PROB),
    }
    return (params, stats), carry


def default_num_steps(num_samples: int, epsilon: float, power: float) -> int:
    """Returns floor((n epsilon)^power), at least 1 and at most n."""
    return min(num_samples, max(1, math.floor((num_samples * epsilon) ** power)))


def check_num_steps(num_steps: int, num_samples: int) -> None:
    """Requires no more choices than records: they would be blind."""
    _validate.require(
        num_steps <= num_samples,
        "num_steps",
        num_steps,
        f"at most the {num_samples} samples",
    )


def check_start(constraint: VertexConstraint, params: PyTree) -> None:
    """Requires a set with vertices, and a start in it where its numbers are at hand."""
    _validate.require(
        isinstance(constraint, VertexConstraint),
        "constraint",
        constraint,
        "a set with vertices: L1Ball, Simplex or Polytope",
    )
    numbers = [*jax.tree.leaves(params), *jax.tree.leaves(constraint)]
    if all(map(_validate.is_concrete, numbers)):
        _validate.require(
            bool(constraint.contains(params)), "params", params, f"in {constraint}"
        )
