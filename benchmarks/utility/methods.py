"""The methods of the page of utility, in the order of the tables.

A method maps (problem, keys, epsilon) to the weights of one run a key, all (epsilon,
delta)-DP under replace-one unless it says so. The page says what each pays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.utility import hindsight, peers
from benchmarks.utility.hindsight import on_device
from benchmarks.utility.peers import LeftOut
from benchmarks.utility.problems import Problem, non_private_optimum, scaled_down
from dpjax import estimators, losses, solvers
from dpjax.estimators import Clipping, SmoothedTruncation

SQUARED, LOGISTIC = ("squared",), ("logistic",)
BOTH = SQUARED + LOGISTIC
LOSSES = {"squared": losses.squared, "logistic": losses.logistic}
Weights = np.ndarray | jax.Array


@dataclass(frozen=True)
class Method:
    """One way to fit a model.

    Attributes:
        fit: (problem, keys, epsilon) to weights (d, keys), or test predictions
            (m, keys) on the page's first part, and facts to record.
        tasks: the losses it serves.
        row_norm: test rows longer than this are scaled down, as in its training.
        needs: "intercept" or "schema" (public units) where it serves no others.
    """

    name: str
    title: str
    fit: Callable[[Problem, jax.Array, float], tuple[Weights, dict[str, Any]]]
    tasks: tuple[str, ...] = BOTH
    is_private: bool = True
    row_norm: float | None = None
    needs: str = ""

    def serves(self, data: Problem) -> bool:
        """Whether the problem's task is one of its own."""
        has = {"": True, "intercept": data.intercept is not None}
        return data.loss in self.tasks and (has | {"schema": data.is_real})[self.needs]


def each(fit_one: Callable[[Problem, jax.Array, float], Weights]):
    """Makes a method's `fit` of a function of one key."""

    def fit(data, keys, epsilon):
        runs = [np.asarray(fit_one(data, key, epsilon)) for key in keys]
        return np.stack(runs, axis=1), {}

    return fit


def zero(data, keys, epsilon):
    del epsilon
    return np.zeros((data.shape[1], keys.size)), {}


def optimum(data, keys, epsilon):
    """The reference, or where data are made the fit to them."""
    del epsilon
    if data.shape[1] > 1_000:
        raise LeftOut("takes minutes, and is no private method")
    params = data.reference
    if not data.is_real:
        params = non_private_optimum(data.loss, *data.train)
    return np.repeat(params[:, None], keys.size, axis=1), {}


def private_constant(data: Problem, key: jax.Array, epsilon: float) -> np.ndarray:
    """A private mean of the targets, as log-odds where they are labels."""
    targets, is_label = jnp.asarray(data.targets), data.loss == "logistic"
    budget = {"epsilon": epsilon, "delta": data.delta}
    sizes = {"num_samples": len(targets), "num_coordinates": 1}
    estimator = SmoothedTruncation.for_moment(1.0, **sizes, **budget)
    if is_label:
        estimator = Clipping(1.0)  # labels are in [-1, 1], which is public
    solution = solvers.dp_mean(targets, key=key, estimator=estimator, **budget)
    mean = float(solution.params)
    if is_label:
        margin = 1 / len(data.targets)
        mean = 2 * np.arctanh(np.clip(mean, margin - 1, 1 - margin))
    return data.constant(mean)


def untuned(solver, data: Problem, key: jax.Array, epsilon: float):
    """The solution of a solver that has nothing to set."""
    budget = {"epsilon": epsilon, "delta": data.delta, "intercept": data.intercept}
    return solver(data.loss, on_device(data), key=key, **budget)


def dp_linear_model(data: Problem, key: jax.Array, epsilon: float) -> Weights:
    """The solver without settings."""
    solver = partial(solvers.dp_linear_model, max_features=data.max_features)
    return untuned(solver, data, key, epsilon).params


