"""Linear classifiers from a perturbed objective (paper 002, Algorithm 4)."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from dpjax import _validate
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._tree import real_pair
from dpjax._types import Key, Scalar
from dpjax.accounting import gaussian_stddev
from dpjax.accounting._objective import objective_noise
from dpjax.losses import MarginLoss, logistic
from dpjax.mechanisms import gaussian
from dpjax.solvers.training._calibration import check_budget, unsupported
from dpjax.solvers.training._solution import Solution

# This share of epsilon and delta pays for the output noise. It hides how far the
# computed minimizer is from the exact minimizer: so little that any share will do.
OUTPUT_SHARE = 0.01


def dp_objective_perturbation(
    features: jax.Array,
    labels: jax.Array,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    regularization: float,
    loss: MarginLoss | None = None,
) -> Solution:
    """Releases the minimizer of a regularized empirical risk with a random linear term.

    J(w) = sum_i phi(y_i <w, x_i>) + (N Lambda / 2) ||w||^2 + <eta, w>, with
    eta ~ N(0, stddev^2 I). A point w with ||grad J(w)|| <= gamma is computed in
    float64, and w + N(0, output_stddev^2 I) is released.

    Args:
        features: rows x_i, shape (n, d); n is public. Rows are clipped to norm 1, so
            scale them by public constants first. An intercept is a column of ones,
            which counts in the norm.
        labels: shape (n,); the class is +1 above zero, otherwise -1, or none for NaN.
        key: a typed key.
        epsilon: privacy parameter, positive and finite.
        delta: privacy parameter in (0, 1).
        regularization: lambda >= 0, per record, public; Lambda if epsilon needs more.
        loss: phi with its bounds; by default `losses.logistic`.

    Returns:
        A `Solution` with w as params, shape (d,). Its stats hold stddev, regularization
        (Lambda), extra_regularization (Delta), output_stddev, and gradient_norm (gamma:
        1e-8 N Lambda, or more if the rounding of float64 requires it).

    Raises:
        ValueError: If an argument is out of its range, or the loss is no `MarginLoss`;
            never because of the data's values.

    Privacy:
        (epsilon, delta)-DP under replace-one. The exact minimizer has 99 percent of
        the budget (proof: `dpjax/accounting/_objective.py`). Its difference from w,
        with output noise, is a Gaussian mechanism of sensitivity 2 gamma / (N Lambda),
        with the other 1 percent (Iyengar et al. 2019). If the computed w has no
        certificate that ||grad J(w)|| <= gamma, with all rounding counted, NaN is
        released. In exact arithmetic this cannot happen; that Newton steps reach gamma
        in float64 is only observed. The running time depends on the data and is not
        protected. Nothing is claimed for a TPU, which emulates float64 with fewer bits.

    Example:
        >>> import jax
        >>> features = jax.random.normal(jax.random.key(0), (5000, 3)) / 3
        >>> labels = features[:, 0] - features[:, 1]
        >>> solution = dp_objective_perturbation(
        ...     features, labels, key=jax.random.key(1), epsilon=1.0, delta=1e-6,
        ...     regularization=0.01)
        >>> predicted = features @ solution.params > 0
        >>> print(f"{(predicted == (labels > 0)).mean():.2f}")
        0.99

    Reference:
        Rajkumar, Agarwal (2012), Algorithm 4, Procedure 3, Theorem 4.1; Iyengar et al.
        (2019), "Towards practical differentially private convex optimization".
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, (features, labels))
    loss = checked_loss(loss, regularization)
    features, labels = gathered(real_pair(features, labels, "labels"))
    output_epsilon, output_delta = OUTPUT_SHARE * epsilon, OUTPUT_SHARE * delta
    budget = epsilon - output_epsilon, delta - output_delta
    plan = Perturbation.of(Objective(loss, *features.shape), regularization, *budget)
    least = plan.least_gradient_norm(plan.stddev)
    gradient_norm = max(1e-8 * plan.convexity, least)
    moved = 2 * gradient_norm / plan.convexity
    output_stddev = gaussian_stddev(output_epsilon, output_delta, sensitivity=moved)
    dtype = released_dtype(features)
    with jax.enable_x64(True):
        numbers = np.array([plan.convexity, plan.stddev, gradient_norm, output_stddev])
        params = _release(plan.objective, dtype, features, labels, key, numbers)
    privacy = unsupported(epsilon, delta, len(features))
    return Solution(params, privacy, plan.stats(gradient_norm, output_stddev))


