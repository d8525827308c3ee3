"""The error of the series of the Catoni-Giulini influence, certified."""

import os

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.estimators import _smoothed


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
    with jax.enable_x64(True):
        series = _smoothed.series_coefficients(
            jnp.float64(beta), _smoothed.degree_for(beta)
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


def test_error_is_certified_up_to_beta_of_one_per_cent_failure():
    seed = int.from_bytes(os.urandom(4))
    print(f"numpy.random.default_rng({seed})")
    betas = np.random.default_rng(seed).uniform(1e-3, 9.21, 20)
    assert max(certified_error(beta) for beta in [*betas, 1.0, 4.0, 9.21]) < 1e-6
