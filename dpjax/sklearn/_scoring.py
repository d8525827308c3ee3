"""Private scores of a fitted estimator."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length

from dpjax import _validate, losses
from dpjax.accounting import PrivacyGuarantee
from dpjax.losses._log_link import LogLink
from dpjax.sklearn._labels import indices
from dpjax.sklearn._regressors import WithExposure, log_means
from dpjax.sklearn._tables import as_column, as_numbers, key_of, shares_of
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.tables import _progress, default_delta
from dpjax.tables.models._scores import PrivateScores, private_scores

_MOST_LOG_ODDS = 50.0
_LEAST_MEAN = 1e-9  # in units of the target
_ROUNDED = 1e-6  # tolerance for the rounding of logarithms of means


@_progress.shown("reading the records")
def score_privately(
    model: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    baseline: Any = None,
    scale: float | None = None,
    exposure: Any = None,
    random_state: int | str | None = None,
) -> tuple[PrivateScores, PrivacyGuarantee]:
    """Releases how good a fitted estimator is, on records that it has not seen.

    `models.private_scores` lists the scores, of clipped errors and losses. With a log
    link they include the share of means at an end of their range. Each has a 95 percent
    interval for sampling and noise, and stands next to a baseline's score.

    Args:
        model: a fitted estimator, or a pipeline that ends in a fitted estimator.
        X: shape (m, d), as for the model's `predict`.
        y: shape (m,), targets or labels. A missing target or label has no weight.
        epsilon: privacy parameter of the scores, positive. inf: no privacy.
        delta: privacy parameter of the scores, in (0, 1). None: m^-1.1.
        baseline: a fitted estimator of the same kind, with the same classes, such as
            `DPMeanRegressor`. None: the released shares of the labels for a classifier;
            zero for a regressor, or with a log link `scale` for the largest exposure.
        scale: for a regressor, as in `private_scores`. None: its `target_scale_`.
        exposure: shape (m,), as for `predict` of model and baseline. A record without
            exposure has no weight. None: all exposures are one.
        random_state: as for the estimators.

    Returns:
        The scores, with `measures` and `calibration`, and their guarantee.

    Raises:
        ValueError: If a shape or an argument is wrong, there is but one class, no scale
            is known, or exposure is given for a model fitted without one.

    Privacy:
        (epsilon, delta)-DP under replace-one for the records of X and y, for a model
        that predicts each record from it alone. m, the model and the baseline are
        public. If a public rule, such as the index, separated these records from the
        training records, fit and scores together cost the larger of the two budgets; on
        training records the budgets add up, and the scores are too optimistic.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPLinearRegression, score_privately
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(20_000, 1))
        >>> y = 300 + 100 * X[:, 0] + 10 * rng.standard_t(3, 20_000)
        >>> model = DPLinearRegression(random_state=0).fit(X[:15_000], y[:15_000])
        >>> scores, privacy = score_privately(
        ...     model, X[15_000:], y[15_000:], random_state=1)
        >>> print(scores.measures[0].name, scores.measures[0].model.value < 20)
        median of the absolute error True

    Reference:
        As for `dpjax.models.private_scores`. McSherry (2009), "Privacy integrated
        queries", Theorem 4, for parallel composition.
    """
    _validate.above_zero(epsilon=epsilon)  # inf: no privacy
    targets = as_column(y)
    check_consistent_length(X, targets)
    shares = None if exposure is None else _shares(exposure, model, baseline, targets)
    delta = default_delta(len(targets)) if delta is None else delta
    _validate.probability(delta=delta)
    key = key_of(random_state)
    own_scale = getattr(_last(model), "target_scale_", None)
    if is_classifier(model):
        unit, (loss, name, known, predict) = None, _of_classes(model, baseline, targets)
    else:
        unit = own_scale if scale is None else scale
        rule = "given in the units of y, because this model has no scale of its own"
        _validate.require(unit is not None, "scale", scale, rule)
        _validate.positive(scale=unit)
        unit = float(unit or 1.0)
        with np.errstate(over="ignore"):
            known = as_numbers("y", y, targets) / unit
        loss, name = _loss_of(model)
        predict = partial(_in_units, loss=loss, unit=unit, exposure=exposure)
    multiplier, privacy = one_gaussian(epsilon, delta, len(targets), num_releases=2)
    _progress.say("predictions")
    predictions = predict(model, X)
    beside = None if baseline is None else predict(baseline, X)
    offsets, is_end = 0.0, None
    if shares is not None:
        known = np.where(shares > 0, known, np.nan)
        offsets = np.log(np.maximum(shares, _LEAST_MEAN))
        beside = offsets if beside is None else beside
    if unit is not None and loss.has_log_link:
        low, high = log_means(loss, (own_scale or unit) / unit)
        rates = predictions - offsets
        is_end = (rates <= low + _ROUNDED) | (rates >= high - _ROUNDED)
    _progress.say("scores")
    scores = private_scores(
        predictions,
        known,
        beside=beside,
        loss=loss,
        loss_name=name,
        scale=unit,
        key=key,
        noise_multiplier=multiplier,
        is_end=is_end,
    )
    return scores, privacy


def _of_classes(
    model: Any, baseline: Any, targets: np.ndarray
) -> tuple[losses.LinearLoss, str, np.ndarray, Callable[[Any, Any], np.ndarray]]:
    """Returns, for `private_scores`, a classifier's loss, its name, labels, predictor.

    Labels (n,) are `targets` as -1, +1 (NaN: none), or for K > 2 as indices (-1: none).
    The predictor maps an estimator and X to log odds (n,) or log probabilities (n, K).
    A `baseline` of other classes raises `ValueError`.
    """
    classes = list(model.classes_)
    rule = "a classifier of two classes or more"
    _validate.require(len(classes) > 1, "model", classes, rule)
    if baseline is not None:
        known, rule = list(baseline.classes_), f"a classifier of the classes {classes}"
        _validate.require(known == classes, "baseline", known, rule)
    places = indices(targets, model.classes_)
    if len(classes) == 2:
        signs = np.array([-1.0, 1.0, np.nan])[places]
        return losses.logistic, "logistic", signs, _log_odds
    return losses.softmax(len(classes)), "logarithmic", places, _log_shares


def _loss_of(model: Any) -> tuple[losses.LinearLoss, str]:
    """Returns the loss by which an estimator's means are scored, and its name."""
    last = _last(model)
    loss = last._loss() if isinstance(last, WithExposure) else losses.squared
    if not isinstance(loss, LogLink):
        return losses.squared, "squared"
    return loss, {1.0: "poisson", 2.0: "gamma"}.get(loss.power, "tweedie")


