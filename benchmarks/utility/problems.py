"""The problems of the page of utility: five real data sets and four made ones.

Excess of real data is over the non-private optimum of the training set; of made ones,
over the weights that made them, with test targets that are conditional means.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import t as student_t

from benchmarks.comparison import LARGEST_EXCESS
from benchmarks.data import load
from dpjax.tables import default_delta

# The ridge of the non-private logistic optimum: some categories separate the labels.
RIDGE = 1e-8
BLOCK = 256  # columns of weights that are judged at a time


@dataclass(frozen=True, eq=False)
class Problem:
    """Data to fit, and how a fit is judged.

    Attributes:
        loss: "squared", which is half the square, or "logistic", of targets -1 and +1.
        reference: the weights that excess is measured from, float64 of shape (d,).
        intercept: the index of the column of ones; None where there is none.
        max_features: how many features a method may keep, a public choice; None: all.
    """

    name: str
    title: str
    loss: str
    features: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    test_features: np.ndarray = field(repr=False)
    test_targets: np.ndarray = field(repr=False)
    reference: np.ndarray = field(repr=False)
    intercept: int | None = None
    max_features: int | None = None
    is_real: bool = True

    @property
    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """The training pair (features, targets), the `data` of a solver."""
        return self.features, self.targets

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers n and d."""
        return self.features.shape

    @property
    def delta(self) -> float:
        """n^-1.1."""
        return default_delta(len(self.targets))

    def risk(self, params: np.ndarray, *, row_norm: float | None = None) -> np.ndarray:
        """The mean test loss of weights (d,), or of each column of weights (d, k).

        With `row_norm`, longer test rows are first scaled down to it.
        """
        params = np.asarray(params, np.float64)
        columns = params.reshape(len(params), -1)
        features = self._wide_test[0]
        if row_norm is not None:
            features = scaled_down(features, row_norm)
        risks = []
        for start in range(0, columns.shape[1], BLOCK):
            with np.errstate(over="ignore", invalid="ignore"):
                predictions = features @ columns[:, start : start + BLOCK]
            risks.append(self.mean_loss(predictions))
        return np.concatenate(risks).reshape(params.shape[1:])

    def mean_loss(self, predictions: np.ndarray) -> np.ndarray:
        """The mean test loss of each column of predictions (m, k)."""
        targets = self._wide_test[1]
        with np.errstate(over="ignore", invalid="ignore"):
            return np.mean(_losses(self.loss, predictions, targets), axis=0)

    def excess(self, params, *, row_norm=None) -> np.ndarray:
        """The risk over that of the reference, at most `LARGEST_EXCESS`; as `risk`."""
        excess, most = self.risk(params, row_norm=row_norm), LARGEST_EXCESS
        excess = np.nan_to_num(excess - self.reference_risk, nan=most, posinf=most)
        return np.minimum(excess, most)

    def constant(self, value: float) -> np.ndarray:
        """Weights of zero, but for that of the intercept."""
        params = np.zeros(self.features.shape[1])
        if self.intercept is not None:
            params[self.intercept] = value
        return params

    @cached_property
    def smooth(self) -> tuple[int, ...]:
        """The columns that may bend: those of more than two values, which is public."""
        x = self.features
        is_between = (x != x.min(axis=0)) & (x != x.max(axis=0))
        return tuple(np.flatnonzero(np.any(is_between, axis=0)).tolist())

    @cached_property
    def zero_excess(self) -> float:
        """The excess of zero weights."""
        return float(self.excess(self.constant(0.0)))

    @cached_property
    def intercept_excess(self) -> float:
        """The excess of the best constant on the training set; of zero without one."""
        mean = float(np.mean(self.targets, dtype=np.float64))
        if self.loss == "logistic":
            share = np.clip((1 + mean) / 2, 1e-9, 1 - 1e-9)
            mean = float(np.log(share / (1 - share)))
        return float(self.excess(self.constant(mean)))

    @cached_property
    def reference_risk(self) -> float:
        """The risk of the reference."""
        return float(self.risk(self.reference))

    @cached_property
    def _wide_test(self) -> tuple[np.ndarray, np.ndarray]:
        test = self.test_features, self.test_targets[:, None]
        return tuple(part.astype(np.float64) for part in test)


def scaled_down(features: np.ndarray, row_norm: float) -> np.ndarray:
    """Returns the rows, those longer than `row_norm` scaled down to it."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features * np.minimum(1.0, row_norm / np.maximum(lengths, 1e-30))


def _losses(loss: str, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Losses; of a mean of labels, the mean of the logistic losses."""
    if loss == "squared":
        return 0.5 * (predictions - targets) ** 2
    return np.logaddexp(0.0, predictions) - 0.5 * (1 + targets) * predictions


