"""The private mean, and regression with squared, Huber and log-link losses."""

import math
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpjax import _keys, _validate, losses
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.estimators import SmoothedTruncation
from dpjax.losses import LinearLoss
from dpjax.losses._residual_losses import Huber
from dpjax.sklearn import _linear, _tables
from dpjax.solvers.statistics._noisy_mean import (
    BESIDE_WEIGHT,
    WEIGHTED,
    noisy_mean,
    one_gaussian,
)
from dpjax.solvers.statistics._scales import release_scales, scales_share
from dpjax.tables import _progress

_LEAST_SHARE = 0.01  # smallest share of the budget for the target's unit
_LARGEST = 1e18  # bound of targets in their unit, so that float32 can square them
# The truncation of the mean needs a guess at E z^2 of targets in their unit. It is 0.7
# for a normal law, and larger for heavy tails.
_MOMENT = 4.0
# The noisy mean weight is a divisor, so it is raised to so many standard deviations of
# its noise, but at most to this share of the largest weight.
_CLEAR_WEIGHT, _LEAST_WEIGHT = 3.0, 0.05
_BEYOND = 1e40  # above `_LARGEST` in any released unit, and no division overflows


class Unit(NamedTuple):
    """The center and the scale of targets, with the share of the budget they cost."""

    center: float
    scale: float
    share: float


def in_unit(
    model: Any,
    loss: LinearLoss,
    targets: np.ndarray,
    weights: np.ndarray,
    offsets: np.ndarray | None = None,
    *,
    key: Key,
    noise_multiplier: float,
) -> tuple[np.ndarray, Unit, Key]:
    """Returns (targets - center) / scale, (n,), the `Unit`, and a key for the fit.

    Center and scale are from the model's public `target_range`, or else released with a
    share of the budget, `Unit.share`, so that solvers get numbers near 1. A missing
    target becomes 0. With a log link targets are amounts of at least 0, the center is
    0, and `offsets` are log exposures.
    """
    _progress.say("unit of the target")
    key, own_key = _keys.split(key)
    low, high, unit = -_BEYOND, _BEYOND, Unit(0.0, 1.0, 0.0)
    if is_amount := loss.has_log_link:
        targets = np.maximum(np.nan_to_num(targets, nan=0.0), 0.0)
    if model.target_range is not None:
        low, high = ends = _tables.interval("target_range", model.target_range)
        unit = Unit((low + high) / 2, (high - low) / 2, 0.0)
        if not model.fit_intercept:
            unit = Unit(0.0, max(-low, high), 0.0)
        if is_amount:
            rule = "a pair (low, high) with high above zero"
            _validate.require(high > 0, "target_range", ends, rule)
            low = max(low, 0.0)
            if offsets is not None:
                low, high = 0.0, high * model.max_exposure
            unit = Unit(0.0, high, 0.0)
    elif share := scales_share(len(targets), 1, noise_multiplier, least=_LEAST_SHARE):
        rates = targets
        if is_amount and offsets is not None:
            # The unit is the scale of rates, not of amounts, which would bound the
            # means of records with unusually large exposures.
            with np.errstate(over="ignore"):  # a warning would tell of a record
                rates = targets / np.exp(offsets)
        scales = release_scales(
            own_key,
            rates[:, None],
            noise_multiplier=noise_multiplier / math.sqrt(share),
            weights=weights,
            is_centered=model.fit_intercept and not is_amount,
        )
        unit = Unit(float(scales.centers[0]), float(scales.scales[0]), share)
    targets = np.clip(targets, low, high)
    if is_amount:
        return np.minimum(targets / unit.scale, loss.target_range[1]), unit, key
    known = np.nan_to_num((targets - unit.center) / unit.scale, nan=0.0)
    return np.clip(known, -_LARGEST, _LARGEST), unit, key


