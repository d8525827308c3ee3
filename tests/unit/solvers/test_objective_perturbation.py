"""Objective perturbation: its certificate, noise, records, labels, losses."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from dpjax import accounting, solvers
from dpjax.losses import MarginLoss, logistic
from dpjax.solvers.papers import _objective_perturbation
from dpjax.solvers.papers._objective_perturbation import objective_noise

RNG = np.random.default_rng(20261120)
LOSSES = {
    "logistic": logistic,
    "smoothed hinge": MarginLoss.smoothed_hinge(),
    "sharp hinge": MarginLoss.smoothed_hinge(0.01),
    "pseudo-Huber": MarginLoss(lambda z: (z - 1) / jnp.hypot(1.0, z - 1), 1.0, 1.0),
    "clipped square": MarginLoss(lambda z: jnp.clip(z - 1, -5, 5), 5.0, 1.0),
}
NORMAL = RNG.normal(size=(300, 4)).astype(np.float32)
SIGNS = np.where(RNG.normal(size=300) > 0, 1, -1).astype(np.float32)
MINIMIZER = jax.jit(_objective_perturbation.minimize, static_argnums=0)


def solve(features, labels, **changes):
    options = {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-6}
    options |= {"regularization": 0.01} | changes
    return solvers.dp_objective_perturbation(features, labels, **options)


def computed_minimizer(features, labels, loss, convexity, eta, gradient_norm):
    objective = _objective_perturbation.Objective(loss, *features.shape)
    with jax.enable_x64(True):
        arrays = map(jnp.asarray, (features, labels))
        rows = _objective_perturbation.signed_rows(*arrays)
        params = MINIMIZER(objective, rows, convexity, jnp.asarray(eta), gradient_norm)
        return np.asarray(rows), np.asarray(params), objective


def exact_gradient(rows, params, loss, convexity, eta):
    """The gradient with exactly rounded sums, in NumPy alone."""
    margins = [math.fsum(row * params) for row in rows]
    with jax.enable_x64(True):
        slopes = np.asarray(loss.derivative(jnp.asarray(margins)))
    sums = np.array([math.fsum(column) for column in (slopes[:, None] * rows).T])
    return sums + convexity * params + eta


def test_rounding_bound_covers_the_error_and_less_is_not_certified():
    features = RNG.normal(size=(3000, 20))
    convexity, eta = 30.0, 10 * RNG.normal(size=20)
    arguments = (features, np.ones(3000), LOSSES["logistic"], convexity, eta)
    # At a bound of 1e-7 the computed norm is far below it, so compare the gradients.
    rows, params, objective = computed_minimizer(*arguments, 1e-7)
    exact = exact_gradient(rows, params, arguments[2], convexity, eta)
    plain = (-scipy.special.expit(-rows @ params)) @ rows + convexity * params + eta
    bound = objective.rounding(convexity, np.linalg.norm(params), np.linalg.norm(eta))
    assert 0 < np.linalg.norm(exact - plain) < bound < 1e-8
    assert np.isnan(computed_minimizer(*arguments, 1e-16)[1]).all()

    def loss(w):
        return np.logaddexp(0, -rows @ w).sum() + convexity / 2 * w @ w + eta @ w

    expected = scipy.optimize.minimize(loss, np.zeros(20), method="BFGS").x
    np.testing.assert_allclose(params, expected, atol=1e-4)


def test_budget_is_split_as_stated():
    solution = solve(NORMAL, SIGNS)
    stats, share = solution.stats, 0.01
    given = {"num_samples": 300, "regularization": 0.01, "curvature_bound": 0.25}
    given["is_non_increasing"] = True
    noise = objective_noise(1 - share, 1e-6 * (1 - share), **given)
    assert stats["stddev"] == pytest.approx(noise.stddev)
    convexity = 300 * (0.01 + noise.extra_regularization)
    output = stats["output_stddev"], 1e-6 * share
    moved = 2 * stats["gradient_norm"] / convexity
    spent = accounting.gaussian_epsilon(*output, sensitivity=moved)
    assert spent == pytest.approx(share, rel=1e-6)
    assert stats["gradient_norm"] >= 1e-8 * convexity
    assert (solution.privacy.epsilon, solution.privacy.delta) == (1.0, 1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_no_row_is_longer_than_one(dtype):
    largest, tiny = float(np.finfo(dtype).max), float(np.finfo(dtype).tiny)
    rows = RNG.normal(size=(200, 7))
    rows[:100] /= np.linalg.norm(rows[:100], axis=1, keepdims=True)
    rows[100] = largest
    rows[101] = [np.inf, *[largest] * 6]
    rows[102] = [np.nan, 1, 0, 0, 0, 0, 0]
    rows[103] = [-np.inf, np.inf, 0, 0, 0, 0, 0]
    rows[104], rows[105] = np.nan, 4 * tiny
    with jax.enable_x64(True):
        rows_of = _objective_perturbation.signed_rows
        signed = np.asarray(rows_of(jnp.asarray(rows.astype(dtype)), jnp.ones(200)))
    assert np.isfinite(signed).all()
    for row in signed:  # in rational numbers
        assert sum(fractions.Fraction(entry) ** 2 for entry in row) <= 1
    root = math.sqrt(0.5)
    np.testing.assert_allclose(signed[100], 1 / math.sqrt(7))
    np.testing.assert_allclose(signed[102], [0, 1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(signed[103], [-root, root, 0, 0, 0, 0, 0], atol=1e-300)
    assert not signed[104].any()
    assert (signed[105] > 0).all()
    # A row that is short stays as it is, to rounding.
    inside = np.linalg.norm(rows[106:], axis=1) < 0.99
    short = rows[106:][inside].astype(dtype).astype(np.float64)
    np.testing.assert_allclose(signed[106:][inside], short, rtol=1e-14)


def test_labels_are_signs_whatever_they_are_and_may_be_missing():
    features, labels = NORMAL, SIGNS
    expected = solve(features, labels).params
    kinds = (True, False, bool), (math.inf, -2.5, np.float32), (200, 0, np.uint8)
    for yes, no, dtype in kinds:
        other = np.where(labels > 0, yes, no).astype(dtype)
        np.testing.assert_array_equal(solve(features, other).params, expected)
    # A record without a label has no weight.
    is_missing = np.arange(len(labels)) % 3 == 0
    without = np.where(is_missing[:, None], 0.0, features).astype(np.float32)
    known = np.where(is_missing, np.nan, labels).astype(np.float32)
    expected = solve(without, labels).params
    np.testing.assert_allclose(solve(features, known).params, expected, atol=1e-6)


def test_a_derivative_cannot_leave_its_bound():
    loss = MarginLoss(lambda z: jnp.where(z > 3, jnp.nan, 10 * z), 1.0, 10.0)
    slopes = loss.derivative(jnp.array([-5.0, 0.05, 2.0, 4.0]))
    np.testing.assert_allclose(slopes, [-1.0, 0.5, 1.0, 0.0])