def robust(kind, data: Problem, epsilon: float) -> estimators.Estimator:
    """An estimator at the theory's scale for all steps that use a record."""
    (num_samples, num_features), groups = data.shape, 1
    if kind is estimators.MedianOfMeans:
        kind, medians = estimators.Truncation, kind
        default = medians.for_failure_prob(kind(1.0), num_coordinates=num_features)
        groups = min(default.num_groups, num_samples)
    options = {"num_samples": num_samples // groups, "num_coordinates": num_features}
    options |= {"num_steps": steps_of(data), "epsilon": epsilon, "delta": data.delta}
    # The second moment of a gradient's coordinate, for features of unit size.
    scaled = kind.for_moment(0.25 if data.loss == "logistic" else 1.0, **options)
    return estimators.MedianOfMeans(scaled, groups) if groups > 1 else scaled


def steps_of(data: Problem) -> int:
    """300, or where the data are made the theory's at a condition number of 10."""
    return 300 if data.is_real else math.ceil(10 * math.log(data.shape[0]))


def descent(kind):
    """Gradient descent with an estimator and nothing else to set."""

    def fit(data, keys, epsilon):
        rate = 1.0 if data.loss == "logistic" else 0.1
        numbers = {"num_steps": steps_of(data), "learning_rate": rate}
        estimator = kind(1.0) if kind is Clipping else robust(kind, data, epsilon)
        options = {"estimator": estimator, "epsilon": epsilon, "delta": data.delta}
        start = LOSSES[data.loss], jnp.zeros(data.shape[1]), on_device(data)
        solve = partial(solvers.dp_gradient_descent, *start, **options, **numbers)
        params = [np.asarray(solve(key=key).params) for key in keys]
        return np.stack(params, axis=1), numbers

    return fit


def objective_perturbation(data, key, epsilon, *, strength) -> Weights:
    """The library's, on rows scaled down to norm 1, with n lambda given."""
    features = scaled_down(data.features, 1.0).astype(np.float32)
    options = {"epsilon": epsilon, "delta": data.delta}
    options["regularization"] = strength / data.shape[0]
    solve = solvers.dp_objective_perturbation
    return solve(features, data.targets, key=key, **options).params


_SQUARED, _LOGISTIC = {"tasks": SQUARED}, {"tasks": LOGISTIC}
_NOT_PRIVATE = {"is_private": False}
_HINDSIGHT = "clipping, best in hindsight"
_PERTURBED = "objective perturbation, n lambda ="
_DIFFPRIVLIB = "diffprivlib, LogisticRegression"
_adaptive = peers.adaptive_clipping
_unit_logistic = partial(peers.diffprivlib_logistic, row_norm=1.0)
# By name: the title, the fit, and options.
_TABLE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "zero": ("zero weights", zero, {}),
    "constant": ("private constant", each(private_constant), {"needs": "intercept"}),
    "dp_linear_model": ("**`dp_linear_model`**", each(dp_linear_model), {}),
    "hindsight": (_HINDSIGHT, hindsight.fit, _NOT_PRIVATE),
    "hindsight_wide": (
        *(f"{_HINDSIGHT}, wider grid", partial(hindsight.fit, is_wide=True)),
        _NOT_PRIVATE,
    ),
    "adaptive_clipping": (
        *("DP-GD, adaptive clipping, median", partial(_adaptive, quantile=0.5), {}),
    ),
    "adaptive_clipping_90": (
        *("DP-GD, adaptive clipping, 90 %", partial(_adaptive, quantile=0.9), {}),
    ),
    "smoothed_truncation": (
        "DP-GD, smoothed truncation (001, Alg. 4)",
        *(descent(SmoothedTruncation), {}),
    ),
    "truncation": ("DP-GD, truncation (003)", descent(estimators.Truncation), {}),
    "median_of_means": (
        "DP-GD, median of means (003, Alg. 2)",
        *(descent(estimators.MedianOfMeans), {}),
    ),
    "clipping": ("DP-GD, clipping to norm 1", descent(Clipping), {}),
    "objective_perturbation": (
        *(f"{_PERTURBED} 1", each(partial(objective_perturbation, strength=1.0))),
        {**_LOGISTIC, "row_norm": 1.0},
    ),
    "objective_perturbation_10": (
        *(f"{_PERTURBED} 10", each(partial(objective_perturbation, strength=10.0))),
        {**_LOGISTIC, "row_norm": 1.0},
    ),
    "adassp": ("AdaSSP", each(peers.adassp), _SQUARED),
    "adassp_quantile": (
        *("AdaSSP, bounds at 99 %", each(partial(peers.adassp, quantile=0.99))),
        _SQUARED,
    ),
    "boosted_adassp": (
        *("boosted AdaSSP", each(peers.boosted_adassp)),
        {**_SQUARED, "row_norm": 1.0},
    ),
    "tukey_em": ("TukeyEM", each(peers.tukey_em), _SQUARED),
    "diffprivlib_linear": (
        *("diffprivlib, LinearRegression", each(peers.diffprivlib_linear), _SQUARED),
    ),
    "diffprivlib_logistic": (
        *(_DIFFPRIVLIB, each(peers.diffprivlib_logistic), _LOGISTIC),
    ),
    "diffprivlib_logistic_unit": (
        *(f"{_DIFFPRIVLIB}, rows of norm 1", each(_unit_logistic)),
        {**_LOGISTIC, "row_norm": 1.0},
    ),
    "optimum": ("non-private optimum", optimum, _NOT_PRIVATE),
}
METHODS = {
    name: Method(name, title, fit, **options)
    for name, (title, fit, options) in _TABLE.items()
}
