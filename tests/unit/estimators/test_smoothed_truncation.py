"""The Catoni-Giulini influence against quadrature of its definition, and its scale."""

import dataclasses
import functools
import math
import os

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from scipy import optimize, special

from benchmarks.figures import printed
from dpjax.estimators import SmoothedTruncation, _catoni

BETAS = [0.05, 0.3, 1.0, 3.0, 9.21, 10.0, 11.0, 50.0, 1000.0, 20_000.0, 1e6]
SIZES = np.unique(
    np.concatenate([np.geomspace(1e-8, 1e30, 300), np.linspace(0.01, 8, 800)])
).astype(np.float32)


@jax.jit
def influence(estimator, x):
    return estimator.influence(x)


def smoothed_truncate(x, scale, beta):
    return influence(SmoothedTruncation(scale, beta), x)


def supremum(beta):
    return 2 * math.sqrt(2) / 3 * math.erf(math.sqrt(beta / 2))


@functools.cache
def definition(beta):
    """E phi(a (1 + Z/sqrt(beta))) at SIZES, in float64: a quadrature over Z.

    Three smooth pieces: phi is a cubic between ±sqrt(2), a constant outside.
    """
    a = SIZES.astype(np.float64)[:, None]
    low, high = (math.sqrt(beta) * (s * math.sqrt(2) / a - 1) for s in (-1, 1))
    outside = 2 * math.sqrt(2) / 3 * (special.ndtr(-high) - special.ndtr(low))
    left, right = np.clip(low, -10, 10), np.clip(high, -10, 10)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    z = left + (right - left) * (nodes + 1) / 2
    x = a * (1 + z / math.sqrt(beta))
    inside = (x - x**3 / 6) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return (outside + (right - left) / 2 * (inside * weights).sum(1, keepdims=True))[
        :, 0
    ]


