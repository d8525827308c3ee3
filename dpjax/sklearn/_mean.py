"""The private mean of the target: what any model has to beat."""

import math

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpjax import _keys
from dpjax._rounding import ROUNDED_UP
from dpjax.estimators import SmoothedTruncation
from dpjax.sklearn import _tables
from dpjax.sklearn._clones import PrivateEstimator
from dpjax.sklearn._linear import guarantee, parameters, total_noise
from dpjax.sklearn._regressors import in_unit, weights_of
from dpjax.solvers.statistics._noisy_mean import BESIDE_WEIGHT, WEIGHTED
from dpjax.tables import _progress
from dpjax.transforms import privatize

# A guess at E z^2 of targets in their unit, for the truncation of the mean; laws of
# heavy tails have more than the 0.7 of a normal one.
_MOMENT = 4.0
# The least of the noisy mean weight, in stddevs of its noise, and in the largest one.
_CLEAR_WEIGHT, _LEAST_WEIGHT = 3.0, 0.05


@parameters
class DPMeanRegressor(RegressorMixin, PrivateEstimator):
    """The private mean of the target: a baseline for other models.

    Only the shape and the names of features are read. Parameters, and other attributes,
    are as for `DPLinearRegression`.

    Attributes:
        mean_: the mean, weighted if there are weights, in the unit of the target.

    Privacy:
        (epsilon, delta)-DP under replace-one, for every input: the target's unit and a
        mean of smoothly truncated targets share one Gaussian mechanism. With a
        target_range, targets are clipped to it and their mean gets the whole budget.
        Targets that are missing have no weight: the mean is divided by a private sum of
        weights, which costs nothing beside it.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPMeanRegressor
        >>> y = 30_000 + 10_000 * np.random.default_rng(0).standard_t(3, 20_000)
        >>> model = DPMeanRegressor(random_state=0).fit(np.ones((20_000, 1)), y)
        >>> print(model.predict([[1.0]]).round(-3))
        [30000.]

    Reference:
        As for `dpjax.solvers.dp_mean`.
    """

    epsilon: float = 1.0
    delta: float | None = None
    target_range: tuple[float, float] | None = None
    max_weight: float | None = None
    random_state: int | str | None = None

    def __sklearn_tags__(self):
        """NaN is taken: features are not read."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @_progress.shown("reading the records")
    def fit(self, X, y, sample_weight=None):
        """Releases the mean of the targets, and spends the budget.

        Args:
            X: shape (n, d).
            y: shape (n,), numbers in any unit.
            sample_weight: shape (n,), how much records count, or None.

        Returns:
            The estimator.

        Raises:
            ValueError: If a shape, a type or a parameter is wrong.
        """
        features, epsilon, delta, key = _tables.checked(self, X)
        targets = _tables.numbers_of(self, y, features)
        weights = weights_of(self, targets, sample_weight)
        total = total_noise(epsilon, delta)
        _progress.say("unit of the target")
        key, target_key = _keys.split(key)
        targets, unit = in_unit(
            self, targets, weights, key=target_key, noise_multiplier=total
        )
        _progress.say("mean of the target")
        limit, bounded = 1.0, targets.astype(np.float32)  # they are in a public range
        if self.target_range is None:
            truncation = SmoothedTruncation.for_moment(
                _MOMENT,
                num_samples=len(targets),
                epsilon=epsilon * math.sqrt(1 - unit.share),
                delta=delta,
            )
            limit = float(truncation.limit)
            bounded = np.asarray(truncation.influence(bounded)) / np.float32(limit)
        shares = (weights / _tables.largest_weight(self)).astype(np.float32)
        numbers = BESIDE_WEIGHT * shares * np.clip(bounded, -1.0, 1.0)
        samples = np.stack([numbers, shares], axis=1)
        multiplier = ROUNDED_UP * total / math.sqrt(1 - unit.share)
        noisy = privatize(WEIGHTED, noise_multiplier=multiplier, key=key)
        number, share = np.asarray(noisy.update(samples, noisy.init(samples))[0])
        noise = multiplier * float(WEIGHTED.sensitivity(len(samples), 2).l2)
        released = {"mean_weight": np.clip(share, 0.0, 1.0), "constant": 0.0}
        released |= {"noise_multiplier": multiplier, "shares": {"mean": 1.0}}
        _tables.set_mean_weight(self, released, len(samples))
        share = max(float(share), min(_CLEAR_WEIGHT * noise, _LEAST_WEIGHT))
        mean = np.clip(limit * float(number) / BESIDE_WEIGHT / share, -limit, limit)
        self.mean_ = float(mean) * unit.scale + unit.center
        self.target_scale_ = unit.scale
        self.privacy_ = guarantee(epsilon, delta, len(features))
        return self

    def predict(self, X):
        """Returns the mean for each record, shape (n,)."""
        check_is_fitted(self)
        features = _tables.features_of(self, X, is_new=False)
        return np.full(len(features), self.mean_)