class Objective(NamedTuple):
    """The loss and the sizes of an objective; all fields are static."""

    loss: MarginLoss
    num_samples: int
    num_features: int

    def chunked(self, rows: jax.Array) -> jax.Array:
        """Returns chunks of about sqrt(n) rows, padded with rows of zeros."""
        size = math.isqrt(len(rows) - 1) + 1
        rows = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)))
        return rows.reshape(-1, size, self.num_features)

    def rounding(self, convexity: Any, params_norm: Any, noise_norm: Any) -> Any:
        """Bounds the l2 norm of the rounding error of J's gradient at w, in float64."""
        # J is the solver's objective; `convexity` is N Lambda, params_norm ||w||, and
        # noise_norm ||eta||. The bound is part of certificates on the gradient's norm.
        # Errors in units of the last place: d ||w|| in a margin, which phi' multiplies
        # by c; 16 L + 16 c (1 + ||w||) in phi' itself, as `MarginLoss` requires; in the
        # sum over chunks N L, the sum of all |terms|, times the size and number of
        # chunks; a few in the other terms. 2^-52 for 2^-53 covers products of errors.
        loss = self.loss
        chunk_size = math.isqrt(self.num_samples - 1) + 1
        num_chunks = -(-self.num_samples // chunk_size)
        slopes = loss.derivative_bound * (chunk_size + num_chunks + 20)
        margins = loss.curvature_bound * (16 + (self.num_features + 16) * params_norm)
        added = convexity * params_norm + noise_norm
        return 2.0**-52 * (self.num_samples * (slopes + margins) + 4 * added)


class Perturbation(NamedTuple):
    """An objective, its convexity N Lambda, and its noise eta ~ N(0, stddev^2 I)."""

    objective: Objective
    convexity: float
    stddev: float
    regularization: float  # Lambda
    extra_regularization: float

    @classmethod
    def of(
        cls, objective: Objective, regularization: float, epsilon: float, delta: float
    ) -> "Perturbation":
        """Returns the regularization and noise with which the minimizer is private."""
        # epsilon and delta are its part of the budget; regularization may be increased.
        loss = objective.loss
        noise = objective_noise(
            epsilon,
            delta,
            regularization=regularization,
            is_non_increasing=loss.is_non_increasing,
            num_samples=objective.num_samples,
            curvature_bound=loss.curvature_bound,
            derivative_bound=loss.derivative_bound,
        )
        extra = noise.extra_regularization
        total = regularization + extra
        convexity = objective.num_samples * total
        return cls(objective, convexity, noise.stddev, total, extra)

    def least_gradient_norm(self, stddev: float) -> float:
        """Returns the least bound on ||grad J(w)|| that float64 can certify."""
        # gamma is at least this: eight times the rounding at the largest w that eta, of
        # `stddev`, allows.
        # grad J(w) = 0 bounds ||w||. A norm of eta above noise_norm has probability
        # e^-32, and would use up some of the factor of eight, but no privacy.
        objective = self.objective
        noise_norm = stddev * (math.sqrt(objective.num_features) + 8)
        slopes = objective.num_samples * objective.loss.derivative_bound
        params_norm = (slopes + noise_norm) / self.convexity
        return 8 * objective.rounding(self.convexity, params_norm, noise_norm)

    def stats(self, gradient_norm: float, output_stddev: float) -> dict[str, Scalar]:
        """Returns public numbers for the stats of a `Solution`."""
        return {
            "stddev": self.stddev,
            "regularization": self.regularization,
            "extra_regularization": self.extra_regularization,
            "gradient_norm": gradient_norm,
            "output_stddev": output_stddev,
        }


def checked_loss(loss: MarginLoss | None, regularization: float) -> MarginLoss:
    """Returns the loss, by default the logistic loss."""
    _validate.non_negative(regularization=regularization)
    loss = logistic if loss is None else loss
    rule = "a MarginLoss, which declares the bounds that the noise rests on"
    _validate.require(isinstance(loss, MarginLoss), "loss", loss, rule)
    return loss


def released_dtype(features: jax.Array) -> np.dtype:
    """Returns the dtype of features, or float32 if it is no float or x64 is off."""
    is_float = jnp.issubdtype(features.dtype, jnp.floating)
    return jax.dtypes.canonicalize_dtype(features.dtype if is_float else "float32")


def signed_rows(features: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns y_i x_i in float64, shape (n, d), for margins, with rows of norm <= 1."""
    # y_i is 1 for a label above zero, -1 for another number, and 0 for NaN, so that its
    # record only adds a constant to the objective. NaN in features counts as zero.
    # An infinity dominates the direction of its row. It becomes 1e300, because the
    # reciprocal of the largest float is subnormal and may be flushed to zero.
    rows = features.astype(jnp.float64)
    rows = jnp.clip(jnp.where(jnp.isnan(rows), 0.0, rows), -1e300, 1e300)
    largest = jnp.maximum(jnp.abs(rows).max(axis=1, keepdims=True), 1.0)
    rows = rows / largest  # no square overflows
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows / jnp.maximum(norms, 1 / largest)
    # The shrinkage is more than all rounding, so that no exact norm exceeds 1.
    shrinkage = 1 - (features.shape[1] + 4) * 2.0**-52
    labels = labels.astype(jnp.float64)
    signs = jnp.where(labels > 0, shrinkage, -shrinkage)
    return jnp.where(jnp.isnan(labels), 0.0, signs)[:, None] * rows


class _Step(NamedTuple):
    params: jax.Array
    gradient: jax.Array
    norm: jax.Array
    has_fallen: jax.Array


def minimize(objective: Objective, rows, convexity, eta, gradient_norm) -> jax.Array:
    """Returns w, shape (d,), with a certified ||grad J(w)|| <= gradient_norm, or NaN.

    J is the solver's objective with rows y_i x_i, (n, d), convexity N Lambda, and noise
    eta, (d,). The certificate counts all rounding, because privacy rests on it.
    """
    # Each round tries Newton steps of several lengths and a gradient step, and goes to
    # the point of least gradient norm. The gradient step guarantees that the norm falls
    # by a factor of at least 1 - 1/kappa, kappa the condition number of J. If the norm
    # does not fall, only rounding is left.
    loss = objective.loss
    lengths = 2.0 ** -jnp.arange(8, dtype=jnp.float64)
    smoothness = convexity + objective.num_samples * loss.curvature_bound
    noise_norm = jnp.linalg.norm(eta)
    chunks = objective.chunked(rows)

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
        # The norm is computed from a sum of d squares, which is rounded too.
        norm = step.norm * (1 + (objective.num_features + 8) * 2.0**-52)
        params_norm = jnp.linalg.norm(step.params)
        error = objective.rounding(convexity, params_norm, noise_norm)
        return norm + error <= gradient_norm

    def descend(step: _Step) -> _Step:
        """Returns the best of eight Newton steps and a gradient step, by |gradient|."""
        factor = jax.scipy.linalg.cho_factor(hessian(step.params))
        newton = jax.scipy.linalg.cho_solve(factor, step.gradient)
        moves = jnp.concatenate(
            [lengths[:, None] * newton[None], step.gradient[None] / smoothness]
        )
        points = step.params[None] - moves
        slopes = gradients(points)
        norms = jnp.linalg.norm(slopes, axis=1)
        # This is argmin by a mask: under a caller's jit, float64 is off again when this
        # is lowered, and then argmin of float64 fails to lower.
        best = jax.lax.argmax(norms == jnp.nanmin(norms), 0, jnp.int32)
        return _Step(points[best], slopes[best], norms[best], norms[best] < step.norm)

    origin = jnp.zeros_like(eta)
    gradient = gradients(origin[None])[0]
    start = _Step(origin, gradient, jnp.linalg.norm(gradient), jnp.array(True))
    last = jax.lax.while_loop(
        lambda step: step.has_fallen & ~is_certified(step), descend, start
    )
    return jnp.where(is_certified(last), last.params, jnp.nan)


@partial(jax.jit, static_argnums=(0, 1))
def _release(objective: Objective, dtype, features, labels, key, numbers) -> jax.Array:
    """Returns the minimizer with output noise, shape (d,), which may be published."""
    # `numbers` are N Lambda, the stddev of the noise in J, the bound gamma on the norm
    # of J's gradient, and output_stddev.
    convexity, stddev, gradient_norm, output_stddev = numbers
    objective_key, output_key = jax.random.split(key)
    zeros = jnp.zeros(objective.num_features, jnp.float64)
    eta = gaussian(objective_key, zeros, stddev=stddev)
    rows = signed_rows(features, labels)
    params = minimize(objective, rows, convexity, eta, gradient_norm)
    return gaussian(output_key, params, stddev=output_stddev).astype(dtype)
