"""The Catoni-Giulini influence against its definition; thresholds of moment bounds."""

import dataclasses
import functools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from scipy import optimize, special

from dpjax import estimators
from dpjax.estimators import Clipping, SmoothedClipping, SmoothedTruncation
from dpjax.estimators._smoothed import _reference

BETAS = [0.05, 0.3, 1.0, 3.0, 9.21, 10.0, 11.0, 50.0, 1000.0, 20_000.0, 1e6]
SIZES = np.r_[np.geomspace(1e-8, 1e30, 300), np.linspace(0.01, 8, 800)]
SIZES = np.unique(SIZES).astype(np.float32)


influence = jax.jit(lambda estimator, x: estimator.influence(x))


def smoothed_truncate(x, scale, beta):
    return influence(SmoothedTruncation(scale, beta), x)


def supremum(beta):
    return 2 * math.sqrt(2) / 3 * math.erf(math.sqrt(beta / 2))


@functools.cache
def definition(beta):
    """E phi(a (1 + Z/sqrt(beta))) at SIZES, in float64: a quadrature over Z."""
    # Three smooth pieces: phi is a cubic between ±sqrt(2), a constant outside.
    a = SIZES.astype(np.float64)[:, None]
    low, high = (math.sqrt(beta) * (s * math.sqrt(2) / a - 1) for s in (-1, 1))
    outside = 2 * math.sqrt(2) / 3 * (special.ndtr(-high) - special.ndtr(low))
    left, right = np.clip(low, -10, 10), np.clip(high, -10, 10)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    z = left + (right - left) * (nodes + 1) / 2
    x = a * (1 + z / math.sqrt(beta))
    inside = (x - x**3 / 6) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return (outside + (right - left) / 2 * (inside @ weights)[:, None])[:, 0]


@pytest.mark.quick(4)
@pytest.mark.parametrize("beta", BETAS)
def test_influence_is_its_definition_odd_and_increasing_to_its_limit(beta):
    value = np.asarray(smoothed_truncate(SIZES, 1.0, beta), np.float64)
    np.testing.assert_allclose(value, definition(beta), rtol=0, atol=1e-6)
    # A traced beta takes the exact form, a number takes the series.
    exact = jax.jit(lambda b: SmoothedTruncation(1.0, b).influence(SIZES))(beta)
    np.testing.assert_allclose(exact, definition(beta), rtol=0, atol=1e-6)
    value = np.asarray(smoothed_truncate(SIZES, 2.5, beta), np.float64)
    np.testing.assert_array_equal(smoothed_truncate(-SIZES, 2.5, beta), -value)
    limit = 2.5 * supremum(beta)
    # The limit is the float32 nearest to the exact one, or one of its neighbours.
    assert value.max() <= limit * (1 + 2**-22)
    # Rounding may undo the increase by what the evaluation errs.
    assert (np.diff(value) > -2.5 * 1e-6).all()
    huge = smoothed_truncate(np.float32([1e6 * 2.5, 1e30, np.inf]), 2.5, beta)
    np.testing.assert_allclose(huge, limit, rtol=1e-6)
    np.testing.assert_allclose(SmoothedTruncation(2.5, beta).limit, limit, rtol=1e-15)


def test_influence_in_float64_is_as_accurate_as_its_series():
    beta = 9.21
    with jax.enable_x64(True):
        value = smoothed_truncate(SIZES.astype(np.float64), 1.0, beta)
        assert value.dtype == jnp.float64
        np.testing.assert_allclose(value, definition(beta), rtol=0, atol=5e-7)