def targets_of(
    model: Any, y: Any, sample_weight: Any, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (n,) targets in float64, and weights, zero where a target is missing."""
    targets = _tables.as_numbers("y", y, _tables.column_of(model, y, features))
    weights = _tables.weights_of(model, sample_weight, targets)
    return targets, np.where(np.isnan(targets), 0.0, weights)


@_linear.parameters
class Regressor(RegressorMixin, _linear.LinearEstimator):
    """Predicts numbers; a subclass defines the loss."""

    feature_ranges: Any = None
    target_range: tuple[float, float] | None = None
    max_exposure = None  # for subclasses without exposures

    def _loss(self) -> LinearLoss:
        return losses.squared

    def fit(self, X, y, sample_weight=None):
        """Fits the model and spends the budget.

        Args:
            X: shape (n, d), numbers in any units.
            y: shape (n,), numbers in any unit. A record with a missing target, NaN or
                None, has no weight.
            sample_weight: shape (n,), the weights of the records, or None.

        Returns:
            The estimator.

        Raises:
            ValueError: If a shape, a type or a parameter is wrong.
        """
        return self._fit(X, y, sample_weight)

    @_progress.shown("reading the records")
    def _fit(self, X: Any, y: Any, sample_weight: Any, exposure: Any = None) -> Self:
        """Releases the target's scale, and fits a model with the rest of the budget."""
        # `fit` of each regressor calls it; arguments are as for `WithExposure.fit`.
        features, epsilon, delta, key = self._check(X)
        loss = self._loss()
        if exposure is not None and not loss.has_log_link:
            raise ValueError("exposure must be None but for poisson, gamma, tweedie.")
        targets, weights = targets_of(self, y, sample_weight, features)
        self._largest, offsets = None, None
        if exposure is not None:
            shares = _tables.shares_of(exposure, self.max_exposure, weights)
            # A record without an exposure has no weight.
            weights = np.where(shares > 0, weights, 0.0)
            offsets = np.log(np.where(shares > 0, shares, 1.0))
            self._largest = float(self.max_exposure or 1.0)
        total, privacy = one_gaussian(epsilon, delta, len(features))
        known = loss, targets, weights, offsets
        targets, unit, key = in_unit(self, *known, key=key, noise_multiplier=total)
        if loss.has_log_link and not self.fit_intercept:
            # Means are exp(coef·x) for an exposure of one, in the user's unit.
            level = math.log(self._largest or 1.0) - math.log(unit.scale)
            offsets = np.full(len(targets), level) + (0 if offsets is None else offsets)
        # The model gets the share of the budget that the unit of the target leaves.
        self._fit_scores(
            loss,
            features,
            targets,
            weights,
            offsets,
            key=key,
            noise_multiplier=total / math.sqrt(1 - unit.share),
        )
        self._set_unit(unit)
        self.target_scale_ = unit.scale
        self.privacy_ = privacy
        return self

    def _set_unit(self, unit: Unit) -> None:
        """Converts coefficients from `unit` to the user's unit of the target."""
        self.coef_ = self.coef_ * unit.scale
        self.intercept_ = float(self.intercept_) * unit.scale + unit.center
        if self.bse_ is not None:
            self.bse_ = self.bse_ * unit.scale

    def predict(self, X):
        """Returns predictions in the unit of the target, shape (n,)."""
        return self._linear(X)


@_linear.parameters
class DPLinearRegression(_linear.WithIntervals, Regressor):
    """Private least squares regression on columns in any units.

    Args:
        epsilon: privacy parameter of everything that `fit` sets, positive. inf: there
            is no privacy, and noise is lost in the rounding of float32.
        delta: privacy parameter of everything that `fit` sets, in (0, 1). None: n^-1.1.
        feature_ranges: public ranges: a pair (low, high) of numbers for all columns, or
            of arrays (d,); an array (d, 2), where rows of NaN are not public; or a
            mapping to pairs from the names of columns, or from their indices if they
            have no names. Centers and scales of the other columns are released.
        target_range: the public range (low, high) of the target. None: its center and
            scale are released.
        max_weight: the largest sample weight, public. Weights are clipped to it, and a
            NaN counts as zero. None: `fit` takes no sample weights.
        random_state: None takes a key from the operating system, "chacha20" a key of
            256 bits (`mechanisms.secret_key`), and an int, for tests, a fixed key.
        intervals: whether to release standard errors, which cost a share of the budget.
        fit_intercept: whether the prediction where all features are zero is fitted.
            False: it is zero, and so are all centers.

    Attributes:
        coef_: coefficients in units of the target per unit of a feature, shape (d,).
        intercept_: the prediction where all features are zero.
        bse_: standard errors of `coef_` and, last, of a fitted `intercept_`, shape
            (d + 1,) or (d,). They are infinite where no finite interval is valid. None
            without intervals.
        mean_weight_: the private mean of weight / max_weight; without weights, the
            share of records with a target. None with a Huber loss, with an exposure or
            without an intercept.
        privacy_: the `PrivacyGuarantee` of one fit.
        feature_ranges_: the ranges, shape (d, 2), to which cells are clipped: as given,
            or a hundred scales around a released center. [-1, 1] if noise hides a
            scale.
        target_scale_: the unit of the target in the fit, public or released.
        n_features_in_: d. If all columns are named by strings, feature_names_in_ has
            the names.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: centers, scales and
        `solvers.dp_linear_model` share one Gaussian mechanism. NaN counts as the center
        of its column, and an infinity as the end of the range. A record with a target
        of NaN has no weight (`docs/privacy/proofs/linear.md`, 8.3).

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPLinearRegression
        >>> rng = np.random.default_rng(0)
        >>> X = np.c_[rng.normal(45, 15, 20_000), rng.lognormal(10, 1, 20_000)]
        >>> y = 300 * X[:, 0] + 0.1 * X[:, 1] + 1_000 * rng.standard_t(3, 20_000)
        >>> model = DPLinearRegression(random_state=0).fit(X, y)
        >>> print(f"{model.coef_[0]:.0f}, {model.coef_[1]:.2f}")
        303, 0.10

    Reference:
        As for `dpjax.solvers.dp_linear_model`.
    """


@_linear.parameters
class DPHuberRegressor(_linear.WithIntervals, Regressor):
    """Private regression with the Huber loss, for targets with heavy tails.

    Args:
        threshold: the size of a residual from which the loss is linear, in units of
            the released scale of the residuals.

    Everything else, privacy and source included, is as for `DPLinearRegression`.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPHuberRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 1))
        >>> y = 2_000 + 50 * X[:, 0] + 20 * rng.standard_t(1.5, 20_000)
        >>> model = DPHuberRegressor(random_state=0).fit(X, y)  # doctest: +SKIP
        >>> print(model.coef_.round(-1), round(model.intercept_, -1))  # doctest: +SKIP
        [50.] 2000.0
    """

    threshold: float = 1.345

    def _loss(self) -> LinearLoss:
        _validate.positive(threshold=self.threshold)
        return Huber(float(self.threshold), in_scales=True)


@_linear.parameters
class DPMeanRegressor(RegressorMixin, _linear.PrivateEstimator):
    """The private mean of the target: a baseline for other models.

    Only the shape of X and the names of its columns are read. Parameters and other
    attributes are as for `DPLinearRegression`.

    Attributes:
        mean_: the mean of the target, weighted if there are weights, in its unit.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: the target's unit and a
        mean of smoothly truncated targets share one Gaussian mechanism. With a
        target_range, targets are clipped to it and their mean gets the whole budget.
        Missing targets have no weight.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPMeanRegressor
        >>> y = 30_000 + 10_000 * np.random.default_rng(0).standard_t(3, 20_000)
        >>> model = DPMeanRegressor(random_state=0).fit(np.ones((20_000, 1)), y)
        >>> print(model.predict([[1.0]]).round(-3))
        [30000.]

    Reference:
        As for `dpjax.solvers.dp_mean`.
    """

    target_range: tuple[float, float] | None = None

    @_progress.shown("reading the records")
    def fit(self, X, y, sample_weight=None):
        """Releases the mean of y; arguments are as for `DPLinearRegression.fit`."""
        features, epsilon, delta, key = _tables.checked(self, X)
        targets, weights = targets_of(self, y, sample_weight, features)
        total, privacy = one_gaussian(epsilon, delta, len(features))
        known = losses.squared, targets, weights
        targets, unit, key = in_unit(self, *known, key=key, noise_multiplier=total)
        _progress.say("mean of the target")
        limit, bounded = 1.0, targets.astype(np.float32)
        # A public range has bounded the targets already.
        if self.target_range is None:
            truncation = SmoothedTruncation.for_moment(
                _MOMENT,
                num_samples=len(targets),
                epsilon=min(epsilon, 1e20) * math.sqrt(1 - unit.share),
                delta=delta,
            )
            limit = float(truncation.limit)
            bounded = np.asarray(truncation.influence(bounded)) / np.float32(limit)
        # One mechanism releases the sums of weighted targets and of weights.
        shares = (weights / _tables.largest_weight(self)).astype(np.float32)
        numbers = BESIDE_WEIGHT * shares * np.clip(bounded, -1.0, 1.0)
        samples = np.stack([numbers, shares], axis=1)
        multiplier = ROUNDED_UP * total / math.sqrt(1 - unit.share)
        number, share = np.asarray(noisy_mean(WEIGHTED, samples, multiplier, key))
        noise = multiplier * float(WEIGHTED.sensitivity(len(samples), 2).l2)
        released = {"mean_weight": np.clip(share, 0.0, 1.0), "constant": 0.0}
        released |= {"noise_multiplier": multiplier, "shares": {"mean": 1.0}}
        _tables.set_mean_weight(self, released, len(samples))
        share = max(float(share), min(_CLEAR_WEIGHT * noise, _LEAST_WEIGHT))
        mean = np.clip(limit * float(number) / BESIDE_WEIGHT / share, -limit, limit)
        self.mean_ = float(mean) * unit.scale + unit.center
        self.target_scale_ = unit.scale
        self.privacy_ = privacy
        return self

    def predict(self, X):
        """Returns `mean_` for each record of X, shape (n,)."""
        check_is_fitted(self)
        return np.full(len(_tables.features_of(self, X, is_new=False)), self.mean_)


def log_means(loss: LinearLoss, scale: float) -> np.ndarray:
    """Returns log(mean * scale) for the smallest and the largest mean of `loss`."""
    ends = loss.mean_of(jnp.array([-jnp.inf, jnp.inf]))
    return np.log(np.asarray(ends, np.float64) * scale)


@_linear.parameters
class WithExposure(Regressor):
    """Fits means that are proportional to an exposure, such as a policy's years."""

    max_exposure: float | None = None

    def _check(self, X):
        if self.max_exposure is not None:
            _validate.positive(max_exposure=self.max_exposure)
        return super()._check(X)

    def fit(self, X, y, sample_weight=None, exposure=None):
        """Fits the model and spends the budget, as `DPLinearRegression.fit` does.

        Means are proportional to `exposure`, shape (n,), such as the years that a
        policy was in force. It is clipped to `max_exposure`. A record with an exposure
        that is zero, negative or NaN has no weight. None: all exposures are one.
        """
        return self._fit(X, y, sample_weight, exposure)

    def _means(self, logarithms: np.ndarray, exposure: Any) -> np.ndarray:
        """Returns means (n,) in the target's unit, from log means and exposures."""
        # For `predict`. `logarithms` are for the largest exposure; no `exposure` is 1.
        low, high = log_means(self._loss(), self.target_scale_)
        means = np.exp(np.clip(logarithms, low, high))
        if exposure is None:
            return means / (self._largest or 1.0)
        if self._largest is None:
            raise ValueError("exposure must be None: the model was fitted without it.")
        return means * _tables.shares_of(exposure, self._largest, means)


class LogLinkRegressor(WithExposure):
    """Fits means exp(coef·x + intercept); a subclass defines the loss."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    @property
    def _factor(self) -> tuple[str, list[str]]:
        return "factor", ["Coefficients are of the logarithm of the mean."]

    def _set_unit(self, unit: Unit) -> None:
        # Coefficients were fitted for the largest exposure.
        level = math.log(unit.scale) - math.log(self._largest or 1.0)
        self.intercept_ = float(self.intercept_) + (level if self.fit_intercept else 0)

    def predict(self, X, exposure=None):
        """Returns means in the unit of the target, shape (n,).

        For the largest exposure they lie between a thousandth of `target_scale_` and
        thirty times it. `exposure` is as for `fit`, but exposures that are negative or
        NaN count as zero.
        """
        return self._means(self._linear(X) + math.log(self._largest or 1.0), exposure)


@_linear.parameters
class DPPoissonRegressor(_linear.WithIntervals, LogLinkRegressor):
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
            the target and for an exposure of one; 0 unless it is fitted.

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

    def _loss(self) -> LinearLoss:
        return losses.log_link(1.0)


@_linear.parameters
class DPGammaRegressor(_linear.WithIntervals, LogLinkRegressor):
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

    def _loss(self) -> LinearLoss:
        return losses.log_link(2.0)


@_linear.parameters
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

    power: float = 1.5
    fit_intercept: bool = True

    def _loss(self) -> LinearLoss:
        is_fine = 1 < self.power < 2
        _validate.require(is_fine, "power", self.power, "strictly between 1 and 2")
        return losses.log_link(self.power)