def non_private_optimum(loss, features, targets) -> np.ndarray:
    """The non-private optimum, in float64."""
    x, y = features.astype(np.float64), targets.astype(np.float64)
    if loss == "squared":
        return np.linalg.lstsq(x, y, rcond=1e-8)[0]
    params, ridge = np.zeros(x.shape[1]), RIDGE * np.eye(x.shape[1])
    risk = np.inf
    for _ in range(100):
        share = expit(x @ params)
        gradient = x.T @ (share - (1 + y) / 2) / len(y) + RIDGE * params
        hessian = (x.T * (share * (1 - share))) @ x / len(y) + ridge
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while True:  # halved until the risk falls
            trial = params - size * step
            value = np.mean(_losses("logistic", x @ trial, y))
            value += 0.5 * RIDGE * trial @ trial
            if value <= risk or size < 1e-6:
                break
            size /= 2
        if not value < risk - 1e-12:
            break
        params, risk = trial, value
    return params


def _real(name: str, title: str, first: int | None = None) -> Problem:
    data = load(name)
    features, targets = data.features[:first], data.targets[:first]
    loss = "squared" if data.task == "regression" else "logistic"
    return Problem(
        *(name, title, loss, features, targets, *data.test),
        reference=non_private_optimum(loss, features, targets),
        intercept=features.shape[1] - 1,
    )


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def _linear(name, title, features, params, noise, num_test, **others) -> Problem:
    """A linear model: the last records are the test, without their noise."""
    means = features @ params
    targets = means[:-num_test] + noise[: len(means) - num_test]
    parts = features[:-num_test], targets, features[-num_test:], means[-num_test:]
    return Problem(
        *(name, title, "squared"),
        *(np.asarray(part, np.float32) for part in parts),
        reference=params.astype(np.float64),
        is_real=False,
        **others,
    )


def _isotropic() -> Problem:
    rng = np.random.default_rng(1)
    features = rng.standard_t(3, (40_000, 50))
    params, noise = _unit(rng.standard_normal(50)), rng.standard_t(3, 20_000)
    title = "isotropic, t3 features"
    return _linear("isotropic", title, features, params, noise, 20_000)


def _ill_conditioned() -> Problem:
    """Every eigenvector bears the same share of the signal."""
    rng = np.random.default_rng(2)
    spectrum = np.logspace(0, -3, 50)
    basis = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    features = rng.standard_normal((40_000, 50)) * np.sqrt(spectrum) @ basis.T
    signs = rng.choice([-1.0, 1.0], 50)
    params = basis @ (signs * np.sqrt(2 / 50 / spectrum))  # zero weights: excess 1
    noise = rng.standard_normal(20_000)
    title = "ill-conditioned, condition number 1,000"
    return _linear("ill_conditioned", title, features, params, noise, 20_000)


def _heavy_tailed() -> Problem:
    """Labels sign(<w, x> + e), x multivariate t3, correlated, e Student t with 2.5.

    The features are elliptical, so of all weights those of least logistic risk point
    where w does; the reference has the best length, found on the test set.
    """
    rng = np.random.default_rng(3)
    n, d = 60_000, 30
    places = np.arange(d)
    roots = np.linalg.cholesky(0.5 ** np.abs(places[:, None] - places))
    radii = np.sqrt(3 / rng.chisquare(3, (n, 1)))
    features = (radii * (rng.standard_normal((n, d)) @ roots.T)).astype(np.float32)
    params = _unit(rng.standard_normal(d))
    margins = features @ params
    noise = rng.standard_t(2.5, n)
    targets = np.where(margins + noise > 0, np.float32(1), np.float32(-1))
    means = 2 * student_t.cdf(margins, 2.5) - 1
    test = slice(20_000, None)
    pair = margins[test], means[test]
    best = minimize_scalar(lambda x: np.mean(_losses("logistic", x * pair[0], pair[1])))
    return Problem(
        *("heavy_tailed", "logistic, heavy-tailed features and noise", "logistic"),
        *(features[:20_000], targets[:20_000]),
        *(features[test], means[test].astype(np.float32)),
        reference=best.x * params,
        is_real=False,
    )


def _sparse() -> Problem:
    """Ten true features of 5,000; a user allows twice as many."""
    rng = np.random.default_rng(4)
    n, d, num_test = 20_000, 5_000, 2_000
    features = np.empty((n + num_test, d), np.float32)
    for start in range(0, len(features), 1_000):  # in float32 blocks, for memory
        features[start : start + 1_000] = rng.standard_t(5, (1_000, d))
    params = np.zeros(d)
    params[rng.choice(d, 10, replace=False)] = _unit(rng.standard_normal(10))
    noise = rng.standard_t(2.5, n)
    title = "sparse, 10 of 5,000 features"
    return _linear("sparse", title, features, params, noise, num_test, max_features=20)


_MAKERS: dict[str, Callable[[], Problem]] = {
    "adult": partial(_real, "adult", "Adult"),
    "rand_hie": partial(_real, "rand_hie", "RAND HIE"),
    "belgian_motor": partial(_real, "belgian_motor", "Belgian motor", 40_000),
    "credit_default": partial(_real, "credit_default", "credit default"),
    "blog_feedback": partial(_real, "blog_feedback", "BlogFeedback", 40_000),
    "isotropic": _isotropic,
    "ill_conditioned": _ill_conditioned,
    "heavy_tailed": _heavy_tailed,
    "sparse": _sparse,
}
NAMES = tuple(_MAKERS)


@cache
def problem(name: str) -> Problem:
    """Returns a problem, loaded or drawn at its first use."""
    return _MAKERS[name]()
