"""Regression of counts and amounts: the mean is the exponential of a linear score."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from dpjax import _validate, losses
from dpjax.losses import LinearLoss
from dpjax.sklearn import _tables
from dpjax.sklearn._linear import WithIntervals, parameters
from dpjax.sklearn._regressors import Regressor, Unit


def log_means(loss: LinearLoss, scale: float) -> np.ndarray:
    """Returns log(mean * scale) for the smallest and the largest mean of `loss`."""
    ends = loss.mean_of(jnp.array([-jnp.inf, jnp.inf]))
    return np.log(np.asarray(ends, np.float64) * scale)


@parameters
class WithExposure(Regressor):
    """Fits means that are proportional to an exposure, such as a policy's years."""

    max_exposure: float | None = None

    def _check(self, X):
        if self.max_exposure is not None:
            _validate.positive(max_exposure=self.max_exposure)
        return super()._check(X)

    def fit(self, X, y, sample_weight=None, exposure=None):
        """Fits the model and spends the budget, as `DPLinearRegression.fit` does.

        Args:
            X: shape (n, d), numbers in any units.
            y: shape (n,), numbers in any unit.
            sample_weight: shape (n,), the weights of the records, or None.
            exposure: shape (n,), such as the years that a policy was in force; means
                are proportional to it. It is clipped to `max_exposure`. A record with
                an exposure that is zero, negative or NaN has no weight. None: all
                exposures are one.
        """
        return self._fit(X, y, sample_weight, exposure)

    def _means(self, logarithms: np.ndarray, unit: Unit, exposure: Any) -> np.ndarray:
        """Returns means for `exposure`, from log means for the largest exposure."""
        low, high = log_means(self._loss(), unit.scale)
        means = np.exp(np.clip(logarithms, low, high))
        if exposure is None:
            return means / (self._largest or 1.0)
        if self._largest is None:
            raise ValueError("exposure must be left out, because the fit had none.")
        return means * _tables.shares_of(exposure, self._largest, means)


class LogLinkRegressor(WithExposure):
    """Fits means exp(coef·x + intercept); a subclass defines the loss and its name."""

    _loss_name: ClassVar[str]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    @property
    def _factor(self) -> tuple[str, list[str]]:
        return "factor", ["Coefficients are of the logarithm of the mean."]

    def _set_unit(self, unit: Unit) -> None:
        self._unit = unit
        # Coefficients were fitted for the largest exposure.
        self.intercept_ = float(self.intercept_) + math.log(unit.scale)
        self.intercept_ -= math.log(self._largest or 1.0)

    def predict(self, X, exposure=None):
        """Returns means in the unit of the target, shape (n,).

        For the largest exposure they lie between a thousandth of `target_scale_` and
        thirty times it. `exposure` is as for `fit`, but exposures that are negative or
        NaN count as zero.
        """
        logarithms = self._linear(X) + math.log(self._largest or 1.0)
        return self._means(logarithms, self._unit, exposure)


@parameters
class DPPoissonRegressor(WithIntervals, LogLinkRegressor):
    """Private Poisson regression with log link, for counts and rates.

    Args:
        target_range: the public range (low, high) of the target, with high above zero.
            With an exposure, high is per unit of exposure, and targets are clipped to
            [0, high * max_exposure]. None: the scale of the target is released.
        max_exposure: the largest exposure, public. Larger exposures count as this one,
            and `target_scale_` is the scale of the target for it. None: `fit` takes no
            exposures.

    Attributes:
        coef_: the change of the logarithm of the mean if a feature grows by one unit,
            shape (d,).
        intercept_: the logarithm of the mean if all features are zero, in the unit of
            the target and for an exposure of one.

    Other parameters and attributes are as for `DPLinearRegression`.

    Privacy:
        As for `DPLinearRegression`, but negative targets count as zero, and targets
        above a thousand units as a thousand units. The logarithm of the exposure is an
        offset of `dp_linear_model`, and its guarantee holds for every offset.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPPoissonRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(18, 80, (20_000, 1))
        >>> y = rng.poisson(np.exp(0.02 * X[:, 0] - 1))
        >>> model = DPPoissonRegressor(random_state=0).fit(X, y)
        >>> print(model.coef_.round(2), model.predict([[50]]).round(1))
        [0.02] [1.]

    Reference:
        As for `dpjax.losses.poisson` and `dpjax.solvers.dp_linear_model`.
    """

    _loss_name = "poisson"

    def _loss(self) -> LinearLoss:
        return losses.log_link(1.0)


@parameters
class DPGammaRegressor(WithIntervals, LogLinkRegressor):
    """Private gamma regression with log link, for positive amounts.

    Errors are measured in proportion to the mean. Parameters, attributes and privacy
    are as for `DPPoissonRegressor`.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPGammaRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(18, 80, (20_000, 1))
        >>> y = rng.gamma(2.0, 1_000 * np.exp(0.02 * X[:, 0]) / 2)
        >>> model = DPGammaRegressor(random_state=0).fit(X, y)  # doctest: +SKIP
        >>> print(model.predict([[50]]).round(-3))  # doctest: +SKIP
        [3000.]

    Reference:
        As for `dpjax.losses.gamma` and `dpjax.solvers.dp_linear_model`.
    """

    _loss_name = "gamma"

    def _loss(self) -> LinearLoss:
        return losses.log_link(2.0)


@parameters
class DPTweedieRegressor(LogLinkRegressor):
    """Private Tweedie regression with log link, for amounts that may be zero.

    Args:
        power: the exponent p in (1, 2): the variance is proportional to the mean to the
            power p. The ends 1 and 2 are `DPPoissonRegressor` and `DPGammaRegressor`.

    Everything else, privacy included, is as for `DPPoissonRegressor`, but there are no
    intervals.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPTweedieRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(18, 80, (40_000, 1))
        >>> claims = rng.poisson(np.exp(0.02 * X[:, 0] - 2))
        >>> y = rng.gamma(2.0 * claims + 1e-9, 500.0)
        >>> model = DPTweedieRegressor(random_state=0).fit(X, y)  # doctest: +SKIP
        >>> print(model.predict([[50]]).round(-2))  # doctest: +SKIP
        [400.]

    Reference:
        As for `dpjax.losses.tweedie` and `dpjax.solvers.dp_linear_model`.
    """

    _loss_name = "tweedie"
    power: float = 1.5

    def _loss(self) -> LinearLoss:
        is_fine = 1 < self.power < 2
        _validate.require(is_fine, "power", self.power, "strictly between 1 and 2")
        return losses.log_link(self.power)
