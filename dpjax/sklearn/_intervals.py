"""Standard errors, intervals and the table of the estimators that have them."""

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpjax import _validate
from dpjax.sklearn._linear import LinearEstimator, parameters
from dpjax.tables._summary import Summary, interval_of


@parameters
class WithIntervals(LinearEstimator):
    """Shows the coefficients of a fit with `intervals`, as statsmodels does."""

    intervals: bool = False

    def _check(self, X):
        _validate.require(
            isinstance(self.intervals, bool), "intervals", self.intervals, "a bool"
        )
        return super()._check(X)

    def conf_int(self, alpha=0.05):
        """Returns an interval for each of `coef_`, and then for `intercept_`.

        It costs no privacy. `dp_linear_model` says what it covers.

        Args:
            alpha: the probability that one misses its coefficient, in (0, 1).

        Returns:
            Lower and upper ends, shape (d + 1, 2), infinite where no finite one is
            valid.

        Raises:
            ValueError: If alpha is out of its range, or the fit had no intervals.
        """
        values, errors = self._estimates(alpha)
        return interval_of(values, errors, 1 - alpha).T

    def summary(self, alpha=0.05):
        """Returns a table of the coefficients, which prints and shows in notebooks.

        It has coefficients, standard errors and intervals in your units. With a log or
        a logit link it also has the factor by which one unit of the feature multiplies
        the mean or the odds. Lines below say what intervals cover, which columns have
        none and why, and the guarantee.

        Args:
            alpha: as for `conf_int`.

        Raises:
            ValueError: as `conf_int`.
        """
        values, errors = self._estimates(alpha)
        names = list(getattr(self, "feature_names_in_", []))
        names = names or [f"x{i}" for i in range(self.n_features_in_)]
        factor, notes = self._factor
        is_known = self._standard.is_known
        unknown = [str(name) for name, x in zip(names, is_known, strict=True) if not x]
        if unknown:
            notes.append(
                f"The budget shows no scale of {', '.join(unknown)}: coefficients are "
                "for cells clipped to [-1, 1]."
            )
        title, names = type(self).__name__, [*names, "intercept"]
        text = str(self.privacy_)
        return Summary(title, names, values, errors, text, factor, 1 - alpha, notes)

    def _estimates(self, alpha):
        """Returns coefficients and their standard errors, the intercept last."""
        check_is_fitted(self)
        _validate.probability(alpha=alpha)
        if self.bse_ is None:
            raise ValueError("intervals must be True at the fit, got False.")
        return np.append(self.coef_, self.intercept_), self.bse_
