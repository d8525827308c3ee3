"""The objective of objective perturbation, and a minimizer with its certificate."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from dpjax import _validate
from dpjax._types import Scalar
from dpjax.losses import MarginLoss


class Objective(NamedTuple):
    """The static part of an objective."""

    loss: MarginLoss
    num_samples: int
    num_features: int

    @property
    def chunk_size(self) -> int:
        """Rows of a chunk: about sqrt(n), so that both levels of a sum are short."""
        return math.isqrt(self.num_samples - 1) + 1

    def rounding(self, convexity: Any, params_norm: Any, noise_norm: Any) -> Any:
        """Bounds ||computed grad J(w) - grad J(w)||, at ||w|| and ||eta||, in float64.

        In units of the last place: a margin errs by d ||w||, which phi' multiplies by
        c; phi' itself by 16 L + 16 c (1 + ||w||), as `MarginLoss` asks; a sum over
        chunks by its chunk and their number, times the sum N L of all |terms|; the
        other two terms by a few. Taking 2^-52 for the unit 2^-53 covers products of
        errors.
        """
        loss = self.loss
        num_chunks = -(-self.num_samples // self.chunk_size)
        slopes = loss.derivative_bound * (self.chunk_size + num_chunks + 20)
        margins = loss.curvature_bound * (16 + (self.num_features + 16) * params_norm)
        added = convexity * params_norm + noise_norm
        return 2.0**-52 * (self.num_samples * (slopes + margins) + 4 * added)


def least_gradient_norm(objective: Objective, convexity: float, stddev: float) -> float:
    """Eight times what rounding amounts to at the largest minimizer there can be."""
    # grad J(w) = 0 bounds ||w||. A norm of eta above this one has probability e^-32; it
    # would cost some of the factor of eight, no privacy.
    noise_norm = stddev * (math.sqrt(objective.num_features) + 8)
    slopes = objective.num_samples * objective.loss.derivative_bound
    params_norm = (slopes + noise_norm) / convexity
    return 8 * objective.rounding(convexity, params_norm, noise_norm)


def check_data(features: jax.Array, labels: jax.Array) -> tuple[int, int]:
    """Checks the arrays, and returns n and d."""
    for name, array, num_axes in (("features", features, 2), ("labels", labels, 1)):
        is_real = hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jnp.floating)
        is_real |= hasattr(array, "dtype") and (
            jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == jnp.bool_
        )
        _validate.require(
            is_real and array.ndim == num_axes and array.size > 0,
            name,
            getattr(array, "aval", type(array).__name__),
            f"a real array of {num_axes} axes, not empty",
        )
    _validate.leading_size((features, labels), "features and labels")
    return features.shape[0], features.shape[1]


def released_dtype(features: jax.Array) -> np.dtype:
    """The dtype of the features, float32 where it is no float or x64 is off."""
    is_float = jnp.issubdtype(features.dtype, jnp.floating)
    return jax.dtypes.canonicalize_dtype(features.dtype if is_float else "float32")


def signed_rows(features: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns y_i x_i in float64, each row scaled down to norm 1 where it is longer.

    A row without a label is zero.
    """
    # An infinity dominates the direction of its row. It does not become the largest
    # number, whose reciprocal is subnormal and may be flushed to zero.
    rows = features.astype(jnp.float64)
    rows = jnp.clip(jnp.where(jnp.isnan(rows), 0.0, rows), -1e300, 1e300)
    largest = jnp.maximum(jnp.abs(rows).max(axis=1, keepdims=True), 1.0)
    rows = rows / largest  # no square overflows
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / jnp.maximum(norms, 1 / largest)
    # Rounding errs by less than this; with it no row is longer than 1, exactly.
    shrinkage = 1 - (features.shape[1] + 4) * 2.0**-52
    labels = labels.astype(jnp.float64)
    signs = jnp.where(labels > 0, shrinkage, -shrinkage)
    return jnp.where(jnp.isnan(labels), 0.0, signs)[:, None] * rows


class _Step(NamedTuple):
    params: jax.Array
    gradient: jax.Array
    norm: jax.Array
    is_shorter: jax.Array


def minimize(
    objective: Objective,
    rows: jax.Array,
    convexity: Scalar,
    eta: jax.Array,
    gradient_norm: Scalar,
) -> jax.Array:
    """Returns w with ||grad J(w)|| <= gradient_norm for certain, or NaN.

    Each round tries Newton's step at several lengths and a gradient step of length
    1/(N Lambda + N c), and keeps the point with the shortest gradient. With the average
    Hessian A between two points the gradient step makes g into (I - A/(N Lambda + N c))
    g, shorter by a factor of 1 - 1/kappa at least; Newton's step makes it quick. Where
    no candidate is shorter, rounding has been reached.
    """
    loss = objective.loss
    lengths = 2.0 ** -jnp.arange(8, dtype=jnp.float64)
    smoothness = convexity + objective.num_samples * loss.curvature_bound
    noise_norm = jnp.linalg.norm(eta)
    # Padded with rows of zeros, which add nothing.
    rows = jnp.pad(rows, ((0, -objective.num_samples % objective.chunk_size), (0, 0)))
    chunks = rows.reshape(-1, objective.chunk_size, objective.num_features)

    def gradients(points: jax.Array) -> jax.Array:
        def add(total, chunk):
            return total + loss.derivative(points @ chunk.T) @ chunk, None

        total, _ = jax.lax.scan(add, jnp.zeros_like(points), chunks)
        return total + convexity * points + eta[None]

    def hessian(point: jax.Array) -> jax.Array:
        def add(total, chunk):
            weighted = loss.curvature(chunk @ point)[:, None] * chunk
            return total + chunk.T @ weighted, None

        return jax.lax.scan(add, convexity * jnp.eye(point.size), chunks)[0]

    def is_certified(step: _Step) -> jax.Array:
        # The norm is a sum of d squares, so it errs too.
        norm = step.norm * (1 + (objective.num_features + 8) * 2.0**-52)
        params_norm = jnp.linalg.norm(step.params)
        error = objective.rounding(convexity, params_norm, noise_norm)
        return norm + error <= gradient_norm

    def shorten(step: _Step) -> _Step:
        factor = jax.scipy.linalg.cho_factor(hessian(step.params))
        newton = jax.scipy.linalg.cho_solve(factor, step.gradient)
        moves = jnp.concatenate(
            [lengths[:, None] * newton[None], step.gradient[None] / smoothness]
        )
        points = step.params[None] - moves
        slopes = gradients(points)
        norms = jnp.linalg.norm(slopes, axis=1)
        # By the mark of the smallest: under a caller's jit, where float64 is off again
        # when this is lowered, argmin of float64 would not lower.
        best = jax.lax.argmax(norms == jnp.nanmin(norms), 0, jnp.int32)
        return _Step(points[best], slopes[best], norms[best], norms[best] < step.norm)

    origin = jnp.zeros_like(eta)
    gradient = gradients(origin[None])[0]
    start = _Step(origin, gradient, jnp.linalg.norm(gradient), jnp.array(True))
    last = jax.lax.while_loop(
        lambda step: step.is_shorter & ~is_certified(step), shorten, start
    )
    return jnp.where(is_certified(last), last.params, jnp.nan)
