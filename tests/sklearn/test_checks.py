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


def expected_failures(estimator):
    return {}


def checks(estimators):
    """`parametrize_with_checks`, whose iterator pytest deprecates, with a list."""
    mark = parametrize_with_checks(
        estimators, expected_failed_checks=expected_failures
    ).mark
    names, cases = mark.args
    return pytest.mark.parametrize(names, list(cases), **mark.kwargs)


# Most of the time goes into compiling the solver, anew for each shape of the checks.
@pytest.mark.slow
@checks(LINEAR)
def test_linear_models(estimator, check):
    check(estimator)


@checks([DPMeanRegressor()])
def test_mean(estimator, check):
    check(estimator)