def test_the_printed_closed_form_does_not_serve_in_float32():
    # Eq. (10) subtracts terms of size a^3/6 from each other: 1.7e8 at a = 1e3, where
    # float32 is spaced by 16, while the result lies below 0.65.
    def printed(a):
        b = a  # beta = 1
        low, high = ((jnp.sqrt(jnp.float32(2)) + sign * a) / b for sign in (-1, 1))
        below, above = (jax.scipy.special.ndtr(-v) for v in (low, high))
        e_low, e_high = (jnp.exp(-v * v / 2) for v in (low, high))
        root = 1 / math.sqrt(2 * math.pi)
        correction = (
            2 * math.sqrt(2) / 3 * (below - above)
            - (a - a**3 / 6) * (below + above)
            + b * root * (1 - a * a / 2) * (e_high - e_low)
            + a * b**2 / 2 * (above + below + root * (high * e_high + low * e_low))
            + b**3 / 6 * root * ((2 + low**2) * e_low - (2 + high**2) * e_high)
        )
        return a * (1 - b * b / 2) - a**3 / 6 + correction

    # It is the right formula where it does not cancel...
    a = jnp.float32(0.5)
    np.testing.assert_allclose(printed(a), smoothed_truncate(a, 1.0, 1.0), atol=1e-5)
    # ... and leaves its range, hence has no sensitivity, where it does.
    assert jnp.abs(printed(jnp.float32([1e3, 3e3, 1e4, 1e5]))).max() > 1
    assert smoothed_truncate(jnp.float32(1e5), 1.0, 1.0) < 0.65


def test_a_beta_beyond_the_series_is_never_evaluated_by_it():
    # The degree is chosen from a number; a traced one may be put in its place.
    few = SmoothedTruncation(1.0, 1.0)

    @jax.jit
    def larger(beta):
        doubled = jax.tree.map(lambda leaf: leaf * beta, few)
        return doubled.influence(jnp.array([1.0]))

    assert jnp.isnan(larger(50.0)).all()
    point = jnp.array([3.0])
    replaced = lambda beta: dataclasses.replace(few, beta=beta).influence(point)  # noqa: E731
    expected = SmoothedTruncation(1.0, 50.0).influence(point)
    for value in (jax.jit(replaced)(50.0), replaced(50.0)):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    tangent = jax.tree.map(lambda leaf: 0 * leaf + 50.0, few)
    assert jax.tree.structure(tangent) == jax.tree.structure(few)


@pytest.mark.parametrize("beta", [9.21, 50.0])
def test_the_norm_is_that_of_the_formula(beta):
    directions = np.random.default_rng(0).normal(size=(40, 5))
    lengths = np.geomspace(1e-3, 1e4, 40)
    rows = directions * (lengths / np.linalg.norm(directions, axis=1))[:, None]
    influence = jax.jit(jax.vmap(SmoothedClipping(1.5, beta).influence))
    influences = np.asarray(influence(jnp.asarray(rows, jnp.float32)), np.float64)
    expected = 1.5 * _reference(lengths / 1.5, beta)
    norms = np.linalg.norm(influences, axis=1)
    np.testing.assert_allclose(norms, expected, atol=2e-6)
    cosines = (influences * rows).sum(axis=1) / norms / lengths
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_tiny_and_huge_samples_keep_their_direction():
    influence = jax.jit(lambda estimator, x: estimator.influence(x))
    for scale in (1e-12, 1e-6, 1.0, 1e30):
        estimator = SmoothedClipping(scale)
        assert not influence(estimator, jnp.full(2, 1e19 * scale)).any() or scale > 1e18
        longest = min(9e18 * scale, 3e38)
        for length in (1e-35, 1e-12 * scale, 1e-3 * scale, scale, longest):
            sample = jnp.array([0.6, -0.8]) * np.float32(length)
            bounded = np.asarray(influence(estimator, sample), np.float64)
            norm = np.linalg.norm(bounded)
            assert norm <= min(estimator.limit, length) * (1 + 1e-6)
            if length <= 1e-3 * scale:
                np.testing.assert_allclose(norm, length, rtol=3e-6)
            np.testing.assert_allclose(bounded / norm, [0.6, -0.8], atol=1e-5)


