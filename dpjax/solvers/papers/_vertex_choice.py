"""Frank-Wolfe steps by private choices: what its solvers share."""

import math
from dataclasses import dataclass
from typing import cast

import jax
import optax

from dpjax import _validate
from dpjax._rounding import LARGEST
from dpjax._tree import num_coordinates, register
from dpjax._types import Key, LossFn, PyTree, Scalar, SelectionName
from dpjax.batching import Batching
from dpjax.constraints._constraint import VertexConstraint
from dpjax.estimators import Estimator
from dpjax.solvers.training._calibration import FAILURE_PROB, Choices
from dpjax.solvers.training._loop import Batches, Execution, OptaxStep, iterate
from dpjax.transforms import frank_wolfe


@register("estimator", "constraint", "epsilon", "learning_rate", "key")
@dataclass(frozen=True, kw_only=True)
class VertexStep(OptaxStep):
    """w <- w + eta_t (v_t - w), v_t a privately chosen vertex (004, Alg. 1 and 2)."""

    estimator: Estimator
    constraint: VertexConstraint
    epsilon: Scalar
    learning_rate: Scalar | None
    schedule: optax.Schedule | None
    mechanism: SelectionName
    num_coordinates: int

    @property
    def sensitivity(self) -> Scalar:
        """The linf sensitivity of a gradient's mean."""
        divisor = self.batches.divisor
        return self.estimator.sensitivity(divisor, self.num_coordinates).linf

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        del params
        return optax.chain(
            self.mean(self.estimator),
            frank_wolfe(
                self.constraint,
                epsilon=self.epsilon,
                sensitivity=self.sensitivity,
                limit=cast(Scalar, self.estimator.limit),
                key=cast(Key, self.key),
                learning_rate=self.schedule or self.learning_rate,
                mechanism=self.mechanism,
            ),
        )


def choose_vertices(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    choices: Choices,
    constraint: VertexConstraint,
    estimator: Estimator,
    learning_rate: optax.ScalarOrSchedule | None,
    num_steps: int,
    batching: Batching,
    execution: Execution,
) -> tuple[PyTree, dict[str, Scalar]]:
    """Returns the last iterate of steps to private vertices, and the run's stats."""
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    schedule = cast(optax.Schedule, learning_rate) if callable(learning_rate) else None
    if not callable(learning_rate) and learning_rate is not None:
        _validate.within(0, 1, learning_rate=learning_rate)
    # A number of float32: what is beyond it gets more noise than it needs.
    choices = choices._replace(epsilon=min(choices.epsilon, LARGEST))
    step = VertexStep(
        loss_fn=loss_fn,
        batches=Batches.of(data, num_steps, batching, execution),
        estimator=estimator,
        constraint=constraint,
        epsilon=choices.epsilon,
        learning_rate=None if callable(learning_rate) else learning_rate,
        schedule=schedule,
        mechanism=choices.mechanism,
        num_coordinates=num_coordinates(params),
    )
    params, (_, state) = iterate(step, params, data, key=key, execution=execution)
    # Both mechanisms: Pr[score < best - (range / epsilon) log(|V| / p)] <= p.
    num_choices = constraint.num_vertices(step.num_coordinates) * num_steps
    unit = state.sensitivity_range / choices.epsilon
    stats = {
        "num_steps": num_steps,
        "batch_size": step.batches.divisor,
        "selection_epsilon": choices.epsilon,
        "linf_sensitivity": step.sensitivity,
        "selection_error": unit * math.log(num_choices / FAILURE_PROB),
    }
    return params, stats


def default_num_steps(num_samples: int, epsilon: float, power: float) -> int:
    """Returns floor((n epsilon)^power), at least 1 and at most n."""
    return min(num_samples, max(1, math.floor((num_samples * epsilon) ** power)))


def check_num_steps(num_steps: int, num_samples: int) -> None:
    """Requires no more choices than records: they would be blind."""
    rule = f"at most the {num_samples} samples"
    _validate.require(num_steps <= num_samples, "num_steps", num_steps, rule)


def check_start(constraint: VertexConstraint, params: PyTree) -> None:
    """Requires a set with vertices, and a start in it if both are concrete."""
    rule = "a set with vertices: L1Ball, Simplex or Polytope"
    is_fine = isinstance(constraint, VertexConstraint)
    _validate.require(is_fine, "constraint", constraint, rule)
    numbers = [*jax.tree.leaves(params), *jax.tree.leaves(constraint)]
    if all(map(_validate.is_concrete, numbers)):
        with jax.ensure_compile_time_eval():  # under jit of the key or the data, too
            is_inside = bool(constraint.contains(params))
        _validate.require(is_inside, "params", params, f"in {constraint}")
