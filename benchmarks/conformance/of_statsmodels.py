"""Adapters for statsmodels' tests: its published figures, by fits at epsilon 1e6."""

from functools import partial

import numpy as np
import scipy.stats

from benchmarks.conformance.adapter import USED, absent, stands_for
from dpjax import sklearn

_LIKE = 0.01  # figures agree to this share of the largest of their kind


@stands_for("numpy.testing._private.utils.assert_almost_equal")
@stands_for("numpy.testing._private.utils.assert_allclose")
def assert_alike(actual, desired, *args, **options):
    most = _LIKE * np.max(np.abs(desired))
    np.testing.assert_allclose(actual, desired, rtol=0, atol=most)


class _Fit:
    """The figures of a fit, whose last column is the constant."""

    def __init__(self, endog, exog):
        self.exog, self.endog = np.asarray(exog), np.asarray(endog)

    def fit(self, **options):
        given = {"epsilon": 1e6, "delta": 1e-6, "random_state": 0}
        self.fitted = self.of(**given).fit(self.exog[:, :-1], self.endog)
        return self

    def __getattribute__(self, name):
        USED.add("statsmodels")
        return super().__getattribute__(name)

    def __getattr__(self, name):
        absent(f"`{name}`")

    model = property(lambda self: self)
    llf = property(lambda self: self.law(self.endog, self.predict()).sum())
    resid = property(lambda self: self.endog - self.predict())

    @property
    def params(self):
        return np.append(self.fitted.coef_, self.fitted.intercept_)

    def predict(self, params=None, which="mean"):
        is_linear = which == "linear"
        return self.exog @ self.params if is_linear else self.means(self.exog[:, :-1])


@stands_for("statsmodels.discrete.discrete_model.Poisson")
class _Poisson(_Fit):
    of = staticmethod(sklearn.DPPoissonRegressor)
    law = staticmethod(scipy.stats.poisson.logpmf)

    def means(self, rows):
        return self.fitted.predict(rows)


@stands_for("statsmodels.discrete.discrete_model.Logit")
class _Logit(_Fit):
    of = partial(sklearn.DPLogisticRegression, classes=[0.0, 1.0])
    law = staticmethod(scipy.stats.bernoulli.logpmf)

    def means(self, rows):
        return self.fitted.predict_proba(rows)[:, 1]


@stands_for("statsmodels.discrete.discrete_model.MNLogit")
class _MNLogit(_Fit):
    law = staticmethod(lambda y, means: np.log(means[np.arange(len(y)), y.astype(int)]))

    def of(self, **given):
        return sklearn.DPLogisticRegression(classes=list(range(7)), **given)

    def means(self, rows):
        return self.fitted.predict_proba(rows)

    @property
    def params(self):
        params = np.vstack([self.fitted.coef_.T, self.fitted.intercept_])
        return params[:, 1:] - params[:, :1]  # the first class is the base
