"""The base of smoothed influences: scale·h_beta(x / scale), and its range."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import _validate
from dpjax._rounding import LARGEST, SMALLEST
from dpjax._tree import as_float, like, within
from dpjax._types import PyTree, Scalar
from dpjax.estimators import _catoni
from dpjax.estimators._estimator import Estimator


@dataclass(frozen=True)
class SmoothedEstimator(Estimator):
    """An estimator that bounds numbers by scale·h_beta(x / scale)."""

    scale: Scalar
    beta: Scalar = 1.0
    _degree: int = field(default=0, repr=False, kw_only=True)  # 0: no series

    def __post_init__(self):
        # The influence is clipped to its range, so no approximation can exceed it.
        _validate.within(SMALLEST * 100, LARGEST, scale=self.scale)
        _validate.within(1e-6, 1e6, beta=self.beta)
        degree = 0
        if _validate.is_concrete(self.beta):
            degree = _catoni.degree_for(float(np.asarray(self.beta).max()))
        object.__setattr__(self, "_degree", degree)

    def influence(self, sample: PyTree) -> PyTree:
        return self.influence_fn()(sample)

    @property
    def limit(self) -> Scalar:
        """scale·(2 sqrt(2)/3) erf(sqrt(beta/2))."""
        return self.scale * _catoni.supremum(self.beta)


def prepared(scale: Scalar, beta: Scalar, degree: int) -> tuple[Any, ...]:
    """Returns the arguments of `smoothed`, by a series of that degree; 0 for none."""
    supremum = _catoni.supremum(beta)
    if not degree:
        return scale, beta, supremum, None
    coefficients = _catoni.series_coefficients(beta, degree)
    supremum = jnp.where(jnp.isnan(coefficients[0]), jnp.nan, supremum)
    return scale, beta, supremum, coefficients


def smoothed(
    x: jax.Array,
    scale: Scalar,
    beta: Scalar,
    supremum: Scalar,
    coefficients: jax.Array | None,
) -> jax.Array:
    """Returns scale·h_beta(x / scale) by coordinate; NaN gives zero."""
    x = as_float(x)
    s, b = like(scale, x), like(beta, x)
    known = jnp.where(jnp.isnan(x), 0, x)
    # Beyond FAR h is constant; an infinity would make the derivative NaN. XLA fuses a
    # clip with the operations after it at any scale, but `within` not at scale 1.
    a = jnp.clip(known, -_catoni.FAR * s, _catoni.FAR * s) * (1 / s)
    if coefficients is None:
        h = _catoni.exact(a, b)
    else:
        h = _catoni.series(a, b, like(coefficients, x))
    return within(s * h, s * like(supremum, x))
