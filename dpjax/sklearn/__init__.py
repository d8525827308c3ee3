"""Private estimators for scikit-learn.

    from dpjax.sklearn import DPLogisticRegression

    model = DPLogisticRegression(epsilon=1.0, classes=["no", "yes"]).fit(X, y)
    model.predict(X_new), model.coef_, print(model.privacy_)

Columns may be in any units, such as dollars and years. Their centers and scales are
released with a share of the privacy budget, unless `feature_ranges` and `target_range`
give public ranges. Coefficients are in your units. With `intervals=True` linear models
have standard errors, and `summary()`.

All attributes that `fit` sets are (epsilon, delta)-DP under replace-one, for every
input. The number of records and the number and names of columns are public. Values
never raise errors: each estimator says how it counts a missing or odd cell. Wrong
shapes, types and parameters raise `ValueError` before anything is computed. Encode text
first, by a transformer with declared categories.

Every fit spends its budget again. `GridSearchCV` over k folds and m candidates costs
k·m + 1 fits, and its choice and scores are not private at all: choose on public data.
`score` is not private either; use `score_privately`, on records that were not trained
on. An int as `random_state` is for tests only: whoever guesses it can subtract the
noise.

A pipeline is private only if its other steps are. `StandardScaler`, and `OneHotEncoder`
without declared categories, release statistics without noise; steps that use one record
at a time are fine. `docs/coming_from.md` has an example.
"""

from importlib.util import find_spec

if find_spec("sklearn") is None:
    raise ImportError('dpjax.sklearn needs scikit-learn: pip install "dpjax[sklearn]"')

from dpjax.sklearn._additive import DPAdditiveClassifier, DPAdditiveRegressor
from dpjax.sklearn._classifier import DPLogisticRegression
from dpjax.sklearn._regressors import (
    DPGammaRegressor,
    DPHuberRegressor,
    DPLinearRegression,
    DPMeanRegressor,
    DPPoissonRegressor,
    DPTweedieRegressor,
)
from dpjax.sklearn._scoring import score_privately

__all__ = [
    "DPAdditiveClassifier",
    "DPAdditiveRegressor",
    "DPGammaRegressor",
    "DPHuberRegressor",
    "DPLinearRegression",
    "DPLogisticRegression",
    "DPMeanRegressor",
    "DPPoissonRegressor",
    "DPTweedieRegressor",
    "score_privately",
]
