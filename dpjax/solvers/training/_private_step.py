"""The private step: a batch's gradients, their robust mean, noise, an optimizer.

`dp_gradient_descent` and `PrivateTraining` make the same one.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
from jax.tree_util import Partial

from dpjax._tree import Static, broadcast, register
from dpjax._types import REPLACE_ONE, NeighboringRelation, PyTree, Scalar
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.mechanisms import Strategy
from dpjax.solvers.training._loop import OptaxStep
from dpjax.transforms import chain

Mean = Estimator | AdaptiveThreshold | Scaled


@register("estimator", "learning_rate", "noise_multiplier", "key")
@dataclass(frozen=True, kw_only=True)
class PrivateStep(OptaxStep):
    """A step of an optimizer along the noisy robust mean of a batch's gradients.

    Attributes:
        estimator: the robust mean.
        noise_multiplier: of the mean; None is no noise, and no privacy.
        optimizer_fn: takes the learning rate, and returns the optimizer of the mean.
        learning_rate: a number, or a schedule: static, or a `Partial`, whose arguments
            are traced.
        relation: the neighboring relation.
        strategy: of correlated noise, or None.
    """

    estimator: Mean
    noise_multiplier: Scalar | Static | None
    optimizer_fn: Callable[[Any], optax.GradientTransformation]
    learning_rate: Scalar | Partial | Static | None = None
    relation: NeighboringRelation = REPLACE_ONE
    strategy: Strategy | None = None

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        del params
        optimizer = self.optimizer_fn(Static.value_of(self.learning_rate))
        if self.noise_multiplier is None:
            return optax.chain(self.mean(self.estimator), optimizer)
        how = {"relation": self.relation, "noise": self.strategy}
        return chain(self.mean(self.estimator, self.noise_multiplier, **how), optimizer)

    def noise_parameters(self, num_coordinates: int) -> dict[str, Scalar]:
        """Returns `Estimator.noise_parameters` for the batches of this step."""
        return measured(self.estimator).noise_parameters(
            Static.value_of(self.noise_multiplier),
            self.batches.divisor,
            num_coordinates,
            self.relation,
            is_sampled=self.batches.is_sampled,
        )

    def stddev(self, num_coordinates: int) -> Scalar:
        """Returns the stddev of independent noise that moves the sum of steps alike."""
        stddev = self.noise_parameters(num_coordinates)["stddev"]
        return stddev * _relative_noise(self.strategy)

    def relative_norm(self, num_coordinates: int) -> Scalar:
        """Returns the norm of a step's noise over that of one gradient at most."""
        estimator, divisor = self.estimator, self.batches.divisor
        if isinstance(estimator, AdaptiveThreshold):
            estimator = estimator.estimator  # counts left out
        replaced = measured(estimator).sensitivity(divisor, num_coordinates).l2
        norm = math.sqrt(num_coordinates) * self.stddev(num_coordinates)
        return norm / (replaced * divisor / 2)


def measured(estimator: Mean) -> Estimator:
    """Returns the estimator whose sensitivity the noise has."""
    if isinstance(estimator, Scaled):
        return estimator.measured
    return estimator.counting if isinstance(estimator, AdaptiveThreshold) else estimator


@functools.lru_cache(maxsize=32)
def _relative_noise(strategy: Strategy | None) -> float:
    """Returns |C^-T 1| / sqrt(T), by which C^-1 z moves the sum of steps more than z.

    It is 1 without a strategy.
    """
    if strategy is None:
        return 1.0
    ones = np.ones(strategy.num_steps)
    row = scipy.linalg.solve_triangular(strategy.matrix(), ones, lower=True, trans=1)
    return float(np.linalg.norm(row)) / math.sqrt(strategy.num_steps)


class Observed(NamedTuple):
    """State of an optimizer, and what may be seen of the last mean that it took.

    Attributes:
        optimizer: state of the optimizer.
        gradient_norm: l2 norm of the noisy mean.
        noise_norm: sqrt(d) times the standard deviation of its noise.
    """

    optimizer: PyTree
    gradient_norm: jax.Array
    noise_norm: jax.Array


def observed(
    optimizer: optax.GradientTransformation, stddev: Scalar | None
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer of a private mean with the state `Observed`.

    It gets the norm of the noise as the keyword noise_norm; stddev is that of the noise
    where the chain does not tell it.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params):
        unseen = (jnp.zeros((), jnp.float32) for _ in range(2))  # may be donated
        return Observed(optimizer.init(params), *unseen)

    def update(updates, state, params=None, *, noise_stddev=None, **extra_args):
        noise = _norm_of_noise(noise_stddev if stddev is None else stddev, updates)
        seen = _norm(updates), noise
        told = extra_args | {"noise_stddev": noise_stddev, "noise_norm": noise}
        updates, following = optimizer.update(updates, state.optimizer, params, **told)
        return updates, Observed(following, *seen)

    return optax.GradientTransformationExtraArgs(init, update)


def _norm(tree: PyTree) -> jax.Array:
    squares = [jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)]
    return jnp.asarray(jnp.sqrt(sum(squares)), jnp.float32)


def _norm_of_noise(stddev: PyTree | None, mean: PyTree) -> jax.Array:
    """Returns the root of the sum of all coordinates' variances; 0 if not public."""
    if stddev is None:
        return jnp.zeros((), jnp.float32)
    stddevs = broadcast(stddev, mean, "stddev")
    return _norm(
        jax.tree.map(lambda s, x: s * math.sqrt(x.size / jnp.size(s)), stddevs, mean)
    )
