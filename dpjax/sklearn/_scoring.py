"""How good an estimator is, said privately."""

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_consistent_length, column_or_1d

from dpjax import _validate, losses
from dpjax._default_delta import default_delta
from dpjax.accounting import PrivacyGuarantee, gaussian_event, noise_multiplier
from dpjax.models import PrivateScores, private_scores
from dpjax.sklearn._tables import key_of

_MOST_LOG_ODDS = 50.0


def score_privately(
    model: Any,
    X: Any,
    y: Any,
    *,
    epsilon: float = 1.0,
    delta: float | None = None,
    baseline: Any = None,
    scale: float | None = None,
    random_state: int | None = None,
) -> tuple[PrivateScores, PrivacyGuarantee]:
    """Releases how good a fitted estimator is, on records that it has not seen.

    For a classifier of two classes accuracy, area under the ROC curve, calibration and
    logistic loss; for a regressor the median and the 90th percentile of the absolute
    error, and half the squared error, held within bounds: each with 95 per cent bounds
    for sampling and noise, and beside a baseline.

    Args:
        model: a fitted estimator, or a pipeline that ends in one. With
            `predict_proba` and `classes_` it is a classifier.
        X: shape (m, d), as of its `predict`.
        y: shape (m,), the true targets or labels.
        epsilon: privacy of what is released, positive.
        delta: privacy of what is released, in (0, 1). None: m^-1.1.
        baseline: a fitted estimator of the same kind, such as `DPMeanRegressor`. None:
            predictions of zero, or of a half for each class.
        scale: of a regressor, about the size of an error, public: errors from a
            hundredth to a hundred scales are told apart. None: the `target_scale_` of
            the model.
        random_state: as of the estimators.

    Returns:
        The scores, a `dpjax.models.PrivateScores`, and their guarantee.

    Raises:
        ValueError: where a shape or an argument is wrong, there are not two classes, or
            no scale is known; never because of the values of X and y.

    Privacy:
        (epsilon, delta)-DP under replace-one for the records of X and y, m public, the
        model and the baseline being public. Where they were trained on other records,
        which a public rule set apart before anything was looked at, such as by index,
        the training and this take the larger of both budgets, not the sum (parallel
        composition). On records of the training the budgets add up, and the scores are
        too good.

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
        >>> print(privacy.epsilon)
        1.0

    Reference:
        As for `dpjax.models.private_scores`. McSherry (2009), "Privacy integrated
        queries", Theorem 4, for parallel composition.
    """
    _validate.positive(epsilon=epsilon)
    targets = column_or_1d(y)
    check_consistent_length(X, targets)
    num_samples = len(targets)
    delta = default_delta(num_samples) if delta is None else delta
    _validate.probability(delta=delta)
    key = key_of(random_state)
    if is_classifier(model):
        classes = model.classes_
        _validate.require(
            len(classes) == 2, "model", list(classes), "a classifier of two classes"
        )
        signs = np.where(targets == classes[1], 1.0, -1.0)
        predicted = _log_odds(model, X)
        beside = np.zeros(num_samples) if baseline is None else _log_odds(baseline, X)
        loss, name, unit = losses.logistic, "logistic", None
    else:
        unit = _scale_of(model) if scale is None else scale
        _validate.require(unit is not None, "scale", scale, "given, for this model")
        _validate.positive(scale=unit)
        unit = float(unit or 1.0)
        signs = np.nan_to_num(targets.astype(np.float64) / unit)
        predicted = np.asarray(model.predict(X), np.float64) / unit
        beside = np.zeros(num_samples)
        if baseline is not None:
            beside = np.asarray(baseline.predict(X), np.float64) / unit
        loss, name = losses.squared, "squared"
    multiplier = noise_multiplier(epsilon, delta, num_steps=2)
    scores = private_scores(
        np.stack([predicted, beside]),
        signs,
        loss=loss,
        loss_name=name,
        scale=unit,
        key=key,
        noise_multiplier=multiplier,
    )
    event = gaussian_event(multiplier, num_steps=2)
    return scores, PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples
    )


def _log_odds(model: Any, X: Any) -> np.ndarray:
    share = np.asarray(model.predict_proba(X), np.float64)[:, 1]
    with np.errstate(divide="ignore"):
        odds = np.log(share) - np.log1p(-share)
    return np.clip(odds, -_MOST_LOG_ODDS, _MOST_LOG_ODDS)


def _scale_of(model: Any) -> float | None:
    last = model[-1] if isinstance(model, Pipeline) else model
    return getattr(last, "target_scale_", None)
