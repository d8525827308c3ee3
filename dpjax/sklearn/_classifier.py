"""Logistic regression for two or more classes."""

import math
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin

from dpjax import _keys, _validate, losses
from dpjax.sklearn import _labels, _linear, _tables
from dpjax.solvers.statistics._noisy_mean import one_gaussian
from dpjax.solvers.statistics._scales import Standard
from dpjax.solvers.training._calibration import unsupported
from dpjax.tables import _progress


@_linear.parameters
class Classifier(ClassifierMixin, _linear.LinearEstimator):
    """Predicts classes from scores that a subclass fits."""

    classes: Any = None
    feature_ranges: Any = None

    @_progress.shown("reading the records")
    def fit(self, X, y, sample_weight=None):
        """Fits the model and spends the budget, as `DPLinearRegression.fit` does.

        X has shape (n, d), numbers in any units, and sample_weight, or None, (n,).
        Labels y, shape (n,), are numbers or texts; with `classes` any hashable values
        of a type that may match one of the classes. The guarantee starts here, not at
        the file: pandas reads a column of numbers as text if one cell is text, so pass
        `classes`, or declare the types of columns.
        """
        features, epsilon, delta, key = self._check(X)
        num_samples, num_features = features.shape
        classes = None if self.classes is None else _labels.declared(self.classes)
        is_pair = classes is not None and len(classes) == 2
        rule = "a list of two labels with intervals or monotone"
        is_fine = is_pair or not (self.intervals or self.monotone)
        _validate.require(is_fine, "classes", self.classes, rule)
        labels = _tables.column_of(self, y, features)
        if classes is not None:
            _labels.check_kind(y, classes)
        weights = _tables.weights_of(self, sample_weight, features)
        left = delta if classes is not None else (1 - _labels.DELTA_SHARE) * delta
        noise_multiplier, privacy = one_gaussian(epsilon, left, num_samples)
        if classes is None:
            # The labels and the model share one Gaussian mechanism, and a fifth of
            # delta covers the chance that a label of a single record is released.
            _progress.say("labels")
            key, label_key = _keys.split(key)
            share = _labels.labels_share(num_samples, noise_multiplier)
            classes = _labels.release_labels(
                label_key,
                labels,
                noise_multiplier=noise_multiplier / math.sqrt(share),
                log_probability=math.log(_labels.DELTA_SHARE * delta) - epsilon,
            )
            noise_multiplier /= math.sqrt(1 - share)
            if epsilon < math.inf:
                privacy = unsupported(epsilon, delta, num_samples)
        places = _labels.indices(labels, classes)
        weights = np.where(places < 0, 0.0, weights)
        is_binary = len(classes) == 2
        if len(classes) == 1:  # a single class has no model
            self._set_zero(num_features)
        else:
            self._fit_scores(
                losses.logistic if is_binary else losses.softmax(len(classes)),
                features,
                2.0 * places - 1 if is_binary else np.maximum(places, 0),
                weights,
                key=key,
                noise_multiplier=noise_multiplier,
            )
        self.classes_ = classes
        self.privacy_ = privacy
        return self

    def _set_zero(self, num_features: int) -> None:
        zeros = np.zeros(num_features)
        self._set_standard(Standard(zeros, zeros + 1, zeros, zeros, zeros > 0))
        self.coef_, self.intercept_ = zeros[None], np.zeros(1)
        self.mean_weight_ = None

    def decision_function(self, X):
        """Returns log odds of `classes_[1]`, shape (n,); for K > 2 classes (n, K)."""
        scores = self._linear(X)
        return scores[:, 0] if len(self.classes_) <= 2 else scores

    def predict_log_proba(self, X):
        """Returns logarithms of the probabilities of the classes, shape (n, K)."""
        scores = self._linear(X)
        if len(self.classes_) == 2:
            return log_expit(scores * [[-1.0, 1.0]])
        return log_softmax(scores, axis=1)

    def predict_proba(self, X):
        """Returns the probabilities of `classes_`, shape (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X):
        """Returns the likeliest of `classes_` for each record, shape (n,)."""
        scores = self.decision_function(X)
        places = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)
        return self.classes_[places]


@_linear.parameters
class DPLogisticRegression(_linear.WithIntervals, Classifier):
    """Private logistic regression for two or more classes.

    Args:
        classes: the public labels, a list of at least two, of any hashable type; other
            labels count as missing. Meta-estimators, such as `VotingClassifier`, number
            the labels: then pass numbers from 0 on. None: labels, numbers or texts, are
            released privately, and a class with few records is not found; 1, 1.0 and
            True are the same label, the int 1.
        intervals: as for `DPLinearRegression`, but only for `classes` of two labels.

    Attributes:
        classes_: `classes` or the released labels, sorted. If no label is found, the
            int 0.
        coef_: coefficients per unit of the features, of the log odds of `classes_[1]`,
            shape (1, d), or of the score of each class, shape (K, d).
        intercept_: the log odds or scores if all features are zero, shape (1,) or (K,).
        mean_weight_: the private share of records with a label in `classes_`; with
            weights, as for `DPLinearRegression`. None if only one label is found.

    Other parameters and attributes are as for `DPLinearRegression`.

    Privacy:
        As for `DPLinearRegression`. If labels are released, their noisy counts take a
        share of the budget, and a fifth of delta covers the chance that a label of a
        single record is shown. A record with a label that is missing, or is none of
        `classes_`, has no weight.

    Example:
        >>> import numpy as np
        >>> from dpjax.sklearn import DPLogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> X = np.c_[rng.normal(45, 15, 20_000), rng.lognormal(10, 1, 20_000)]
        >>> is_rich = X[:, 0] / 15 - 3 + rng.logistic(size=20_000) > 0
        >>> y = np.where(is_rich, "rich", "poor")
        >>> model = DPLogisticRegression(random_state=0).fit(X, y)  # doctest: +SKIP
        >>> print(model.classes_, model.coef_[0, 0].round(2))  # doctest: +SKIP
        ['poor' 'rich'] 0.07

    Reference:
        As for `dpjax.solvers.dp_linear_model`; Wilkins, Kifer, Zhang, Karrer (2024),
        Exact privacy analysis of the Gaussian sparse histogram mechanism.
    """

    @property
    def _factor(self) -> tuple[str, list[str]]:
        text = f"Coefficients are of the log odds of {self.classes_[1]}."
        return "odds ratio", [text]

    def _fit_scores(self, *args: Any, **options: Any) -> None:
        super()._fit_scores(*args, **options)
        self.coef_ = self.coef_.T.reshape(-1, len(self.coef_))
        self.intercept_ = self.intercept_.reshape(-1)
