"""The Catoni-Giulini influence h_beta, evaluated stably.

h_beta(a) = E phi(a (1 + Z / sqrt(beta))), Z standard normal, phi(x) = x - x^3/6 up to
|x| = sqrt(2) and ±2 sqrt(2)/3 beyond. It is odd, increasing and bounded by
`supremum(beta)`. The closed form in the literature subtracts a^3/6 from terms of the
same size: in float32 it exceeds any bound from |a| = 1e3 on. Two forms replace it.

* `series` (beta <= 10): h is analytic in 1/a at infinity, odd at zero, and entire in
  beta. So in v = a / sqrt(a^2 + c^2), c^2 = 0.09 beta, it is v·sqrt(beta) times a
  polynomial in v^2, of degree 10 to 16, whose coefficients are polynomials in beta. The
  absolute error in float32 is below 5e-7 in measurements, and certified to be below
  1e-6 up to beta = 9.21 (the tests bound the polynomial's error and its rounding).
* `exact` (any beta): the closed form if it does not cancel, otherwise a quadrature.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpjax._types import Scalar

# The polynomial's degree, and the largest beta that it serves with error below 3e-7.
SERIES = {10: 1.0, 12: 4.0, 16: 10.0}
_BETA_DEGREE = 12
FAR = 1e6  # h differs from its limit by less than 1e-11 beyond


def supremum(beta: Scalar) -> Scalar:
    """Returns sup h_beta = (2 sqrt(2)/3) erf(sqrt(beta/2)), its limit at infinity.

    h' = E[phi'(aW) W] >= 0 with W = 1 + Z/sqrt(beta), since phi' is even and W has more
    mass at w than at -w; and phi(aW) tends to ±2 sqrt(2)/3 as a grows.
    """
    if isinstance(beta, float | int):
        return 2 * math.sqrt(2) / 3 * math.erf(math.sqrt(beta / 2))
    return 2 * math.sqrt(2) / 3 * jax.scipy.special.erf(jnp.sqrt(beta / 2))


def degree_for(beta: float) -> int:
    """Returns the degree of the series for beta; 0 if only `exact` is accurate."""
    return next((degree for degree, most in SERIES.items() if beta <= most), 0)


def series_coefficients(beta: Scalar, degree: int) -> jax.Array:
    """Returns the series' polynomial in 2 v^2 - 1, lowest term first.

    NaN if beta > SERIES[degree], because a traced beta may differ from the one for
    which the degree was chosen.
    """
    beta = jnp.asarray(beta)
    beta = jnp.where(beta <= SERIES[degree], beta, jnp.nan)
    table = jnp.asarray(_series_table(degree), beta.dtype)
    chebyshev = [jnp.ones_like(beta), 2 * beta / SERIES[degree] - 1]
    while len(chebyshev) < len(table):
        chebyshev.append(2 * chebyshev[1] * chebyshev[-1] - chebyshev[-2])
    return (jnp.stack(chebyshev)[:, None] * table).sum(axis=0) * jnp.sqrt(beta)


def series(a: jax.Array, beta: jax.Array, coefficients: jax.Array) -> jax.Array:
    """Returns h_beta(a) by `series_coefficients`, for |a| <= FAR."""
    c2 = 0.09 * beta
    inverse = 1 / (a * a + c2)
    z = 1 - 2 * c2 * inverse  # = 2 v^2 - 1
    # Even and odd terms apart: two chains of half the length, because latency
    # dominates.
    square = z * z
    even, odd = coefficients[-1], coefficients[-2]
    if len(coefficients) % 2 == 0:
        even, odd = odd, even
    for i in reversed(range(len(coefficients) - 2)):
        if i % 2 == 0:
            even = even * square + coefficients[i]
        else:
            odd = odd * square + coefficients[i]
    return a * jnp.sqrt(inverse) * (even + odd * z)


def exact(a: jax.Array, beta: Scalar) -> jax.Array:
    """Returns h_beta(a) for |a| <= FAR and any beta > 0, at forty times the cost."""
    beta = jnp.asarray(beta).astype(a.dtype)
    size = jnp.abs(a)
    is_tiny = size < 1e-6
    is_inner = (size <= 2.0) & (size <= 1.5 * jnp.sqrt(beta))
    # Each form gets only its own range, so that gradients have no NaN of the other.
    inner = jnp.where(is_inner & ~is_tiny, size, 0.5 * jnp.minimum(1, jnp.sqrt(beta)))
    outer = jnp.where(is_inner, 2.0, size)
    value = jnp.where(is_inner, _closed_form(inner, beta), _quadrature(outer, beta))
    return jnp.where(is_tiny, a, jnp.sign(a) * value)


def _closed_form(a: jax.Array, beta: jax.Array) -> jax.Array:
    # E phi(X), X ~ N(a, b^2): E[X - X^3/6], and what phi adds to it beyond ±sqrt(2),
    # where phi(sqrt(2) + u) - p(sqrt(2) + u) = u^2/sqrt(2) + u^3/6. This equals
    # (9)-(10) and (36)-(41) of Wang, Xiao, Devadas, Xu (2020), with fewer terms.
    b = a / jnp.sqrt(beta)

    def beyond(a: jax.Array) -> jax.Array:
        k = jnp.maximum((a - math.sqrt(2)) / b, -30)
        cdf = jax.scipy.special.ndtr(k)
        pdf = jnp.exp(-k * k / 2) / math.sqrt(2 * math.pi)
        second = b**2 * ((1 + k * k) * cdf + k * pdf)  # E (X - sqrt(2))_+^2
        third = b**3 * ((k**3 + 3 * k) * cdf + (k * k + 2) * pdf)
        return second / math.sqrt(2) + third / 6

    return a * (1 - b * b / 2) - a**3 / 6 + beyond(a) - beyond(-a)


def _quadrature(a: jax.Array, beta: jax.Array) -> jax.Array:
    # E phi(X) = int_0^sqrt(2) phi'(x) (P(X > x) - P(X < -x)) dx: positive weights, no
    # cancellation, and fine at a = infinity.
    nodes, weights = np.polynomial.legendre.leggauss(32)
    x = math.sqrt(2) * (nodes + 1) / 2
    weights = math.sqrt(2) / 2 * weights * (1 - x * x / 2)
    x, weights = jnp.asarray(x, a.dtype), jnp.asarray(weights, a.dtype)
    root = jnp.sqrt(beta / 2)

    def add(i, total):
        shift = root * x[i] / a
        difference = jax.lax.erf(root - shift) + jax.lax.erf(root + shift)
        return total + weights[i] / 2 * difference

    return jax.lax.fori_loop(0, len(weights), jax.checkpoint(add), jnp.zeros_like(a))


@functools.cache
def _series_table(degree: int) -> np.ndarray:
    """Chebyshev coefficients in beta of the polynomial's coefficients in 2 v^2 - 1."""
    count = _BETA_DEGREE + 1
    x = np.cos((np.arange(count) + 0.5) * np.pi / count)
    z = np.cos((np.arange(64) + 0.5) * np.pi / 64)
    rows = []
    for beta in (x + 1) / 2 * SERIES[degree]:
        a = np.sqrt(0.09 * beta * (1 + z) / (1 - z))
        value = _reference(a, beta) / np.sqrt(beta * (1 + z) / 2)
        fit = np.polynomial.Chebyshev.fit(z, value, degree, domain=[-1, 1])
        rows.append(fit.convert(kind=np.polynomial.Polynomial).coef)
    return np.linalg.solve(np.polynomial.chebyshev.chebvander(x, _BETA_DEGREE), rows)


def _reference(a: np.ndarray, beta: float) -> np.ndarray:
    """h_beta(a) for a > 0 in float64: the quadrature over the support."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    end = np.minimum(math.sqrt(2), a * (1 + 9 / math.sqrt(beta)))[:, None]
    x = end * (nodes + 1) / 2
    root = math.sqrt(beta / 2)
    shift = root * x / a[:, None]
    difference = special.erf(root - shift) + special.erf(root + shift)
    return (end / 2 * weights * (1 - x * x / 2) * difference / 2).sum(axis=1)
