"""Estimators for scikit-learn: fit a table, predict, and know what it has cost.

    from dpjax.sklearn import DPLogisticRegression

    model = DPLogisticRegression(epsilon=1.0, classes=["no", "yes"]).fit(X, y)
    model.predict(X_new), model.coef_, print(model.privacy_)

Columns may be in any units, such as dollars and years: their centres and scales are
released with a share of the budget, unless `feature_ranges` and `target_range` state
public ones. Coefficients are in the user's units. With `intervals=True` those of linear
models have standard errors: `bse_`, `conf_int()`, and `summary()`, a table.

All that `fit` sets is (epsilon, delta)-DP under replace-one, for every input, n and the
number and names of columns being public. Values never raise: what a missing or an odd
cell, target or label counts as is said by each estimator. Shapes, types and parameters
raise `ValueError` before anything is computed; a cell that is no number, such as a
string, is a matter of types, and is best encoded before by a transformer of declared
categories.

Every fit spends its budget anew. `GridSearchCV` over k folds and m candidates fits
k·m + 1 times and costs as much, its choice and its scores, which are of private
records without noise, not counted: choose on public data. A second clone of an
estimator warns of that, once. `score` is not private
either; `score_privately` is, on records that the training has not seen. A fixed
`random_state` repeats the noise: two fits of one key differ by their data alone, and
whoever guesses it can subtract the noise. It is for tests.

A pipeline is private only as far as its other steps are: `StandardScaler`, or an
`OneHotEncoder` without declared categories, releases what it learns. Where steps see
one record at a time, all is well. On Adult, who earns more than 50,000 dollars a year:

Example:
    >>> import csv, gzip
    >>> from importlib.resources import files
    >>> import numpy as np
    >>> from sklearn.compose import make_column_transformer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from dpjax.sklearn import DPLogisticRegression
    >>> packed = files("dpjax.datasets").joinpath("data", "adult.data.gz").read_bytes()
    >>> lines = gzip.decompress(packed).decode().splitlines()
    >>> table = np.array(
    ...     [row for row in csv.reader(lines, skipinitialspace=True) if row], object)
    >>> income, age, education, gain, hours, relationship = 14, 0, 4, 10, 12, 7
    >>> relationships = ["Wife", "Own-child", "Husband", "Not-in-family"]
    >>> model = make_pipeline(
    ...     make_column_transformer(
    ...         ("passthrough", [age, education, gain, hours]),
    ...         (OneHotEncoder(categories=[relationships], handle_unknown="ignore"),
    ...          [relationship])),
    ...     DPLogisticRegression(classes=["<=50K", ">50K"], random_state=0))
    >>> model = model.fit(table, table[:, income])  # doctest: +SKIP
    >>> print(f"{model.score(table, table[:, income]):.2f}")  # doctest: +SKIP
    0.84
    >>> print(model[-1].privacy_)  # doctest: +SKIP
    Replacing any one of the 32,561 records changes the probability of any event to at
    most e^1 = 2.72 times what it was, plus 1.08651e-05.
"""

from importlib.util import find_spec

if find_spec("sklearn") is None:
    raise ImportError('dpjax.sklearn needs scikit-learn: pip install "dpjax[sklearn]"')

from dpjax.sklearn._additive import DPAdditiveClassifier, DPAdditiveRegressor
from dpjax.sklearn._amounts import (
    DPGammaRegressor,
    DPPoissonRegressor,
    DPTweedieRegressor,
)
from dpjax.sklearn._classifier import DPLogisticRegression
from dpjax.sklearn._mean import DPMeanRegressor
from dpjax.sklearn._regressors import DPHuberRegressor, DPLinearRegression
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
