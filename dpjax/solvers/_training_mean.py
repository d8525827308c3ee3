"""The private means of a training run: that of gradients, and that of losses."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._sharding import AxisName
from dpjax._tree import broadcast, like
from dpjax._types import Key, NeighboringRelation, PyTree, Scalar
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.mechanisms import Strategy
from dpjax.solvers import _training_recipe as recipe
from dpjax.transforms import chain, privatize

Mean = Estimator | AdaptiveThreshold | Scaled


class Observed(NamedTuple):
    """State of a private mean, and what may be seen of its last release.

    Attributes:
        mean: state of `privatize`.
        gradient_norm: l2 norm of what was released.
        noise_norm: sqrt(d) times the standard deviation of its noise.
    """

    mean: PyTree
    gradient_norm: jax.Array
    noise_norm: jax.Array


@dataclass(frozen=True)
class TrainingMeans:
    """How a training run takes its means, and what noise they have.

    Attributes:
        estimator: of gradients; None is the recipe's.
        optimizer: of the private mean; None is the recipe's.
        noise_multiplier: of all that one step releases.
        monitor: the share of the budget for the mean of losses; None is none.
        divisor: by which sums over batches are divided.
        num_steps: T.
        is_sampled: whether batches are drawn at random.
        relation: the neighbouring relation.
        strategy: of correlated noise, or None.
    """

    estimator: Mean | None
    optimizer: optax.GradientTransformation | None
    noise_multiplier: float
    monitor: float | None
    divisor: float
    num_steps: int
    is_sampled: bool
    relation: NeighboringRelation
    strategy: Strategy | None

    def of_losses(self, key: Key, axis_name: AxisName | None = None) -> Any:
        """Returns the private mean of losses."""
        multiplier = self.noise_multiplier / math.sqrt(self.monitor or 0.0)
        return self._private(recipe.loss_clipping(), multiplier, key, axis_name)

    def of_gradients(
        self, num_coordinates: int, key: Key, axis_name: AxisName | None = None
    ) -> Any:
        """Returns the private mean of gradients, and the optimizer, in a chain.

        The state begins with `Observed`.
        """
        estimator, nu = self.estimator, 0.0
        if estimator is None:
            # Its noise does not depend on the quantile: any tells the norm.
            nu = self._relative_norm(recipe.adaptive_clipping(0.5), num_coordinates)
            estimator = recipe.adaptive_clipping(nu)
        elif self.optimizer is None:
            nu = self._relative_norm(estimator, num_coordinates)
        mean = self._private(estimator, self._multiplier, key, axis_name)

        def init(params):
            unseen = (jnp.zeros((), jnp.float32) for _ in range(2))  # may be donated
            return Observed(mean.init(params), *unseen)

        def release(updates, state, params=None, **extra_args):
            released, following, stddev = mean.release(
                updates, state.mean, params, **extra_args
            )
            of_noise = stddev
            if self.strategy is not None:
                of_noise = self._stddev(estimator, num_coordinates)
            seen = _norm(released), _norm_of_noise(of_noise, released)
            if self.optimizer is None:  # whose rate is in units of the largest gradient
                limit = self._limit(_at(estimator, state.mean), num_coordinates)
                released = jax.tree.map(lambda x: x / like(limit, x), released)
            return released, Observed(following, *seen), stddev

        optimizer = self.optimizer
        if optimizer is None:
            optimizer = recipe.descend(self.num_steps, nu)
        return chain(type(mean).of(init, release), optimizer)

    @property
    def _multiplier(self) -> float:
        """The noise multiplier of gradients alone."""
        return self.noise_multiplier / math.sqrt(1 - (self.monitor or 0.0))

    def _private(self, estimator, multiplier, key, axis_name):
        return privatize(
            estimator,
            noise_multiplier=multiplier,
            key=key,
            normalize_by=self.divisor,
            relation=self.relation,
            sampled=self.is_sampled,
            axis_name=axis_name,
            noise=self.strategy,
        )

    def _stddev(self, estimator: Mean, num_coordinates: int) -> Scalar:
        """Returns the stddev of independent noise that moves the sum of steps alike."""
        parameters = measured(estimator).noise_parameters(
            self._multiplier,
            self.divisor,
            num_coordinates,
            self.relation,
            is_sampled=self.is_sampled,
        )
        return parameters["stddev"] * recipe.relative_noise(self.strategy)

    def _limit(self, estimator: Mean, num_coordinates: int) -> Scalar:
        """Returns the largest norm that one gradient may have in the mean."""
        if isinstance(estimator, AdaptiveThreshold):
            estimator = estimator.estimator  # counts left out
        replaced = measured(estimator).sensitivity(self.divisor, num_coordinates).l2
        return replaced * self.divisor / 2

    def _relative_norm(self, estimator: Mean, num_coordinates: int) -> Scalar:
        """Returns the norm of a step's noise over that of one gradient at most."""
        norm = math.sqrt(num_coordinates) * self._stddev(estimator, num_coordinates)
        return norm / self._limit(estimator, num_coordinates)


def measured(estimator: Mean) -> Estimator:
    """Returns the estimator whose sensitivity the noise has."""
    if isinstance(estimator, Scaled):
        return estimator.measured
    return estimator.counting if isinstance(estimator, AdaptiveThreshold) else estimator


def _at(estimator: Mean, state: PyTree) -> Mean:
    """Returns the estimator with the thresholds of a state."""
    if isinstance(estimator, AdaptiveThreshold):
        return estimator.at(state.thresholds)
    return estimator


def _norm(tree: PyTree) -> jax.Array:
    squares = [jnp.sum(jnp.square(x)) for x in jax.tree.leaves(tree)]
    return jnp.asarray(jnp.sqrt(sum(squares)), jnp.float32)


def _norm_of_noise(stddev: PyTree | None, released: PyTree) -> jax.Array:
    """Returns the root of the sum of all coordinates' variances; 0 if not public."""
    if stddev is None:
        return jnp.zeros((), jnp.float32)
    whole = jax.tree.map(
        lambda s, x: jnp.broadcast_to(like(s, x), x.shape),
        broadcast(stddev, released, "stddev"),
        released,
    )
    return _norm(whole)
