"""Estimators that say once that each fit of their clones spends a budget of its own."""

import warnings
from typing import Any
from weakref import WeakKeyDictionary

from sklearn.base import BaseEstimator

# How many clones there are of an estimator and its clones, which share one list.
_CLONES: WeakKeyDictionary[Any, list[int]] = WeakKeyDictionary()


class PrivateEstimator(BaseEstimator):
    """Warns when it is cloned a second time in a process, whatever the data are."""

    epsilon: float

    def __sklearn_clone__(self):
        """Returns an estimator of the same parameters, which is not fitted."""
        clone = super().__sklearn_clone__()
        number = _CLONES[clone] = _CLONES.setdefault(self, [0])
        number[0] += 1
        if number[0] == 2:
            warnings.warn(
                f"{type(self).__name__} is cloned again, as cross_val_score, "
                "GridSearchCV and MultiOutputRegressor do. Every fit of a clone spends "
                "its budget anew: k fits on the same records cost up to k times "
                f"epsilon = {self.epsilon} and k times delta together.",
                stacklevel=2,
            )
        return clone
