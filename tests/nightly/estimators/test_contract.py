"""What takes long: derivatives, single operations, gigabytes, the error of a series."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from dpjax.estimators import Clipping, _smoothed
from tests.unit.estimators.test_contract import ALL, ROWS, each


@each(ALL)
def test_a_call_is_what_each_operation_by_itself_gives(estimator):
    with jax.disable_jit():
        eager = estimator(ROWS)
    np.testing.assert_allclose(estimator(ROWS), eager, rtol=2e-6, atol=2e-6)


@each(ALL)
def test_derivatives_in_samples_and_hyperparameters(estimator):
    with jax.enable_x64(True):
        rows = np.random.default_rng(5).standard_cauchy(size=(11, 2))
        # Away from beta = 1, where one polynomial hands over to another.
        values, treedef = jax.tree.flatten(estimator)
        values = [jnp.float64(0.9 * x) for x in values]
        estimate = jax.jit(lambda values, rows: treedef.unflatten(values)(rows))
        args = values, jnp.asarray(rows)
        # The series' own error, 3e-7, has a derivative too, in beta.
        check_grads(estimate, args, order=1, atol=1e-6, rtol=1e-5)


def test_a_traced_divisor_of_a_million_is_covered():
    num_coordinates, divisor, num_rows = 256, 953_250, 7_654_597
    mean = jax.jit(lambda x, mask, n: Clipping(1.0)(x, mask, normalize_by=n))
    samples = np.ones((num_rows, num_coordinates), np.float32)
    mask = np.arange(num_rows) >= 7_645_072
    first = np.asarray(mean(samples, mask, divisor), np.float64)
    samples[0] = -1
    gap = first - np.asarray(mean(samples, mask, divisor), np.float64)
    stated = Clipping(1.0).sensitivity(divisor, num_coordinates)
    assert np.sqrt((gap**2).sum()) <= stated.l2


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
    exact = _smoothed._reference(np.sqrt(0.09 * beta * (1 + z) / (1 - z)), beta) / v
    tail = np.polynomial.chebyshev.chebfit(z, exact, 127)[64:]
    degree = _smoothed.degree_for(beta)
    with jax.enable_x64(True):
        series = np.asarray(_smoothed.series_coefficients(jnp.float64(beta), degree))

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


def test_error_is_certified_up_to_beta_of_one_per_cent_failure():
    seed = int.from_bytes(os.urandom(4))
    print(f"numpy.random.default_rng({seed})")
    betas = np.random.default_rng(seed).uniform(1e-3, 9.21, 20)
    assert max(certified_error(beta) for beta in [*betas, 1.0, 4.0, 9.21]) < 1e-6