def test_no_kink_where_clipping_has_one():
    @jax.jit
    def slope(estimator, length):
        return jax.grad(lambda x: estimator.influence(x[None])[0])(length)

    for estimator, jumps in ((Clipping(1.0), True), (SmoothedClipping(1.0), False)):
        jump = slope(estimator, 0.999) - slope(estimator, 1.001)
        assert (jump > 0.5) == jumps
    # Of a zero sample it is the identity, where that of the norm does not exist.
    jacobian = jax.jit(jax.jacrev(SmoothedClipping(1.3).influence))(jnp.zeros(3))
    np.testing.assert_allclose(jacobian, np.eye(3), atol=1e-6)


# -- Limits from moment bounds: minima of the bounds that the docstrings state ---------
@functools.cache
def worst_bias(kind, order):
    """The largest E|x - psi(x)| at threshold 1 of all laws with E|x|^order <= 1."""
    # A law that keeps 1 - p at zero and puts p = 1 / x^order at x is the worst.
    x = np.geomspace(1, 1e3, 200_001)
    loss = x if kind is estimators.Truncation else x - 1
    return (loss / x**order).max()


def threshold_bias(estimator, threshold, u, order, log_term):
    factor = worst_bias(type(estimator), order)
    np.testing.assert_allclose(estimator.bias_factor(order - 1), factor, rtol=1e-4)
    return factor * u / threshold ** (order - 1), 2 / 3 * log_term, 1.0


def smoothed_bias(estimator, scale, u, order, log_term):
    b = estimator.beta
    return u * (1 + 1 / b) / (2 * scale), b / 2 + log_term, supremum(b)


CASES = [
    (partial(kind.for_moment, moment_order=order), order, threshold_bias)
    for kind in (estimators.Truncation, estimators.Winsorization)
    for order in (1.3, 2.0)
]
CASES += [
    (partial(SmoothedTruncation.for_moment, beta=beta), 2.0, smoothed_bias)
    for beta in (None, 1.0, 4.0)
]


@pytest.mark.parametrize(("n", "d", "num_steps"), [(50_000, 1, 1), (9_000, 20, 30)])
@pytest.mark.parametrize(("for_moment", "order", "terms"), CASES)
def test_a_limit_minimises_the_error_bound(for_moment, order, terms, n, d, num_steps):
    u, epsilon, delta, xi = 3.0, 0.5, 1e-6, 0.05
    sizes = {"num_samples": n, "num_coordinates": d, "num_steps": num_steps}
    budget = {"epsilon": epsilon, "delta": delta, "failure_prob": xi}
    estimator = for_moment(u, **sizes, **budget)
    log_term = math.log(2 * d * num_steps / xi)
    kappa = gaussian_mechanism.get_sigma_gaussian(epsilon, delta) * num_steps**0.5

    def bound(log_limit):
        limit = math.exp(log_limit)
        bias, concentration, largest = terms(estimator, limit, u, order, log_term)
        stddev = kappa * 2 * largest * limit * d**0.5 / n
        return bias + limit / n * concentration + stddev * math.sqrt(2 * log_term)

    limit = getattr(estimator, "scale", None) or estimator.threshold
    best = optimize.minimize_scalar(bound, bounds=(-10, 30), method="bounded")
    np.testing.assert_allclose(bound(math.log(limit)), best.fun, rtol=1e-8)
    np.testing.assert_allclose(math.log(limit), best.x, atol=2e-3)
    if terms is smoothed_bias:
        b = for_moment.keywords["beta"]
        assert estimator.beta == (2 * math.log(1 / xi) if b is None else b)


def test_number_of_groups_for_a_failure_probability():
    sizes = {"num_coordinates": 1000, "failure_prob": 0.05}
    medians = estimators.MedianOfMeans.for_failure_prob(Clipping(1.0), **sizes)
    assert medians.num_groups == math.ceil(4 * math.log(2 * 1000 / 0.05))