def _shares(exposure: Any, model: Any, baseline: Any, y: np.ndarray) -> np.ndarray:
    """Requires models fitted with an exposure, and returns (n,) relative exposures."""
    rule = "an estimator that was fitted with an exposure, if exposure is given"
    for name, estimator in {"model": model, "baseline": baseline or model}.items():
        is_fine = getattr(_last(estimator), "_largest", None) is not None
        _validate.require(is_fine, name, estimator, rule)
    return shares_of(exposure, _last(model)._largest, y)


def _in_units(
    model: Any, X: Any, *, loss: losses.LinearLoss, unit: float, exposure: Any
) -> np.ndarray:
    options = {} if exposure is None else {"exposure": exposure}
    means = np.asarray(model.predict(X, **options), np.float64) / unit
    return means if loss is losses.squared else np.log(np.maximum(means, _LEAST_MEAN))


def _log_shares(model: Any, X: Any) -> np.ndarray:
    with np.errstate(divide="ignore"):
        shares = np.log(np.asarray(model.predict_proba(X), np.float64))
    return np.maximum(shares, -_MOST_LOG_ODDS)


def _log_odds(model: Any, X: Any) -> np.ndarray:
    share = np.asarray(model.predict_proba(X), np.float64)[:, 1]
    with np.errstate(divide="ignore"):
        odds = np.log(share) - np.log1p(-share)
    return np.clip(odds, -_MOST_LOG_ODDS, _MOST_LOG_ODDS)


def _last(model: Any) -> Any:
    return model[-1] if isinstance(model, Pipeline) else model
