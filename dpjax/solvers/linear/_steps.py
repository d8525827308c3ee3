"""Noisy steps of a linear predictor, which need no step size."""

import math
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import optax
from optax.contrib import dog

from dpjax._rounding import ROUNDOFF
from dpjax._tree import like, register
from dpjax._types import PyTree, Scalar
from dpjax.estimators import Clipping, Estimator
from dpjax.estimators._clipping import clip_to_norm
from dpjax.losses import LinearLoss
from dpjax.solvers.training._loop import OptaxStep
from dpjax.transforms import average_iterates

# The released params are a mean in which iterate k has a weight of about k.
_AVERAGING_POWER = 1.0
_MOST_LOGS = 4.0  # replaces a larger clip norm, with a log link


@dataclass(frozen=True)
class ExampleLoss:
    """Computes the loss of a weighted example from weights and intercept."""

    loss: LinearLoss

    def __call__(self, params: PyTree, example: PyTree) -> jax.Array:
        """Returns the loss of one example (features, offset, target, weight)."""
        features, offset, target, weight = cast(tuple[jax.Array, ...], example)
        prediction = features @ params["weights"]
        prediction += jnp.broadcast_to(offset, prediction.shape)
        if "intercept" in params:
            prediction += params["intercept"]
        return weight * self.loss.value(prediction, target)


@register("l2_clip_norms")
@dataclass(frozen=True)
class BlockClipping(Estimator):
    """Averages samples whose leaves are each clipped to a norm of its own.

    Each leaf is returned in units of its clip norm, times the root of its share. The
    norm of all leaves together is then at most 1, and equal noise on every coordinate
    gives each leaf its share of the budget: noise of stddev s is s·clip norm /
    sqrt(share) in the units of the samples.
    """

    l2_clip_norms: dict[str, Scalar]  # for each leaf
    shares: tuple[tuple[str, float], ...]  # of the budget, a dict as pairs; static

    def influence(self, sample: PyTree) -> PyTree:
        """Returns a sample's clipped leaves over clip norms, times roots of shares."""
        # A sample is an example's gradient. All leaves together have norm 1 at most, so
        # equal noise gives each its share. A leaf may exceed its norm by the rounding
        # of clip_to_norm and of two products.
        return {
            name: clip_to_norm(sample[name], self.l2_clip_norms[name])
            / like(self.l2_clip_norms[name], sample[name])
            * (math.sqrt(share) * (1 - 4 * ROUNDOFF))
            for name, share in self.shares
        }

    @property
    def limit(self) -> Scalar:
        """Returns the largest l2 norm of an influence."""
        return 1.0

    def _sensitivity(self, num_samples, num_coordinates, relation, rounded):
        """Returns it for `Clipping(1.0)`: `docs/privacy/proofs/linear.md`, 8.2."""
        args = num_samples, num_coordinates, relation
        return Clipping(1.0).sensitivity(*args, rounded=rounded)


@register("estimator", "noise_multiplier", "first_distance", "key")
@dataclass(frozen=True, kw_only=True)
class DistanceOverGradientsStep(OptaxStep):
    """Takes steps of (largest distance / root of summed squares) · noisy gradient.

    Weights and intercept have a step size each (Ivgi, Hinder, Carmon 2023). Distances
    and gradients are released numbers, so step sizes cost nothing.
    """

    estimator: BlockClipping  # the robust mean
    noise_multiplier: Scalar  # of each step
    first_distance: Scalar  # at the first step, in clip norms of the weights

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the optax chain that maps per-example gradients to a noisy step."""
        # Leaves of params have a step size each. The state has the averaged iterates.
        names = {name: name for name in params}
        distance = self.first_distance * self.estimator.l2_clip_norms["weights"]
        if cast(ExampleLoss, self.loss_fn).loss.has_log_link:
            # The distance is one of logarithms, the clip norm in units of the targets.
            distance = jnp.minimum(distance, _MOST_LOGS * self.first_distance)
        # Gradients are in units of their noise: any of them is above 1e-30.
        steps = {
            name: dog(init_step=("distance", distance), eps=1e-30) for name in names
        }
        return optax.chain(
            self.mean(self.estimator, self.noise_multiplier),
            optax.partition(steps, names),
            average_iterates(power=_AVERAGING_POWER),
        )
