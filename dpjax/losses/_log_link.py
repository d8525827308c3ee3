"""Losses of counts and amounts: their mean is the exponential of the prediction."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import ArrayLike
from dpjax.losses._linear_loss import LinearLoss

_LEAST_MEAN = 1e-6  # in units of max_mean: below it, the loss of `poisson` is linear
# The ranges of `log_link`, in units of the typical size of the targets.
_MEANS, _LARGEST_TARGET = (1e-3, 30.0), 1_000.0


def poisson(max_mean: float, *, max_target: float | None = None) -> LinearLoss:
    """Makes the loss of Poisson regression with log link, for counts.

    With eta = <w, x>, the loss is e^eta - 1 - y eta, with its minimum over eta at
    log(y). Where e^eta is above max_mean or below a millionth of max_mean, the loss
    continues as a parabola and then linearly, so that it is convex with bounded
    curvature, at most c = max_mean; L = max_mean + max_target bounds the derivative.
    For records of a larger mean, the best prediction is a little above log(max_mean).

    Args:
        max_mean: the largest mean of a record, exposure included, positive, public.
        max_target: the largest count, public; a larger count is lowered to max_target,
            and a negative count raised to 0. By default m + 6 sqrt(m) + 12 for
            m = max_mean, which a Poisson count exceeds with a probability below e^-18
            (Bernstein).

    Example:
        >>> import jax.numpy as jnp
        >>> loss = poisson(max_mean=5.0)
        >>> round(float(loss(jnp.ones(1), (jnp.ones(1), 2.0))), 4)
        -0.2817
        >>> loss.derivative(jnp.log(jnp.array([2.0, 4.0])), jnp.full(2, 3.0)).round(4)
        Array([-1.,  1.], dtype=float32)

    Reference:
        P. McCullagh, J. A. Nelder, Generalized linear models (1989), chapter 6.
    """
    _validate.positive(max_mean=max_mean)
    if max_target is None:
        max_target = max_mean + 6 * math.sqrt(max_mean) + 12
    return LogLink(1.0, _LEAST_MEAN * max_mean, max_mean, max_target)


def gamma(*, min_mean: float, max_target: float) -> LinearLoss:
    """Makes the loss of gamma regression with log link, for positive amounts.

    With eta = <w, x>, the loss is eta + y (e^-eta - 1), with its minimum over eta at
    log(y). It does not depend on units: an error counts relative to the mean. Where
    e^eta is below min_mean or above max_target, the loss continues as a parabola and
    then linearly, so that its curvature is at most c = max_target / min_mean, and its
    slope L = c + 1. For targets near zero, the best prediction is just below
    log(min_mean).

    Args:
        min_mean: the smallest mean of a record, positive, public, in units of the
            target.
        max_target: the largest amount, public, at least min_mean; a larger amount is
            lowered to max_target, and a negative amount raised to 0.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = gamma(min_mean=100.0, max_target=5000.0)
        >>> loss.curvature_bound, loss.derivative_bound
        (50.0, 51.0)
        >>> loss.derivative(jnp.log(jnp.array([400.0])), jnp.array([300.0]))
        Array([0.25], dtype=float32)

    Reference:
        P. McCullagh, J. A. Nelder, Generalized linear models (1989), chapter 8.
    """
    return LogLink(2.0, min_mean, max_target, max_target)


def tweedie(
    power: float, *, min_mean: float, max_mean: float, max_target: float
) -> LinearLoss:
    """Makes the loss of Tweedie regression with log link, for amounts that may be zero.

    The variance is proportional to the mean to the power p. For p between 1 and 2, a
    target is a sum of a Poisson number of gamma amounts, such as the claims of a
    policy. With eta = <w, x> and q = 2 - p, the loss is

        (e^(q eta) - 1) / q + y (e^((1 - p) eta) - 1) / (p - 1),

    with its minimum over eta at log(y). Outside [log(min_mean), log(max_mean)] it
    continues as a parabola and then linearly, so that it is convex with bounded
    curvature, and the best prediction for targets of zero is finite. The curvature
    q e^(q eta) + (p - 1) y e^((1 - p) eta) is convex in eta, so c is its value for
    y = max_target at one of the ends.

    Args:
        power: p, strictly between 1 (as in `poisson`) and 2 (as in `gamma`).
        min_mean: as for `gamma`.
        max_mean: the largest mean of a record, at least min_mean, public.
        max_target: the largest amount, as for `gamma`.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = tweedie(1.5, min_mean=0.25, max_mean=4.0, max_target=16.0)
        >>> loss.curvature_bound, loss.derivative_bound
        (16.25, 32.5)
        >>> loss.derivative(jnp.log(jnp.array([4.0])), jnp.array([6.0]))
        Array([-1.], dtype=float32)

    Reference:
        B. Jørgensen, Exponential dispersion models (1987), for the distribution.
    """
    rule = "a number strictly between 1 (losses.poisson) and 2 (losses.gamma)"
    is_fine = isinstance(power, int | float) and 1 < power < 2
    _validate.require(is_fine, "power", power, rule)
    return LogLink(power, min_mean, max_mean, max_target)


def log_link(power: float) -> LinearLoss:
    """Makes a loss with log link, for targets in units of their typical size.

    This is the loss of `poisson`, `tweedie` or `gamma`, for power = 1, between 1 and 2,
    or 2, if only the typical size of targets above zero is known. That size is the
    unit: means are from 0.001 to 30 units, and targets are clipped to 1000 units.
    `dpjax train --loss poisson` and `dpjax.sklearn.DPPoissonRegressor` minimize it.
    """
    return LogLink(float(power), *_MEANS, _LARGEST_TARGET)


@dataclass(frozen=True)
class LogLink(LinearLoss):
    """The loss for a mean exp(prediction) and a variance proportional to mean^power.

    Means are from min_mean to max_mean, and targets are clipped to [0, max_target].
    """

    power: float
    min_mean: float
    max_mean: float
    max_target: float

    def __post_init__(self) -> None:
        """Checks the fields, and sets the bounds of derivative and curvature."""
        _validate.positive(min_mean=self.min_mean, max_target=self.max_target)
        _validate.positive(max_mean=self.max_mean)
        low, high, y, p = self.min_mean, self.max_mean, self.max_target, self.power
        _validate.require(low <= high, "min_mean", low, f"at most max_mean = {high}")
        # The derivative increases in eta and decreases in y: the ends bound it.
        slopes = (y * m ** (1 - p) + m ** (2 - p) for m in (low, high))
        bends = [
            (2 - p) * m ** (2 - p) + (p - 1) * y * m ** (1 - p) for m in (low, high)
        ]
        object.__setattr__(self, "derivative_bound", max(slopes))
        object.__setattr__(self, "curvature_bound", max(bends))
        object.__setattr__(self, "target_range", (0.0, y))
        object.__setattr__(self, "has_log_link", True)

    def value(self, predictions: jax.Array, targets: ArrayLike) -> jax.Array:
        targets = self._in_range(targets, predictions)
        inner = self._inner(predictions)
        values = _power(inner, 2 - self.power) - targets * _power(inner, 1 - self.power)
        beyond, curvature = self._beyond(predictions)
        tangent = self._derivative(predictions, targets) * (predictions - inner)
        return values + tangent - 0.5 * curvature * beyond**2

    def constant_prediction(self, mean: ArrayLike) -> jax.Array:
        return jnp.log(jnp.clip(jnp.asarray(mean), self.min_mean, self.max_mean))

    def mean_of(self, predictions: jax.Array) -> jax.Array:
        return jnp.exp(self._inner(predictions))

    def _derivative(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        inner = self._inner(predictions)
        risen, fallen = (2 - self.power) * inner, (1 - self.power) * inner
        beyond, curvature = self._beyond(predictions)
        return jnp.exp(risen) - targets * jnp.exp(fallen) + curvature * beyond

    def _curvature(self, predictions: jax.Array, targets: jax.Array) -> jax.Array:
        inner, p = self._inner(predictions), self.power
        rising = (2 - p) * jnp.exp((2 - p) * inner)
        falling = (p - 1) * targets * jnp.exp((1 - p) * inner)
        beyond, curvature = self._beyond(predictions)
        outside = jnp.where(predictions - inner == beyond, curvature, 0.0)
        return jnp.where(inner == predictions, rising + falling, outside)

    def _beyond(self, predictions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns each prediction's signed distance from a range, and a curvature.

        The range is [log min_mean, log max_mean]. Beyond it the loss continues as a
        parabola of this curvature. The distance is clipped to its length, enough for a
        derivative of zero at any target, so that the best prediction is finite.
        """
        low, high, y, p = self.min_mean, self.max_mean, self.max_target, self.power
        changes = 2 * low ** (2 - p), y * high ** (1 - p)
        bends = [min(m ** (2 - p), self.curvature_bound) for m in (low, high)]
        least, most = changes[0] / bends[0], changes[1] / bends[1]
        beyond = jnp.clip(predictions - self._inner(predictions), -least, most)
        return beyond, jnp.where(beyond < 0, *bends).astype(predictions.dtype)

    def _inner(self, predictions: jax.Array) -> jax.Array:
        low, high = math.log(self.min_mean), math.log(self.max_mean)
        return jnp.clip(predictions, low, high)


def _power(predictions: jax.Array, exponent: float) -> jax.Array:
    """Returns (mu^k - 1) / k for mu = exp(eta), and its limit eta for k = 0."""
    if exponent == 0:
        return predictions
    return jnp.expm1(exponent * predictions) / exponent
