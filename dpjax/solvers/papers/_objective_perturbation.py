"""Linear classifiers from a perturbed objective (paper 002, Algorithm 4)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import UnsupportedDpEvent

from dpjax import _validate
from dpjax._sharding import check_key_of_rows, gathered
from dpjax._types import REPLACE_ONE, Key, Scalar
from dpjax.accounting import PrivacyGuarantee, gaussian_stddev
from dpjax.accounting._objective import objective_noise
from dpjax.losses import MarginLoss
from dpjax.mechanisms import gaussian
from dpjax.solvers.papers._perturbed_objective import (
    Objective,
    check_data,
    least_gradient_norm,
    minimize,
    released_dtype,
    signed_rows,
)
from dpjax.solvers.training._calibration import check_budget
from dpjax.solvers.training._solution import Solution

# The share of epsilon and of delta that hides how far the computed minimizer is from
# the exact one. That distance is so small that any share costs next to nothing.
_OUTPUT_SHARE = 0.01


def dp_objective_perturbation(
    features: jax.Array,
    labels: jax.Array,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    regularization: float,
    loss: MarginLoss | None = None,
    gradient_norm: float | None = None,
) -> Solution:
    """Releases the minimizer of a regularized empirical risk with a random linear term.

    J(w) = sum_i phi(y_i <w, x_i>) + (N Lambda / 2) ||w||^2 + <eta, w>, with
    eta ~ N(0, stddev^2 I): w minimizes J up to a gradient of norm gamma, and w + N(0,
    output_stddev^2 I) is released.

    The paper's noise protects the exact minimizer, which no solver finds. Here the
    computed one is certified to have ||grad J|| <= gamma, so it is within gamma / (N
    Lambda) of the exact one; the small output noise hides the difference. The minimizer
    is computed in float64, even if the caller works in float32.

    Args:
        features: rows x_i, shape (n, d); n is public. Rows are clipped to norm 1, so
            scale them by public constants first. A column of ones serves as the
            intercept, and counts in the norm.
        labels: shape (n,); above zero is the class +1, anything else the class -1,
            and a record of the label NaN has no gradient.
        key: a typed key.
        epsilon: privacy parameter, positive and finite.
        delta: privacy parameter in (0, 1).
        regularization: lambda >= 0, per record, public. The theory raises it to
            Lambda = lambda + Delta where it is too small for epsilon.
        loss: phi with its bounds; by default `MarginLoss.logistic()`.
        gradient_norm: gamma, public; by default 1e-8 N Lambda, or more if the rounding
            of float64 requires it. The output noise is proportional to it.

    Returns:
        A `Solution` whose params are w, shape (d,). Its stats hold the stddev of eta,
        regularization (Lambda), extra_regularization (Delta), gradient_norm (gamma, the
        bound and never the norm itself) and output_stddev.

    Raises:
        ValueError: If an argument is out of its range, or the loss is not a
            `MarginLoss`; never because of the values of features or labels.

    Privacy:
        (epsilon, delta)-DP under replace-one. The exact minimizer w* has 99 per cent of
        the budget (proof: `dpjax/accounting/_objective.py`). Given w*, eta and so the
        computed w are functions of the data, and ||w - w*|| <= gamma / (N Lambda),
        because J is (N Lambda)-strongly convex: releasing w - w* + noise is a Gaussian
        mechanism of sensitivity 2 gamma / (N Lambda), with the other 1 per cent
        (Iyengar et al. 2019). The release is the sum of both.

        A point without its certificate is never released; NaN is released instead. In
        exact arithmetic that cannot happen, since each step shrinks the gradient by a
        factor of at most 1 - 1/kappa, kappa = 1 + c/Lambda. For float64 this is not a
        proof: the certificate counts every rounding, and gamma is 8 times the largest
        rounding at the largest possible w, but that Newton steps reach it is only
        observed. The number of steps depends on the data: the running time is not
        protected.

    Note:
        A step costs n d^2 + d^3. The rounding bound is that of IEEE float64, on CPU and
        GPU; a TPU emulates it with fewer bits, and there nothing is claimed.

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
        Rajkumar, Agarwal (2012), Algorithm 4, Procedure 3 and Theorem 4.1; Iyengar,
        Near, Song, Thakkar, Thakurta, Wang (2019), "Towards practical differentially
        private convex optimization", Algorithm 1, for the approximate minimizer.
    """
    check_budget(epsilon, delta)
    check_key_of_rows(key, (features, labels))
    _validate.non_negative(regularization=regularization)
    loss = MarginLoss.logistic() if loss is None else loss
    rule = "a MarginLoss, which declares the bounds that the noise rests on"
    _validate.require(isinstance(loss, MarginLoss), "loss", loss, rule)
    features, labels = gathered((features, labels))
    num_samples, num_features = check_data(features, labels)
    bounds = {
        "num_samples": num_samples,
        "curvature_bound": loss.curvature_bound,
        "derivative_bound": loss.derivative_bound,
    }
    output_epsilon, output_delta = _OUTPUT_SHARE * epsilon, _OUTPUT_SHARE * delta
    noise = objective_noise(
        epsilon - output_epsilon,
        delta - output_delta,
        regularization=regularization,
        is_non_increasing=loss.is_non_increasing,
        **bounds,
    )
    total = regularization + noise.extra_regularization
    convexity = num_samples * total
    objective = Objective(loss, num_samples, num_features)
    least = least_gradient_norm(objective, convexity, noise.stddev)
    if gradient_norm is None:
        gradient_norm = max(1e-8 * convexity, least)
    _validate.positive(gradient_norm=gradient_norm)
    rule = f"at least {least:.3g}, which float64 can certify here"
    _validate.require(gradient_norm >= least, "gradient_norm", gradient_norm, rule)
    output_stddev = gaussian_stddev(
        output_epsilon, output_delta, sensitivity=2 * gradient_norm / convexity
    )
    dtype = released_dtype(features)
    with jax.enable_x64(True):
        numbers = np.array([convexity, noise.stddev, gradient_norm, output_stddev])
        params = _release(objective, dtype, features, labels, key, numbers)
    stats: dict[str, Scalar] = {
        "stddev": noise.stddev,
        "regularization": total,
        "extra_regularization": noise.extra_regularization,
        "gradient_norm": gradient_norm,
        "output_stddev": output_stddev,
    }
    return Solution(
        params,
        # No event of dp_accounting describes it, and accountants refuse this one.
        PrivacyGuarantee.of(
            epsilon,
            delta,
            dp_event=UnsupportedDpEvent(),
            relation=REPLACE_ONE,
            num_samples=num_samples,
        ),
        stats,
    )


@partial(jax.jit, static_argnums=(0, 1))
def _release(
    objective: Objective,
    dtype: np.dtype,
    features: jax.Array,
    labels: jax.Array,
    key: Key,
    numbers: jax.Array,
) -> jax.Array:
    convexity, stddev, gradient_norm, output_stddev = numbers
    objective_key, output_key = jax.random.split(key)
    zeros = jnp.zeros(objective.num_features, jnp.float64)
    eta = gaussian(objective_key, zeros, stddev=stddev)
    rows = signed_rows(features, labels)
    params = minimize(objective, rows, convexity, eta, gradient_norm)
    return gaussian(output_key, params, stddev=output_stddev).astype(dtype)
