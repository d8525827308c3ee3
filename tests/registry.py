"""The parts of dpjax, one line each: what the tests of a layer run over.

A new estimator, mechanism, transform, solver, constraint, loss or batching enters
here, under its public name. Its promises are then tested: contracts, sensitivity under
attack, sweeps, shards, audits; `test_registry.py` tells what is missing. A name with a
comma is a variant of the part before it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import (
    batching,
    constraints,
    estimators,
    losses,
    mechanisms,
    solvers,
    transforms,
)


def _medians(inner: Callable[[float], Any], num_groups: int):
    return lambda size: estimators.MedianOfMeans(inner(size), num_groups)


# make(size) -> the estimator, its limit in proportion to size, or 1.
ESTIMATORS = {
    "Mean": lambda size: estimators.Mean(),
    "Clipping": estimators.Clipping,
    "Truncation": estimators.Truncation,
    "Winsorization": estimators.Winsorization,
    "SmoothedTruncation": estimators.SmoothedTruncation,
    "SmoothedClipping": estimators.SmoothedClipping,
    "Normalization": estimators.Normalization,
    "Grouped": lambda size: estimators.Grouped(estimators.Clipping(size), ("",)),
    "SmoothedTruncation, beta 9": partial(estimators.SmoothedTruncation, beta=9.21),
    "SmoothedTruncation, beta 50": partial(estimators.SmoothedTruncation, beta=50.0),
    "MedianOfMeans": _medians(estimators.Clipping, 3),
    "MedianOfMeans, of truncation": _medians(estimators.Truncation, 4),
    "MedianOfMeans, one group": _medians(estimators.SmoothedTruncation, 1),
    "TrimmedMean": lambda size: estimators.TrimmedMean(0.2, -size, size),
}

_PEELING = {"sparsity": 2, "selection_scale": 0.5, "release_stddev": 0.5}
# make(key, value) -> a release of the value, an array of shape (n,).
MECHANISMS = {
    "gaussian": partial(mechanisms.gaussian, stddev=0.5),
    "laplace": partial(mechanisms.laplace, scale=0.5),
    "laplace, l2": partial(mechanisms.laplace, scale=0.5, norm="l2"),
    "arsinh_normal": partial(mechanisms.arsinh_normal, scale=0.5, sigma=0.7),
    "laplace_log_normal": partial(mechanisms.laplace_log_normal, scale=0.5, sigma=0.7),
    "discrete_gaussian": lambda key, value: mechanisms.discrete_gaussian(
        value.shape, stddev=3
    ),
    "exponential": partial(mechanisms.exponential, epsilon=1.0, sensitivity_range=0.5),
    "permute_and_flip": partial(
        mechanisms.permute_and_flip, epsilon=1.0, sensitivity_range=0.5
    ),
    "peeling": partial(mechanisms.peeling, **_PEELING),
    "peeling, laplace": partial(mechanisms.peeling, **_PEELING, noise="laplace"),
}

_BALL = partial(optax.projections.projection_l2_ball, scale=0.5)


def _private(estimator: Any, noise_multiplier: float = 0.5, **options: Any):
    return lambda key: transforms.privatize(
        estimator, noise_multiplier=noise_multiplier, key=key, **options
    )


_CLIPPED = _private(estimators.Clipping(1.0))
_ADAPTIVE = estimators.AdaptiveThreshold(estimators.Clipping(1.0), 0.01, 100.0)


# make(key) -> the transform, whose updates are per-sample gradients; or not.
OF_SAMPLES = {
    "aggregate": lambda key: transforms.aggregate(estimators.Truncation(1.0)),
    "privatize": _private(estimators.SmoothedTruncation(1.0)),
    "privatize, adaptive": _private(_ADAPTIVE),
    "privatize, scaled": lambda key: _private(
        estimators.Scaled(
            estimators.Winsorization(1.0),
            {"w": jnp.array([[0.3, 1.0, 2.0]] * 2), "b": 0.1},
        )
    )(key),
    "privatize, correlated": _private(
        estimators.Truncation(1.0), noise=mechanisms.BandedToeplitz.square_root(16, 3)
    ),
    "privatize, trimmed mean": _private(
        estimators.TrimmedMean(0.2, -1.0, 1.0), noise_multiplier=0.02
    ),
    "dp_sgd": lambda key: transforms.dp_sgd(
        0.1, estimators.Truncation(1.0), noise_multiplier=0.5, key=key
    ),
    "chain": lambda key: transforms.chain(_CLIPPED(key), optax.trace(0.9)),
    "accumulate": lambda key: transforms.accumulate(
        transforms.dp_sgd(
            *(0.1, estimators.Clipping(1.0)),
            **{"noise_multiplier": 0.5, "key": key, "normalize_by": 32},
        ),
        num_pieces=2,
    ),
    "scale_by_dp_adam": lambda key: transforms.chain(
        _CLIPPED(key), transforms.scale_by_dp_adam()
    ),
}
_MEAN = {"sensitivity": 0.1, "limit": 1.0}
TRANSFORMS = OF_SAMPLES | {
    "add_gaussian_noise": lambda key: transforms.add_gaussian_noise(
        stddev=0.1, key=key
    ),
    "frank_wolfe": lambda key: transforms.frank_wolfe(
        constraints.L1Ball(4.0), epsilon=1.0, key=key, **_MEAN
    ),
    "peel": lambda key: transforms.peel(4, rho=1.0, key=key, **_MEAN),
    "peel, laplace": lambda key: transforms.peel(
        4, rho=1.0, key=key, noise="laplace", **_MEAN
    ),
    "project": lambda key: transforms.project(_BALL),
    "average_iterates": lambda key: transforms.average_iterates(),
}

CONSTRAINTS = {
    "L1Ball": constraints.L1Ball,
    "L2Ball": constraints.L2Ball,
    "Simplex": constraints.Simplex,
    "Box": lambda size: constraints.Box(-size / 3, size / 2),
    "Polytope": lambda size: constraints.Polytope(
        size * jnp.array([[1.0, 0], [0, 1], [0, 0]])
    ),
}

# Losses of (features, target), for parameters (d,); (d, 3) for softmax.
LOSSES = {
    "squared": losses.squared,
    "absolute": losses.absolute,
    "logistic": losses.logistic,
    "huber": losses.huber(1.5),
    "biweight": losses.biweight(2.5),
    "poisson": losses.poisson(4.0),
    "gamma": losses.gamma(min_mean=0.1, max_target=20.0),
    "tweedie": losses.tweedie(1.5, min_mean=0.1, max_mean=5.0, max_target=20.0),
    "tweedie, wide": losses.tweedie(
        1.25, min_mean=1e-3, max_mean=30.0, max_target=1_000.0
    ),
    "softmax": losses.softmax(3),
}

BATCHINGS = {
    "Full": batching.Full(),
    "Disjoint": batching.Disjoint(),
    "Poisson": batching.Poisson(3.0),
    "WithoutReplacement": batching.WithoutReplacement(3),
    "CyclicPoisson": batching.CyclicPoisson(2.0, 2),
    "BallsInBins": batching.BallsInBins(2),
}


def _budget(key: jax.Array, i: int) -> dict[str, Any]:
    # Budgets are near each other: where another mechanism is better, it is compiled.
    return {"key": key, "epsilon": 0.5 + i / 10, "delta": 1e-5 / (1 + i)}


def _problem(data: Any) -> tuple[Any, jax.Array, Any]:
    return losses.squared, jnp.asarray(np.zeros(data[0].shape[1], data[0].dtype)), data


def _steps(i: int) -> dict[str, Any]:
    return {"learning_rate": 0.1 + 0.05 * i, "num_steps": 5}


def _descent(estimator_fn: Callable[[float], Any], **options: Any):
    def release(data, key, i):
        return solvers.dp_gradient_descent(
            *_problem(data),
            estimator=estimator_fn(1.0 + i),
            **_steps(i),
            **_budget(key, i),
            **options,
        )

    return release


def _sco(solver, data, i, **options):
    moments = {"moment_bound": 1.0 + i, "moment_order": 8.0, "diameter": 2.0 + i}
    return solver(*_problem(data), **moments, **options)


def _array(x: Any) -> jax.Array:
    with np.errstate(over="ignore"):  # of what is beyond the floats of JAX
        return jnp.asarray(x)


def _of_unit_length(data: Any) -> tuple[jax.Array, jax.Array]:
    features, targets = map(_array, data)
    norms = jnp.linalg.norm(features, axis=1, keepdims=True)
    return features / jnp.maximum(norms, 1), jnp.sign(targets)


def enough(name: str, few: int) -> int:
    """Returns how many records a solver of SOLVERS needs, if others need few."""
    return 320 if "aggregate" in name else 800 if "_sco" in name else few


# make(data, key, i) -> a release of (features, targets), whose numbers depend on i.
SOLVERS = {
    "dp_gradient_descent": _descent(estimators.SmoothedTruncation),
    "dp_gradient_descent, disjoint": _descent(
        estimators.Winsorization, batching=batching.Disjoint()
    ),
    "dp_gradient_descent, clipping": _descent(estimators.Clipping, averaging=True),
    "robust_gradient_descent": lambda data, key, i: solvers.robust_gradient_descent(
        *_problem(data), estimator=estimators.Winsorization(1.0 + i), **_steps(i)
    ),
    "dp_localized_sco": lambda data, key, i: _sco(
        *(solvers.dp_localized_sco, data, i),
        **{"smoothness": 2.0, "num_steps": 3} | _budget(key, i),
    ),
    "dp_one_pass_sco": lambda data, key, i: _sco(
        solvers.dp_one_pass_sco, data, i, **_budget(key, i)
    ),
    "dp_one_pass_sco, pure": lambda data, key, i: _sco(
        solvers.dp_one_pass_sco, data, i, **_budget(key, i) | {"delta": 0.0}
    ),
    "dp_mean": lambda data, key, i: solvers.dp_mean(
        data[0], estimator=estimators.SmoothedTruncation(1.0 + i), **_budget(key, i)
    ),
    "dp_mean, untuned": lambda data, key, i: solvers.dp_mean(
        data[0], **_budget(key, i)
    ),
    "dp_mean, geometric median": lambda data, key, i: solvers.dp_mean(
        data[0], method="geometric_median", **_budget(key, i)
    ),
    "dp_frank_wolfe": lambda data, key, i: solvers.dp_frank_wolfe(
        *_problem(data),
        key=key,
        epsilon=0.5 + i / 10,
        constraint=constraints.L1Ball(1.0 + i),
        estimator=estimators.Winsorization(1.0 + i),
        num_steps=5,
        learning_rate=0.1 + 0.1 * i,
    ),
    "dp_additive_model": lambda data, key, i: solvers.dp_additive_model(
        "squared", data, smooth=(0, 2, 4), max_weight=1.0 + i, **_budget(key, i)
    ),
    "dp_linear_model": lambda data, key, i: solvers.dp_linear_model(
        "squared", data, max_weight=1.0 + i, **_budget(key, i)
    ),
    "dp_lasso": lambda data, key, i: solvers.dp_lasso(
        *data, radius=1.0 + i, threshold=2.0 + i, num_steps=5, **_budget(key, i)
    ),
    "dp_iterative_hard_thresholding": lambda data, key, i: (
        solvers.dp_iterative_hard_thresholding(
            *_problem(data),
            sparsity=2,
            estimator=estimators.SmoothedTruncation(1.0 + i),
            **_steps(i),
            **_budget(key, i),
        )
    ),
    "dp_sparse_linear_regression": lambda data, key, i: (
        solvers.dp_sparse_linear_regression(
            *data, sparsity=2, threshold=2.0 + i, **_steps(i), **_budget(key, i)
        )
    ),
    "dp_l1_regression": lambda data, key, i: solvers.dp_l1_regression(
        *data,
        key=key,
        epsilon=0.5 + i / 10,
        candidates=np.linspace(-1, 1, 48, dtype=data[0].dtype).reshape(8, 6),
        residual_moment_bound=1.0 + i,
    ),
    "dp_objective_perturbation": lambda data, key, i: solvers.dp_objective_perturbation(
        *_of_unit_length(data), regularization=0.1 * i, **_budget(key, i)
    ),
    "dp_sample_and_aggregate": lambda data, key, i: solvers.dp_sample_and_aggregate(
        _mean_of_features, data, num_subsets=320, diameter=10.0 + i, **_budget(key, i)
    ),
    "dp_quantile": lambda data, key, i: solvers.dp_quantile(
        data[1], key=key, epsilon=0.5 + i / 10
    ),
    "dp_quantile, several": lambda data, key, i: solvers.dp_quantile(
        data[1], key=key, epsilon=0.5 + i / 10, quantile=(0.1, 0.3, 0.5, 0.9)
    ),
    "dp_histogram": lambda data, key, i: solvers.dp_histogram(
        data[1], **_budget(key, i)
    ),
    "dp_histogram, edges": lambda data, key, i: solvers.dp_histogram(
        data[1], edges=jnp.arange(-3.0, 4.0), **_budget(key, i)
    ),
    "dp_group_means": lambda data, key, i: solvers.dp_group_means(
        data[1],
        (_array(data[0])[:, 0] > 0).astype("int32"),
        num_groups=2,
        quantiles=(0.3,),
        **_budget(key, i),
    ),
    "dp_center_and_scale": lambda data, key, i: solvers.dp_center_and_scale(
        data[0], **_budget(key, i)
    ),
}


def _mean_of_features(batch: Any) -> jax.Array:
    return jnp.mean(batch[0], axis=0)


def released(name: str, data: Any, key: jax.Array, i: int = 0, /, **others: Any) -> Any:
    """Runs a solver as it is registered, but with other arguments."""
    solver = name.split(",")[0]
    inner = getattr(solvers, solver)

    def changed(*args, **options):
        return inner(*args, **(options | others))

    with mock.patch.object(solvers, solver, changed):
        return SOLVERS[name](data, key, i)


def names(parts: Mapping[str, Any]) -> set[str]:
    return {name.split(",")[0] for name in parts}


def bounded_estimators(size: float) -> dict[str, Any]:
    """All estimators with a finite sensitivity that are means of influences."""
    made = {name: make(size) for name, make in ESTIMATORS.items()}
    return {
        name: one
        for name, one in made.items()
        if names({name: None}) not in ({"Mean"}, {"TrimmedMean"})
    }
