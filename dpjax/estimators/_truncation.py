"""Truncation: samples beyond a threshold count as zero (paper 003, Algorithm 1)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax._tree import as_float, like, register
from dpjax._types import PyTree
from dpjax.estimators._threshold import ThresholdEstimator


@register("threshold")
@dataclass(frozen=True)
class Truncation(ThresholdEstimator):
    """The mean of x·1{|x| <= threshold}, coordinate by coordinate.

    Sensitivity: replacing one of n records moves a coordinate by at most
    2·threshold / n, because |influence| <= threshold; float32 rounding is added to it.

    Attributes:
        threshold: B in [1e-20, 1e30], in units of the samples; a pytree leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpjax.estimators import Truncation
        >>> print(Truncation(1.0)(jnp.array([0.5, 0.7, 1e30, jnp.nan])))
        0.3

    Reference:
        Tao, Wu, Cheng, Wang (2022), Algorithm 1, line 1.
    """

    def influence(self, sample: PyTree) -> PyTree:
        """Returns the sample with NaN and entries beyond the threshold set to zero."""

        def truncate(x: jax.Array) -> jax.Array:
            x = as_float(x)
            return jnp.where(jnp.abs(x) <= like(self.threshold, x), x, 0)

        return jax.tree.map(truncate, sample)

    @staticmethod
    def bias_factor(v: float) -> float:
        """E|x|·1{|x| > B} <= u / B^v, by Markov's inequality."""
        del v
        return 1.0
