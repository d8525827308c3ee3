"""Estimators for scikit-learn: fit a table, predict, and know what it has cost.

    from dpjax.sklearn import DPLogisticRegression

    model = DPLogisticRegression(epsilon=1.0, classes=["no", "yes"]).fit(X, y)
    model.predict(X_new), model.coef_, print(model.privacy_)

Columns may be in any units, such as dollars and years: their centres and scales are
bought with a part of the budget, but where `feature_ranges` and `target_range` state
public ones. Coefficients are in the user's units.

All that `fit` sets is (epsilon, delta)-DP under replace-one, for every input, n and the
number and names of columns being public. Values never raise: what a missing or an odd
cell, target or label counts as is said by each estimator. Shapes, types and parameters
raise `ValueError` before anything is computed; a cell that is no number, such as a
string, is a matter of types, and is best encoded before by a transformer of declared
categories.

Every fit spends its budget anew. `GridSearchCV` over k folds and m candidates fits
k·m + 1 times and costs as much, its choice and its scores, which are of private
records without noise, not counted: choose on public data. `score` is not private
either. A fixed `random_state` repeats the noise: two fits of one key differ by their
data alone, and whoever guesses it can subtract the noise. It is for tests.

A pipeline is private only as far as its other steps are: `StandardScaler` and an
`OneHotEncoder` without declared categories release what they learn. Where they see
but one record at a time, all is well:

Example:
    >>> import numpy as np
    >>> from sklearn.compose import make_column_transformer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from dpjax.sklearn import DPLogisticRegression
    >>> frame = np.array([["red", 3], ["blue", 40], ["red", 5]] * 500, object)
    >>> colours = OneHotEncoder(
    ...     categories=[["blue", "red"]], handle_unknown="ignore")
    >>> model = make_pipeline(
    ...     make_column_transformer((colours, [0]), remainder="passthrough"),
    ...     DPLogisticRegression(classes=["no", "yes"], random_state=0))
    >>> model.fit(frame, ["yes", "no", "yes"] * 500).predict(frame[:3])
    array(['yes', 'no', 'yes'], dtype='<U3')
"""

try:
    import sklearn  # noqa: F401
except ImportError as why:
    raise ImportError(
        'dpjax.sklearn needs scikit-learn: pip install "dpjax[sklearn]"'
    ) from why

from dpjax.sklearn._amounts import (
    DPGammaRegressor,
    DPPoissonRegressor,
    DPTweedieRegressor,
)
from dpjax.sklearn._classifier import DPLogisticRegression
from dpjax.sklearn._mean import DPMeanRegressor
from dpjax.sklearn._regressors import DPHuberRegressor, DPLinearRegression

__all__ = [
    "DPGammaRegressor",
    "DPHuberRegressor",
    "DPLinearRegression",
    "DPLogisticRegression",
    "DPMeanRegressor",
    "DPPoissonRegressor",
    "DPTweedieRegressor",
]
