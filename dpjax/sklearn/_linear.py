"""The common base of linear estimators: scales, a private fit, and the user's units."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dpjax import _keys, _validate
from dpjax._rounding import ROUNDED_UP
from dpjax._types import Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.losses import LinearLoss
from dpjax.sklearn import _tables
from dpjax.solvers import Execution, dp_linear_model
from dpjax.solvers.statistics._scales import Standard, release_scales, scales_share
from dpjax.tables import _progress
from dpjax.tables._summary import (
    Summary,
    errors_of_sums,
    interval_of,
    noise_shares,
    units_matrix,
)

# All fits share one callback, because JAX compiles a program for each callback.
_SHOWN = Execution(callback=_progress.on_step, callback_every=10)
_PART_DELTA = 1e-9  # the solver's own guarantee needs a delta, and is not reported
_LEAST_SHARE = 0.05  # smallest share of the budget for the scales of features
# The number of clones. An estimator and all its clones share one list.
_CLONES: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()

# scikit-learn requires constructors that store their arguments and do nothing else.
parameters = dataclass(kw_only=True, eq=False, repr=False)


@parameters
class PrivateEstimator(BaseEstimator):
    """Warns, for any data, when it is cloned a second time in a process."""

    epsilon: float = 1.0
    delta: float | None = None
    max_weight: float | None = None
    random_state: int | str | None = None
    fit_intercept = True  # for subclasses without the option

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_clone__(self):
        """Returns a clone; at the second, warns that each fit spends a new budget."""
        clone = super().__sklearn_clone__()
        number = _CLONES[clone] = _CLONES.setdefault(self, [0])
        number[0] += 1
        if number[0] == 2 and self.epsilon != math.inf:
            warnings.warn(
                f"{type(self).__name__} is cloned again, as cross_val_score, "
                "GridSearchCV and MultiOutputRegressor do. Every fit of a clone spends "
                "its budget anew: k fits on the same records cost up to k times "
                f"epsilon = {self.epsilon} and k times delta together.",
                stacklevel=2,
            )
        return clone


class LinearEstimator(PrivateEstimator):
    """Fits a model of features in any units; subclasses transform the targets."""

    feature_ranges: Any
    n_features_in_: int
    coef_: np.ndarray
    intercept_: Any
    privacy_: PrivacyGuarantee
    _categories: Mapping[Any, np.ndarray] = MappingProxyType({})
    mean_weight_: float | None = None  # None if it is not released
    intervals, monotone = False, None  # for subclasses without these options
    bse_ = None  # standard errors, or None without `intervals`
    _noise_shares = None  # the parts of their squares that noise makes

    @property
    def _factor(self) -> tuple[str | None, list[str]]:
        """The name of exponentials of coefficients, if they have one, and notes."""
        return None, []

    def _check(self, X: Any) -> tuple[np.ndarray, float, float, Key]:
        """Checks all parameters, and returns the features, epsilon, delta and a key."""
        for name in ("intervals", "fit_intercept"):
            value = getattr(self, name)
            _validate.require(isinstance(value, bool), name, value, "a bool")
        checked = _tables.checked(self, X, self._categories)
        _tables.ranges_of(self)
        return checked

    def _fit_scores(
        self,
        loss: LinearLoss,
        features: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray,
        offsets: np.ndarray | None = None,
        **release: Any,
    ) -> None:
        """Sets `coef_`, (d,) or (d, K), and `intercept_` by a private fit.

        `features` (n, d) and coefficients are in the user's units of features.
        `targets`, `weights` and `offsets` (n,) are as `loss` takes them: subclasses
        scale the target before the fit, and coefficients after it. `release` has the
        key and the noise multiplier. Standard errors are set as `bse_`.

        Privacy:
            As one Gaussian mechanism with the noise multiplier in `release`.
        """
        standard, options = self._prepared(
            features, weights, _tables.ranges_of(self), **release
        )
        rows = standard.of(features)
        if self.fit_intercept:
            rows = np.concatenate([rows, np.ones_like(rows[:, :1])], axis=1)
        solution = dp_linear_model(
            loss,
            (rows, targets.astype(np.float32)),
            intercept=-1 if self.fit_intercept else None,
            offsets=offsets,
            intervals=self.intervals,
            **options,
        )
        # <w, (x - center) / scale> + b is a linear function of x in the user's units.
        params = np.asarray(solution.params, np.float64)
        if not self.fit_intercept:  # then centers are zero
            params = np.concatenate([params, np.zeros_like(params[:1])])
        _tables.set_mean_weight(self, solution.stats, len(features))
        self._set_standard(standard)
        self.coef_ = (params[:-1].T / standard.scales).T
        self.intercept_ = params[-1] - standard.centers @ self.coef_
        errors, correlations = solution.standard_errors, solution.correlations
        self.bse_ = None
        if errors is not None and correlations is not None:
            size = len(errors)  # without an intercept the last row is left out
            matrix = units_matrix(standard.centers, standard.scales)[:size, :size]
            self.bse_ = errors_of_sums(matrix, errors, correlations)
            stats = solution.stats
            of_noise = stats["noise_errors"], stats["noise_correlations"]
            self._noise_shares = noise_shares(matrix, (errors, correlations), of_noise)

    def _prepared(
        self,
        features: np.ndarray,
        weights: np.ndarray,
        ranges: tuple[np.ndarray, np.ndarray],
        *,
        key: Key,
        noise_multiplier: float,
    ) -> tuple[Standard, dict[str, Any]]:
        """Returns centers and scales of columns (`Standard`), and a solver's options.

        So a solver gets features near 1. `ranges` has low and high ends of columns
        (d,), NaN where they are not public: only these columns need a release. The
        options are arguments of a solver such as `dp_linear_model`: key, weights, and
        the noise for the rest of the budget.

        Privacy:
            This release and a solver with these options are together as one Gaussian
            mechanism with the noise multiplier.
        """
        _progress.say("scales of columns")
        key, scale_key = _keys.split(key)
        low, high = ranges
        standard = Standard.of_ranges(low, high)
        if not self.fit_intercept:
            standard = standard._replace(centers=0 * low, scales=np.maximum(-low, high))
        is_open = np.isnan(low)
        share = scales_share(
            len(features), is_open.sum(), noise_multiplier, least=_LEAST_SHARE
        )
        released = Standard.unknown(is_open.sum())
        if share:
            released = release_scales(
                scale_key,
                features[:, is_open],
                noise_multiplier=noise_multiplier / math.sqrt(share),
                weights=weights,
                is_centered=self.fit_intercept,
            )
        for known, part in zip(standard, released, strict=True):
            known[is_open] = part
        _progress.say("training (compiling)")
        return standard, {
            "key": key,
            "noise_multiplier": ROUNDED_UP * noise_multiplier / math.sqrt(1 - share),
            "delta": _PART_DELTA,
            "weights": weights.astype(np.float32),
            "max_weight": _tables.largest_weight(self),
            "execution": _SHOWN if _progress.is_shown() else Execution(),
        }

    def _set_standard(self, standard: Standard) -> None:
        self._standard = standard
        self.feature_ranges_ = np.stack([standard.low, standard.high], axis=1)

    def _linear(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        features = self._standard.clipped(_tables.features_of(self, X, is_new=False))
        return features @ self.coef_.T + self.intercept_


@parameters
class WithIntervals(LinearEstimator):
    """Shows the coefficients of a fit with `intervals`, as statsmodels does."""

    intervals: bool = False
    fit_intercept: bool = True

    def conf_int(self, alpha=0.05):
        """Returns intervals for the numbers of `bse_`, in this order, shape (m, 2).

        They cost no privacy, and are infinite where no finite interval is valid.
        `dp_linear_model` says what they cover.

        Args:
            alpha: the probability that an interval misses its coefficient, in (0, 1).

        Raises:
            ValueError: If alpha is out of its range, or the fit had no intervals.
        """
        values, errors = self._estimates(alpha)
        return interval_of(values, errors, 1 - alpha).T

    def summary(self, alpha=0.05):
        """Returns a table of the coefficients, which prints and shows in notebooks.

        It has coefficients, standard errors and intervals in your units, with `alpha`
        as in `conf_int`. With a log or a logit link it also has the factor by which one
        unit of the feature multiplies the mean or the odds. The last column is the part
        of the squared width that the noise of privacy makes; sampling makes the rest.
        Lines below the table say what intervals cover, which columns have none and why,
        and state the guarantee.
        """
        values, errors = self._estimates(alpha)
        names = [x if isinstance(x, str) else f"x{x}" for x in _tables.names_in(self)]
        factor, notes = self._factor
        is_known = self._standard.is_known
        unknown = [name for name, x in zip(names, is_known, strict=True) if not x]
        if unknown:
            notes.append(
                f"The budget shows no scale of {', '.join(unknown)}: coefficients are "
                "for cells clipped to [-1, 1]."
            )
        title, names = type(self).__name__, [*names, "intercept"][: len(values)]
        text = str(self.privacy_)
        shown = text, factor, 1 - alpha, notes, self._noise_shares
        return Summary(title, names, values, errors, *shown)

    def _estimates(self, alpha):
        check_is_fitted(self)
        _validate.probability(alpha=alpha)
        if self.bse_ is None:
            raise ValueError("intervals must be True before fit, got False.")
        estimates = np.append(self.coef_, self.intercept_)
        return estimates[: len(self.bse_)], self.bse_