@pytest.mark.quick(4)
@pytest.mark.parametrize("beta", BETAS)
def test_influence_is_the_expectation_that_defines_it(beta):
    value = smoothed_truncate(SIZES, 1.0, beta)
    np.testing.assert_allclose(value, definition(beta), rtol=0, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", [0.05, 1.0, 9.21, 50.0])
def test_influence_agrees_with_arbitrary_precision(beta):
    # Four points by another integrator, at 30 digits: the reference has a reference.
    def phi(x):
        top = 2 * mpmath.sqrt(2) / 3
        return x - x**3 / 6 if abs(x) <= mpmath.sqrt(2) else mpmath.sign(x) * top

    with mpmath.workdps(30):
        for a in (1e-3, 0.7, 3.0, 1e4):
            kinks = [mpmath.sqrt(beta) * (s * mpmath.sqrt(2) / a - 1) for s in (-1, 1)]
            kinks = [k for k in kinks if -12 < k < 12]
            expected = mpmath.quad(
                lambda z, a=a: phi(a * (1 + z / mpmath.sqrt(beta))) * mpmath.npdf(z),
                [-12, *kinks, 12],
            )
            value = float(smoothed_truncate(jnp.float32(a), 1.0, beta))
            assert abs(value - float(expected)) < 1e-6


def certified_error(beta):
    """Bounds |computed h_beta - h_beta| over all a, in units of the scale.

    Of the polynomial: p(z) - h/v is a polynomial of degree 64 but for a Chebyshev tail,
    so 1,024 Chebyshev points see its maximum to a factor 1 / cos(64 pi / 2048) (Ehlich,
    Zeller 1964). Of the rounding: running bounds of Horner's rule (Higham 2002, 5.1) in
    z^2, which is off by u z^2, for even and odd terms; z off by 5 u (1 - z) + u |z|, v
    by 3 u, three more roundings; a by 2 u, which moves h by 2 u a h'(a).
    """
    unit_roundoff, num_points = 2.0**-24, 1024
    z = np.cos((np.arange(num_points) + 0.5) * np.pi / num_points)
    v = np.sqrt((1 + z) / 2)
    exact = _catoni._reference(np.sqrt(0.09 * beta * (1 + z) / (1 - z)), beta) / v
    tail = np.polynomial.chebyshev.chebfit(z, exact, 127)[64:]
    with jax.enable_x64(True):
        series = _catoni.series_coefficients(
            jnp.float64(beta), _catoni.degree_for(beta)
        )
    series = np.asarray(series)

    def horner(coefficients):
        value = np.full(num_points, coefficients[-1])
        rounding = unit_roundoff * np.abs(value)
        for coefficient in coefficients[-2::-1]:
            product = value * z**2
            value = product + coefficient
            sizes = np.abs(product) + np.abs(value) + abs(coefficient)
            rounding = rounding * z**2 + unit_roundoff * sizes
        slope = np.polynomial.Polynomial(coefficients).deriv()(z**2)
        return value, rounding + np.abs(slope) * unit_roundoff * z**2

    even, even_rounding = horner(series[::2])
    odd, odd_rounding = horner(series[1::2])
    value = even + odd * z
    rounding = even_rounding + odd_rounding * np.abs(z)
    rounding += unit_roundoff * (np.abs(odd * z) + np.abs(value))
    slope = np.polynomial.Polynomial(series).deriv()(z)
    rounding += np.abs(slope) * unit_roundoff * (5 * (1 - z) + np.abs(z))
    rounding += 6 * unit_roundoff * np.abs(value)
    elasticity = (1 - v**2) * (value + 4 * v**2 * slope)  # h'(a) a / v
    rounding += 2 * unit_roundoff * np.abs(elasticity)
    off = np.abs(value - exact) / np.cos(64 * np.pi / (2 * num_points))
    return (v * (off + rounding)).max() + np.abs(tail).sum()


@pytest.mark.slow
def test_error_is_certified_up_to_beta_of_one_per_cent_failure():
    seed = int.from_bytes(os.urandom(4))
    print(f"numpy.random.default_rng({seed})")
    betas = np.random.default_rng(seed).uniform(1e-3, 9.21, 20)
    assert max(certified_error(beta) for beta in [*betas, 1.0, 4.0, 9.21]) < 1e-6


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", [1.0, 9.21, 50.0])
def test_influence_in_float64_is_as_accurate_as_its_series(beta):
    with jax.enable_x64(True):
        value = smoothed_truncate(SIZES.astype(np.float64), 1.0, beta)
        assert value.dtype == jnp.float64
        np.testing.assert_allclose(value, definition(beta), rtol=0, atol=5e-7)


@pytest.mark.slow
def test_the_printed_closed_form_does_not_serve_in_float32():
    # Eq. (10) subtracts terms of size a^3/6 from each other: 1.7e8 at a = 1e3, where
    # float32 is spaced by 16, while the result lies below 0.65.
    def printed(a):
        b = a  # beta = 1
        low, high = (
            (jnp.sqrt(jnp.float32(2)) - a) / b,
            (jnp.sqrt(jnp.float32(2)) + a) / b,
        )
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


@pytest.mark.quick(2)
@pytest.mark.parametrize("beta", BETAS)
def test_influence_is_odd_bounded_and_increasing_to_its_limit(beta):
    value = np.asarray(smoothed_truncate(SIZES, 2.5, beta), np.float64)
    np.testing.assert_array_equal(smoothed_truncate(-SIZES, 2.5, beta), -value)
    limit = 2.5 * supremum(beta)
    # The limit is the float32 nearest to the exact one, or one of its neighbours.
    assert value.max() <= limit * (1 + 2**-22)
    # Rounding may undo the increase by what the evaluation errs.
    assert (np.diff(value) > -2.5 * 1e-6).all()
    for huge in (1e6 * 2.5, 1e30, np.inf):
        np.testing.assert_allclose(
            smoothed_truncate(jnp.float32(huge), 2.5, beta), limit, rtol=1e-6
        )
    np.testing.assert_allclose(SmoothedTruncation(2.5, beta).limit, limit, rtol=1e-15)


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", [0.05, 1.0, 4.0, 9.21, 10.0])
def test_series_and_exact_form_agree(beta):
    # A traced beta takes the exact form, a number takes the series.
    series = SmoothedTruncation(1.5, beta).influence(SIZES)
    exact = jax.jit(lambda b: SmoothedTruncation(1.5, b).influence(SIZES))(beta)
    np.testing.assert_allclose(series, exact, rtol=0, atol=1.5e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", [0.5, 9.21, 50.0])
def test_influence_keeps_units(beta):
    for scale in (1e-18, 1e-3, 1e30):
        np.testing.assert_allclose(
            smoothed_truncate(jnp.float32(0.8 * scale), scale, beta) / scale,
            smoothed_truncate(jnp.float32(0.8), 1.0, beta),
            rtol=1e-5,
        )


@pytest.mark.slow
def test_a_beta_beyond_the_series_is_never_evaluated_by_it():
    # The degree is chosen from a number; a traced one may be put in its place.
    few = SmoothedTruncation(1.0, 1.0)

    @jax.jit
    def larger(beta):
        doubled = jax.tree.map(lambda leaf: leaf * beta, few)
        return doubled.influence(jnp.array([1.0]))

    assert jnp.isnan(larger(50.0)).all()
    replaced = jax.jit(
        lambda b: dataclasses.replace(few, beta=b).influence(jnp.array([3.0]))
    )
    expected = SmoothedTruncation(1.0, 50.0).influence(jnp.array([3.0]))
    np.testing.assert_allclose(replaced(50.0), expected, rtol=1e-6)
    np.testing.assert_allclose(
        dataclasses.replace(few, beta=50.0).influence(jnp.array([3.0])), expected
    )


def test_the_tree_does_not_depend_on_its_numbers():
    few = SmoothedTruncation(1.0, 1.0)
    tangent = jax.tree.map(lambda leaf: 0 * leaf + 50.0, few)
    assert jax.tree.structure(tangent) == jax.tree.structure(few)


@pytest.mark.quick(4)
@pytest.mark.parametrize("n", [1000, 100_000])
@pytest.mark.parametrize("beta", [None, 1.0, 4.0])
@pytest.mark.parametrize(("d", "num_steps"), [(1, 1), (10, 50)])
def test_scale_minimises_the_error_bound(n, beta, d, num_steps):
    v, epsilon, delta, xi = 2.3, 0.7, 1e-6, 0.02
    estimator = SmoothedTruncation.for_moment(
        v,
        num_samples=n,
        num_coordinates=d,
        num_steps=num_steps,
        epsilon=epsilon,
        delta=delta,
        failure_prob=xi,
        beta=beta,
    )
    b = 2 * math.log(1 / xi) if beta is None else beta
    assert estimator.beta == b
    log_term = math.log(2 * d * num_steps / xi)
    kappa = gaussian_mechanism.get_sigma_gaussian(epsilon, delta) * num_steps**0.5

    def bound(log_scale):
        s = math.exp(log_scale)
        bias = v * (1 + 1 / b) / (2 * s)
        stddev = kappa * 2 * supremum(b) * s * d**0.5 / n
        return bias + s / n * (b / 2 + log_term) + stddev * math.sqrt(2 * log_term)

    best = optimize.minimize_scalar(bound, bounds=(-10, 20), method="bounded")
    np.testing.assert_allclose(bound(math.log(estimator.scale)), best.fun, rtol=1e-8)
    np.testing.assert_allclose(math.log(estimator.scale), best.x, atol=1e-3)


def test_printed_scale_is_lemma_3():
    estimator = printed.smoothed_truncation(4.0, 1000, failure_prob=0.05)
    np.testing.assert_allclose(
        estimator.scale, math.sqrt(1000 * 4.0 / (2 * math.log(20)))
    )


def test_scale_with_noise_keeps_the_error_bound_that_motivates_it():
    # n = 1e5, d = 10, T = 50 at (1, 1e-5): the bound falls from 0.807 at the
    # paper's scale to 0.131, a factor of 6.
    setting = dict(num_samples=100_000, num_coordinates=10, num_steps=50)
    setting |= dict(epsilon=1.0, delta=1e-5)
    log_term = math.log(2 * 10 * 50 / 0.01)
    kappa = gaussian_mechanism.get_sigma_gaussian(1.0, 1e-5) * 50**0.5

    def bound(estimator):
        s, b = estimator.scale, estimator.beta
        noise = 2 * supremum(b) * 10**0.5 * kappa * math.sqrt(2 * log_term)
        return (1 + 1 / b) / (2 * s) + s / 1e5 * (b / 2 + log_term + noise)

    tight = bound(SmoothedTruncation.for_moment(1.0, **setting))
    paper = bound(printed.smoothed_truncation(1.0, 100_000))
    assert abs(tight - 0.131) < 1e-3
    assert abs(paper - 0.807) < 1e-3
