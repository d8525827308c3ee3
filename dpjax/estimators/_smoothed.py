"""Smoothed truncation and clipping by the Catoni-Giulini influence, evaluated stably.

h_beta, which `SmoothedTruncation` defines, is odd, increasing and bounded by
`supremum(beta)`. The closed form in the literature subtracts a^3/6 from terms of the
same size, so from |a| = 1e3 on it exceeds any bound in float32. Two forms replace it.

* `series` (beta <= 10): h is analytic in 1/a at infinity, odd at zero, and entire in
  beta. So in v = a / sqrt(a^2 + c^2), c^2 = 0.09 beta, it is v·sqrt(beta) times a
  polynomial in v^2, of degree 10 to 16, with polynomials in beta as coefficients. The
  absolute error in float32 is below 5e-7 in measurements, and certified to be below
  1e-6 up to beta = 9.21 (the tests bound the polynomial's error and its rounding).
* `exact` (any beta): the closed form if it does not cancel, otherwise a quadrature.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._tree import as_float, like, register, within
from dpjax._types import PyTree, Scalar
from dpjax.estimators._clipping import NormEstimator
from dpjax.estimators._estimator import CoordinateEstimator, Estimator
from dpjax.estimators._truncation import deviations

# A polynomial of each degree has an error below 3e-7 up to this beta.
SERIES = {10: 1.0, 12: 4.0, 16: 10.0}
_BETA_DEGREE = 12
FAR = 1e6  # beyond, h differs from its limit by less than 1e-11
_TINY = 1e-6  # below, h_beta(a) is replaced by a, to which it is equal up to O(a^3)


@dataclass(frozen=True)
class SmoothedEstimator(Estimator):
    """An estimator that bounds numbers by scale·h_beta(x / scale)."""

    scale: Scalar
    beta: Scalar = 1.0
    _degree: int = field(default=0, repr=False, kw_only=True)  # 0: no series

    def __post_init__(self):
        _validate.within(SMALLEST * 100, LARGEST, scale=self.scale)
        _validate.within(1e-6, 1e6, beta=self.beta)
        degree = 0
        if _validate.is_concrete(self.beta):
            degree = degree_for(float(np.asarray(self.beta).max()))
        object.__setattr__(self, "_degree", degree)

    def influence(self, sample: PyTree) -> PyTree:
        return self.influence_fn()(sample)

    @property
    def limit(self) -> Scalar:
        return self.scale * supremum(self.beta)

    def _smoothed_fn(self) -> Callable[[jax.Array, Scalar], jax.Array]:
        """Returns (x, scale) -> scale·h_beta(x / scale), which clips x smoothly."""
        beta, largest, coefficients = self.beta, supremum(self.beta), None
        if self._degree:
            coefficients = series_coefficients(beta, self._degree)
            largest = jnp.where(jnp.isnan(coefficients[0]), jnp.nan, largest)

        def smoothed(x: jax.Array, scale: Scalar) -> jax.Array:
            """Returns scale·h_beta(x / scale), bounded as in `limit`; NaN is 0."""
            x = as_float(x)
            s, b = like(scale, x), like(beta, x)
            number = jnp.where(jnp.isnan(x), 0, x)
            # Clipped, because h is constant beyond FAR, and an infinity would make the
            # derivative NaN. `jnp.clip` stands here because XLA fuses it with the next
            # operations at any scale, but does not fuse `within` at scale 1.
            a = jnp.clip(number, -FAR * s, FAR * s) * (1 / s)
            if coefficients is None:
                h = exact(a, b)
            else:
                h = series(a, b, like(coefficients, x))
            # The sensitivity needs |h| <= supremum, which an approximation may exceed.
            return within(s * h, s * like(largest, x))

        return smoothed


@register("scale", "beta")
@dataclass(frozen=True)
class SmoothedTruncation(SmoothedEstimator, CoordinateEstimator):
    """The mean of scale·h_beta(x / scale), coordinate by coordinate.

    h_beta(a) = E phi(a (1 + Z/sqrt(beta))), Z standard normal, phi(x) = x - x^3/6 up to
    |x| = sqrt(2) and ±2 sqrt(2)/3 beyond. It is close to a near zero, and bounded by
    (2 sqrt(2)/3) erf(sqrt(beta/2)) everywhere. The float32 error is below 1e-6 scale.

    Sensitivity: replacing one of n records moves a coordinate by at most
    2·scale·M / n with M = (2 sqrt(2)/3) erf(sqrt(beta/2)), because every influence is
    clipped to ±scale·M; rounding is added to it.

    Attributes:
        scale: s in [1e-18, 1e30], in units of the samples; a pytree leaf.
        beta: the precision of the smoothing, in [1e-6, 1e6]; a pytree leaf. Up to
            beta = 10 the influence costs a short polynomial; for larger beta, or if
            beta is traced at construction, about forty times as much. Change beta with
            `dataclasses.replace`: if `jax.tree.map` raises it beyond the range of its
            polynomial, estimates are NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedTruncation
        >>> estimate = SmoothedTruncation(100.0)(jnp.array([1.0, 2.0, 3.0, 1e30]))
        >>> print(f"{estimate:.3f}")
        17.591

    Reference:
        Catoni, Giulini (2017); Wang, Xiao, Devadas, Xu (2020), Algorithm 4, eq. (6) to
        (10); the sharp range and the stable evaluation are derived in
        `dpjax.estimators._smoothed`.
    """

    def influence_fn(self) -> Callable[[PyTree], PyTree]:
        smoothed = self._smoothed_fn()
        return lambda sample: jax.tree.map(lambda x: smoothed(x, self.scale), sample)

    @classmethod
    def for_moment(
        cls,
        moment_bound: float,
        *,
        num_samples: int,
        num_coordinates: int = 1,
        num_steps: int = 1,
        epsilon: float,
        delta: float,
        failure_prob: float = 0.01,
        beta: float | None = None,
    ) -> "SmoothedTruncation":
        """Returns the estimator with the scale that theory chooses for E x^2 <= v.

        With E x^2 <= v and probability 1 - failure_prob, the error of one coordinate is
        at most v (1 + 1/beta) / (2 s) + (s/n) (beta/2 + log(2dT/zeta) + noise). The
        scale s minimizes this bound.

        `Truncation.for_moment` explains the arguments: v is moment_bound, in units of
        the samples squared, and zeta is failure_prob; beta is 2 log(1 / failure_prob)
        by default, as in the paper.

        Example:
            >>> estimator = SmoothedTruncation.for_moment(
            ...     1.0, num_samples=100_000, num_coordinates=10, num_steps=50,
            ...     epsilon=1.0, delta=1e-5)
            >>> print(f"{estimator.scale:.2f} {estimator.beta:.2f}")
            8.49 9.21

        Reference:
            Wang, Xiao, Devadas, Xu (2020), Lemma 3 and Algorithm 4, line 1; the bound
            with noise follows Catoni, Giulini (2017) and a union over d·T.
        """
        _validate.positive(moment_bound=moment_bound)
        log_failure, noise = deviations(
            num_samples, num_coordinates, num_steps, epsilon, delta, failure_prob
        )
        if beta is None:
            beta = 2 * math.log(1 / failure_prob)
        _validate.positive(beta=beta)
        cost = beta / 2 + log_failure + supremum(beta) * noise
        gain = num_samples * moment_bound * (1 + 1 / beta) / 2
        return cls(math.sqrt(gain / cost), beta)


@register("scale", "beta")
@dataclass(frozen=True)
class SmoothedClipping(SmoothedEstimator, NormEstimator):
    """The mean of scale·h_beta(||g|| / scale)·g / ||g||, the norm over all leaves.

    The norm is bounded as by `SmoothedTruncation`: small norms hardly change, and large
    norms approach scale·M. The influence is a smooth function of the sample, while the
    influence of `Clipping` has a kink.

    Sensitivity: replacing one of n records moves the mean by at most
    2·scale·M / n in the l2 norm, and in any coordinate, before rounding, with
    M = (2 sqrt(2)/3) erf(sqrt(beta/2)), because h_beta is at most M.

    Attributes:
        scale: s in [1e-12, 1e30], in units of the samples; a pytree leaf.
        beta: the precision of the smoothing, in [1e-6, 1e6], as for
            `SmoothedTruncation`; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import SmoothedClipping
        >>> print(SmoothedClipping(1.0)(jnp.array([[3e9, 4e9], [0.0, 0.0]])).round(3))
        [0.193 0.257]

    Reference:
        Catoni, Giulini (2017), for h_beta, also of norms of vectors.
    """

    size_name: ClassVar[str] = "scale"

    def __post_init__(self):
        SmoothedEstimator.__post_init__(self)
        NormEstimator.__post_init__(self)

    def weight_fn(self) -> Callable[[jax.Array], jax.Array]:
        smoothed = self._smoothed_fn()

        def weight(norm: jax.Array) -> jax.Array:
            least = jnp.maximum(norm, _TINY)
            return jnp.where(norm < _TINY, 1, smoothed(least, 1.0) / least)

        return weight


def supremum(beta: Scalar) -> Scalar:
    """Returns sup h_beta = (2 sqrt(2)/3) erf(sqrt(beta/2)), to bound an influence."""
    # h(a) = E phi(aW), W = 1 + Z/sqrt(beta), increases: h' = E[phi'(aW) W] >= 0, since
    # phi' is even and W has more mass at w than at -w. phi(aW) tends to ±2 sqrt(2)/3.
    if isinstance(beta, float | int):
        return 2 * math.sqrt(2) / 3 * math.erf(math.sqrt(beta / 2))
    return 2 * math.sqrt(2) / 3 * jax.scipy.special.erf(jnp.sqrt(beta / 2))


def degree_for(beta: float) -> int:
    """Returns the degree of the series for beta; 0 if only `exact` is accurate."""
    return next((degree for degree, most in SERIES.items() if beta <= most), 0)


def series_coefficients(beta: Scalar, degree: int) -> jax.Array:
    """Returns the coefficients, lowest first, of a polynomial for fast `series`."""
    # It gives the influence h_beta(a), in z = 2 v^2 - 1, v^2 = a^2 / (a^2 + 0.09 beta).
    # If beta > SERIES[degree], as a traced beta may be, coefficients are NaN.
    beta = jnp.asarray(beta)
    beta = jnp.where(beta <= SERIES[degree], beta, jnp.nan)
    table = jnp.asarray(_series_table(degree), beta.dtype)
    chebyshev = [jnp.ones_like(beta), 2 * beta / SERIES[degree] - 1]
    while len(chebyshev) < len(table):
        chebyshev.append(2 * chebyshev[1] * chebyshev[-1] - chebyshev[-2])
    return (jnp.stack(chebyshev)[:, None] * table).sum(axis=0) * jnp.sqrt(beta)


def series(a: jax.Array, beta: jax.Array, coefficients: jax.Array) -> jax.Array:
    """Returns the Catoni-Giulini influence h_beta(a), |a| <= 1e6, by a polynomial."""
    # `coefficients` are those of `series_coefficients` for beta.
    c2 = 0.09 * beta
    inverse = 1 / (a * a + c2)
    z = 1 - 2 * c2 * inverse  # = 2 v^2 - 1
    # Horner's scheme for even and for odd terms: two chains of half the length are
    # faster, because latency dominates.
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
    """Returns the Catoni-Giulini influence h_beta(a), |a| <= 1e6, for any beta."""
    beta = jnp.asarray(beta).astype(a.dtype)
    size = jnp.abs(a)
    is_tiny = size < 1e-6
    is_inner = (size <= 2.0) & (size <= 1.5 * jnp.sqrt(beta))
    # Each form gets arguments of its own range only: else `where` would pass NaN from
    # the gradient of the form that is not chosen.
    inner = jnp.where(is_inner & ~is_tiny, size, 0.5 * jnp.minimum(1, jnp.sqrt(beta)))
    outer = jnp.where(is_inner, 2.0, size)
    value = jnp.where(is_inner, _closed_form(inner, beta), _quadrature(outer, beta))
    return jnp.where(is_tiny, a, jnp.sign(a) * value)


def _closed_form(a: jax.Array, beta: jax.Array) -> jax.Array:
    """Returns the influence h_beta(a) = E phi(a + b Z), Z normal, for small a."""
    # E phi(X) for X ~ N(a, b^2) is E p(X), with p(x) = x - x^3/6, plus the mean of
    # phi - p beyond ±sqrt(2), where phi(sqrt(2) + u) - p(sqrt(2) + u) is u^2/sqrt(2) +
    # u^3/6. This equals (9)-(10) and (36)-(41) of Wang, Xiao, Devadas, Xu (2020).
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
    """Returns the influence h_beta(a) where `_closed_form` cancels, for large a."""
    # E phi(X) = int_0^sqrt(2) phi'(x) (P(X > x) - P(X < -x)) dx: all weights are
    # positive, so nothing cancels, and the formula holds at a = infinity.
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
    """Returns an array (13, degree + 1), by which `series_coefficients` works fast."""
    # Column j has coefficient j of the polynomial, as a Chebyshev series in beta.
    count = _BETA_DEGREE + 1
    x = np.cos((np.arange(count) + 0.5) * np.pi / count)
    z = np.cos((np.arange(64) + 0.5) * np.pi / 64)
    # Fit the polynomial at Chebyshev nodes of beta, then interpolate in beta.
    rows = []
    for beta in (x + 1) / 2 * SERIES[degree]:
        a = np.sqrt(0.09 * beta * (1 + z) / (1 - z))
        value = _reference(a, beta) / np.sqrt(beta * (1 + z) / 2)
        fit = np.polynomial.Chebyshev.fit(z, value, degree, domain=[-1, 1])
        rows.append(fit.convert(kind=np.polynomial.Polynomial).coef)
    return np.linalg.solve(np.polynomial.chebyshev.chebvander(x, _BETA_DEGREE), rows)


def _reference(a: np.ndarray, beta: float) -> np.ndarray:
    """Returns h_beta(a) for a > 0 by quadrature in float64, to fit `series` to it."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    end = np.minimum(math.sqrt(2), a * (1 + 9 / math.sqrt(beta)))[:, None]
    x = end * (nodes + 1) / 2
    root = math.sqrt(beta / 2)
    shift = root * x / a[:, None]
    difference = special.erf(root - shift) + special.erf(root + shift)
    return (end / 2 * weights * (1 - x * x / 2) * difference / 2).sum(axis=1)
