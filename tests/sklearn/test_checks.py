"""scikit-learn's own checks of an estimator: none is switched off by a tag."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpjax.sklearn import (
    DPGammaRegressor,
    DPHuberRegressor,
    DPLinearRegression,
    DPLogisticRegression,
    DPMeanRegressor,
    DPPoissonRegressor,
    DPTweedieRegressor,
)

LINEAR = [
    DPLinearRegression(),
    DPHuberRegressor(),
    DPPoissonRegressor(),
    DPGammaRegressor(),
    DPTweedieRegressor(),
    DPLogisticRegression(),
]
# Most of the time goes into compiling the solver, anew for each shape of the checks.
@pytest.mark.slow
@parametrize_with_checks(LINEAR)
def test_linear_models(estimator, check):
    check(estimator)


@parametrize_with_checks([DPMeanRegressor()])
def test_mean(estimator, check):
    check(estimator)
