"""The parts of dpjax, one line each: what the tests of a layer run over.

A new estimator, mechanism, transform, solver, constraint, loss or batching enters
here, under its public name. Its promises are then tested: contracts, sensitivity under
attack, sweeps, shards, audits; `test_registry.py` tells what is missing. A name with a
comma is a variant of the part before it.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import optax

from dpjax import (
    _validate,
    batching,
    constraints,
    estimators,
    losses,
    mechanisms,
    solvers,
    transforms,
)


class Part(NamedTuple):
    """A part of dpjax.

    Attributes:
        make: makes it, or what it releases.
        takes_samples: of a transform, whether updates are per-sample gradients.
    """

    make: Callable[..., Any]
    takes_samples: bool = False


# make(size) -> the estimator, its limit in proportion to size, or 1.
ESTIMATORS = {
    "Mean": Part(lambda size: estimators.Mean()),
    "Clipping": Part(estimators.Clipping),
    "Truncation": Part(estimators.Truncation),
    "Winsorization": Part(estimators.Winsorization),
    "SmoothedTruncation": Part(estimators.SmoothedTruncation),
    "SmoothedClipping": Part(estimators.SmoothedClipping),
    "Normalization": Part(estimators.Normalization),
    "Grouped": Part(lambda size: estimators.Grouped(estimators.Clipping(size), ("",))),
    "SmoothedTruncation, beta 9": Part(
        lambda size: estimators.SmoothedTruncation(size, 9.21)
    ),
    "SmoothedTruncation, beta 50": Part(
        lambda size: estimators.SmoothedTruncation(size, 50.0)
    ),
    "MedianOfMeans": Part(
        lambda size: estimators.MedianOfMeans(estimators.Clipping(size), 3)
    ),
    "MedianOfMeans, of truncation": Part(
        lambda size: estimators.MedianOfMeans(estimators.Truncation(size), 4)
    ),
    "MedianOfMeans, one group": Part(
        lambda size: estimators.MedianOfMeans(estimators.SmoothedTruncation(size), 1)
    ),
    "TrimmedMean": Part(lambda size: estimators.TrimmedMean(0.2, -size, size)),
}

# make(key, value) -> a release of the value, an array of shape (n,).
MECHANISMS = {
    "gaussian": Part(functools.partial(mechanisms.gaussian, stddev=0.5)),
    "laplace": Part(functools.partial(mechanisms.laplace, scale=0.5)),
    "laplace, l2": Part(functools.partial(mechanisms.laplace, scale=0.5, norm="l2")),
    "arsinh_normal": Part(
        functools.partial(mechanisms.arsinh_normal, scale=0.5, sigma=0.7)
    ),
    "laplace_log_normal": Part(
        functools.partial(mechanisms.laplace_log_normal, scale=0.5, sigma=0.7)
    ),
    "discrete_gaussian": Part(
        lambda key, value: mechanisms.discrete_gaussian(value.shape, stddev=3)
    ),
    "exponential": Part(
        functools.partial(mechanisms.exponential, epsilon=1.0, sensitivity_range=0.5)
    ),
    "permute_and_flip": Part(
        functools.partial(
            mechanisms.permute_and_flip, epsilon=1.0, sensitivity_range=0.5
        )
    ),
    "peeling": Part(
        functools.partial(
            mechanisms.peeling, sparsity=2, selection_scale=0.5, release_stddev=0.5
        )
    ),
    "peeling, laplace": Part(
        functools.partial(
            mechanisms.peeling,
            sparsity=2,
            selection_scale=0.5,
            release_stddev=0.5,
            noise="laplace",
        )
    ),
}

_BALL = functools.partial(optax.projections.projection_l2_ball, scale=0.5)

# make(key) -> the transform.
TRANSFORMS = {
    "aggregate": Part(
        lambda key: transforms.aggregate(estimators.Truncation(1.0)), takes_samples=True
    ),
    "privatize": Part(
        lambda key: transforms.privatize(
            estimators.SmoothedTruncation(1.0), noise_multiplier=0.5, key=key
        ),
        takes_samples=True,
    ),
    "privatize, adaptive": Part(
        lambda key: transforms.privatize(
            estimators.AdaptiveThreshold(
                estimators.Clipping(1.0), lower=0.01, upper=100.0
            ),
            noise_multiplier=0.5,
            key=key,
        ),
        takes_samples=True,
    ),
    "privatize, scaled": Part(
        lambda key: transforms.privatize(
            estimators.Scaled(
                estimators.Winsorization(1.0),
                {"w": jnp.array([[0.3, 1.0, 2.0]] * 2), "b": 0.1},
            ),
            noise_multiplier=0.5,
            key=key,
        ),
        takes_samples=True,
    ),
    "privatize, correlated": Part(
        lambda key: transforms.privatize(
            estimators.Truncation(1.0),
            noise_multiplier=0.5,
            key=key,
            noise=mechanisms.BinaryTree(16),
        ),
        takes_samples=True,
    ),
    "privatize, trimmed mean": Part(
        lambda key: transforms.privatize(
            estimators.TrimmedMean(0.2, -1.0, 1.0), noise_multiplier=0.02, key=key
        ),
        takes_samples=True,
    ),
    "dp_sgd": Part(
        lambda key: transforms.dp_sgd(
            0.1, estimators.Truncation(1.0), noise_multiplier=0.5, key=key
        ),
        takes_samples=True,
    ),
    "chain": Part(
        lambda key: transforms.chain(
            transforms.privatize(
                estimators.Clipping(1.0), noise_multiplier=0.5, key=key
            ),
            optax.trace(0.9),
        ),
        takes_samples=True,
    ),
    "accumulate": Part(
        lambda key: transforms.accumulate(
            transforms.privatize(
                estimators.Clipping(1.0), noise_multiplier=0.5, key=key, normalize_by=32
            ),
            num_pieces=2,
        ),
        takes_samples=True,
    ),
    "add_gaussian_noise": Part(
        lambda key: transforms.add_gaussian_noise(stddev=0.1, key=key)
    ),
    "frank_wolfe": Part(
        lambda key: transforms.frank_wolfe(
            constraints.L1Ball(4.0), epsilon=1.0, sensitivity=0.1, limit=1.0, key=key
        )
    ),
    "peel": Part(
        lambda key: transforms.peel(4, rho=1.0, sensitivity=0.1, limit=1.0, key=key)
    ),
    "peel, laplace": Part(
        lambda key: transforms.peel(
            4, rho=1.0, sensitivity=0.1, limit=1.0, key=key, noise="laplace"
        )
    ),
    "project": Part(lambda key: transforms.project(_BALL)),
    "average_iterates": Part(lambda key: transforms.average_iterates()),
    "scale_by_dp_adam": Part(
        lambda key: transforms.chain(
            transforms.privatize(
                estimators.Clipping(1.0), noise_multiplier=0.5, key=key
            ),
            transforms.scale_by_dp_adam(),
        ),
        takes_samples=True,
    ),
}

CONSTRAINTS = {
    "L1Ball": Part(constraints.L1Ball),
    "L2Ball": Part(constraints.L2Ball),
    "Simplex": Part(constraints.Simplex),
    "Box": Part(lambda size: constraints.Box(-size / 3, size / 2)),
    "Polytope": Part(
        lambda size: constraints.Polytope(size * jnp.array([[1.0, 0], [0, 1], [0, 0]]))
    ),
}

# make() -> the loss of (features, target), for parameters (d,); (d, 3) for softmax.
LOSSES = {
    "squared": Part(lambda: losses.squared),
    "absolute": Part(lambda: losses.absolute),
    "logistic": Part(lambda: losses.logistic),
    "huber": Part(lambda: losses.huber(1.5)),
    "biweight": Part(lambda: losses.biweight(2.5)),
    "poisson": Part(lambda: losses.poisson(4.0)),
    "gamma": Part(lambda: losses.gamma(min_mean=0.1, max_target=20.0)),
    "tweedie": Part(
        lambda: losses.tweedie(1.5, min_mean=0.1, max_mean=5.0, max_target=20.0)
    ),
    "log_link": Part(lambda: losses.log_link(1.25)),
    "softmax": Part(lambda: losses.softmax(3)),
    "regularized": Part(lambda: losses.regularized(losses.squared, l2=0.3)),
}

BATCHINGS = {
    "Full": Part(batching.Full),
    "Disjoint": Part(batching.Disjoint),
    "Poisson": Part(lambda: batching.Poisson(3.0)),
    "WithoutReplacement": Part(lambda: batching.WithoutReplacement(3)),
    "CyclicPoisson": Part(lambda: batching.CyclicPoisson(2.0, 2)),
    "BallsInBins": Part(lambda: batching.BallsInBins(2)),
    "ShuffledEpochs": Part(lambda: batching.ShuffledEpochs(3)),
}


def _budget(key: jax.Array, i: int) -> dict[str, Any]:
    # Budgets are near each other: where another mechanism becomes the better one, it is
    # compiled.
    return {"key": key, "epsilon": 0.5 + i / 10, "delta": 1e-5 / (1 + i)}


def _start(data: Any) -> jax.Array:
    return jnp.zeros(data[0].shape[1])


def _descent(estimator_fn: Callable[[float], Any], **options: Any):
    def release(data, key, i):
        return solvers.dp_gradient_descent(
            losses.squared,
            _start(data),
            data,
            estimator=estimator_fn(1.0 + i),
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
            **_budget(key, i),
            **options,
        )

    return release


def _sco(solver, data, i, **options):
    return solver(
        losses.squared,
        _start(data),
        data,
        moment_bound=1.0 + i,
        moment_order=8.0,
        diameter=2.0 + i,
        **options,
    )


def _of_unit_length(data: Any) -> tuple[jax.Array, jax.Array]:
    features, targets = data
    norms = jnp.linalg.norm(features, axis=1, keepdims=True)
    return features / jnp.maximum(norms, 1), jnp.sign(targets)


_GRADIENT_DESCENT = (
    "loss_fn params data * key epsilon delta estimator learning_rate num_steps="
    " batching= projection_fn= averaging= execution="
)


def enough(name: str, few: int) -> int:
    """Returns how many records a solver of SOLVERS needs, if others need few."""
    return 320 if "aggregate" in name else 800 if "_sco" in name else few


# make(data, key, i) -> a release of data = (features, targets), whose numbers (epsilon,
# scales, step sizes) depend on i.
SOLVERS = {
    "dp_gradient_descent": Part(_descent(estimators.SmoothedTruncation)),
    "dp_gradient_descent, disjoint": Part(
        _descent(estimators.Winsorization, batching=batching.Disjoint())
    ),
    "dp_gradient_descent, clipping": Part(
        _descent(estimators.Clipping, averaging=True)
    ),
    "robust_gradient_descent": Part(
        lambda data, key, i: solvers.robust_gradient_descent(
            losses.squared,
            _start(data),
            data,
            estimator=estimators.Winsorization(1.0 + i),
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
        )
    ),
    "dp_localized_sco": Part(
        lambda data, key, i: _sco(
            solvers.dp_localized_sco,
            data,
            i,
            smoothness=2.0,
            num_steps=3,
            **_budget(key, i),
        )
    ),
    "dp_one_pass_sco": Part(
        lambda data, key, i: _sco(solvers.dp_one_pass_sco, data, i, **_budget(key, i))
    ),
    "dp_one_pass_sco, pure": Part(
        lambda data, key, i: _sco(
            solvers.dp_one_pass_sco, data, i, **_budget(key, i) | {"delta": 0.0}
        )
    ),
    "dp_mean": Part(
        lambda data, key, i: solvers.dp_mean(
            data[0], estimator=estimators.SmoothedTruncation(1.0 + i), **_budget(key, i)
        )
    ),
    "dp_mean, untuned": Part(
        lambda data, key, i: solvers.dp_mean(data[0], **_budget(key, i))
    ),
    "dp_mean, geometric median": Part(
        lambda data, key, i: solvers.dp_mean(
            data[0], method="geometric_median", **_budget(key, i)
        )
    ),
    "dp_frank_wolfe": Part(
        lambda data, key, i: solvers.dp_frank_wolfe(
            losses.squared,
            _start(data),
            data,
            key=key,
            epsilon=0.5 + i / 10,
            constraint=constraints.L1Ball(1.0 + i),
            estimator=estimators.Winsorization(1.0 + i),
            num_steps=5,
            learning_rate=0.1 + 0.1 * i,
        )
    ),
    "dp_additive_model": Part(
        lambda data, key, i: solvers.dp_additive_model(
            "squared", data, smooth=(0, 2, 4), max_weight=1.0 + i, **_budget(key, i)
        )
    ),
    "dp_linear_model": Part(
        lambda data, key, i: solvers.dp_linear_model(
            "squared", data, max_weight=1.0 + i, **_budget(key, i)
        )
    ),
    "dp_lasso": Part(
        lambda data, key, i: solvers.dp_lasso(
            *data, radius=1.0 + i, threshold=2.0 + i, num_steps=5, **_budget(key, i)
        )
    ),
    "dp_iterative_hard_thresholding": Part(
        lambda data, key, i: solvers.dp_iterative_hard_thresholding(
            losses.squared,
            _start(data),
            data,
            sparsity=2,
            estimator=estimators.SmoothedTruncation(1.0 + i),
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
            **_budget(key, i),
        )
    ),
    "dp_sparse_linear_regression": Part(
        lambda data, key, i: solvers.dp_sparse_linear_regression(
            *data,
            sparsity=2,
            threshold=2.0 + i,
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
            **_budget(key, i),
        )
    ),
    "dp_l1_regression": Part(
        lambda data, key, i: solvers.dp_l1_regression(
            *data,
            key=key,
            epsilon=0.5 + i / 10,
            candidates=jnp.linspace(-1.0, 1.0, 48).reshape(8, 6),
            residual_moment_bound=1.0 + i,
        )
    ),
    "dp_objective_perturbation": Part(
        lambda data, key, i: solvers.dp_objective_perturbation(
            *_of_unit_length(data), regularization=0.1 * i, **_budget(key, i)
        )
    ),
    "dp_sample_and_aggregate": Part(
        lambda data, key, i: solvers.dp_sample_and_aggregate(
            _mean_of_features,
            data,
            num_subsets=320,
            diameter=10.0 + i,
            **_budget(key, i),
        )
    ),
    "dp_quantile": Part(
        lambda data, key, i: solvers.dp_quantile(data[1], key=key, epsilon=0.5 + i / 10)
    ),
    "dp_histogram": Part(
        lambda data, key, i: solvers.dp_histogram(data[1], **_budget(key, i))
    ),
    "dp_histogram, edges": Part(
        lambda data, key, i: solvers.dp_histogram(
            data[1], edges=jnp.arange(-3.0, 4.0), **_budget(key, i)
        )
    ),
    "dp_group_means": Part(
        lambda data, key, i: solvers.dp_group_means(
            data[1],
            (_validate.arrays(data[0])[:, 0] > 0).astype("int32"),
            num_groups=2,
            quantiles=(0.3,),
            **_budget(key, i),
        )
    ),
    "dp_center_and_scale": Part(
        lambda data, key, i: solvers.dp_center_and_scale(data[0], **_budget(key, i))
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
        return SOLVERS[name].make(data, key, i)


def names(parts: Mapping[str, Part]) -> set[str]:
    """The public names of a registry, without variants."""
    return {name.split(",")[0] for name in parts}


def bounded_estimators(size: float) -> dict[str, Any]:
    """All estimators with a finite sensitivity that are means of influences."""
    made = {name: part.make(size) for name, part in ESTIMATORS.items()}
    return {
        name: one
        for name, one in made.items()
        if names({name: None}) not in ({"Mean"}, {"TrimmedMean"})
    }
