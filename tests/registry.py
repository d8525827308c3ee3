"""The parts of dpjax, one line each: what the tests of a layer run over.

A new estimator, mechanism, transform, solver, constraint, loss or batching enters
here, under its public name. Its signature and its promises are then tested: contracts,
sensitivity under attack, sweeps, shards, audits; `test_registry.py` tells what is
missing. A name with a comma is a variant of the part before it.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
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


class Part(NamedTuple):
    """A part of dpjax.

    Attributes:
        signature: parameters in order; those after * are keyword-only, "=" marks a
            default. None for a variant.
        make: makes it, or what it releases.
        takes_samples: of a transform, whether updates are per-sample gradients.
    """

    signature: str | None
    make: Callable[..., Any]
    takes_samples: bool = False


# make(size) -> the estimator, its limit in proportion to size, or 1.
ESTIMATORS = {
    "Mean": Part("", lambda size: estimators.Mean()),
    "Clipping": Part("l2_clip_norm", estimators.Clipping),
    "Truncation": Part("threshold", estimators.Truncation),
    "Winsorization": Part("threshold", estimators.Winsorization),
    "SmoothedTruncation": Part("scale beta=", estimators.SmoothedTruncation),
    "SmoothedClipping": Part("scale beta=", estimators.SmoothedClipping),
    "Normalization": Part("offset", estimators.Normalization),
    "Grouped": Part(
        "estimator groups",
        lambda size: estimators.Grouped(estimators.Clipping(size), ("",)),
    ),
    "SmoothedTruncation, beta 9": Part(
        None, lambda size: estimators.SmoothedTruncation(size, 9.21)
    ),
    "SmoothedTruncation, beta 50": Part(
        None, lambda size: estimators.SmoothedTruncation(size, 50.0)
    ),
    "MedianOfMeans": Part(
        "inner num_groups",
        lambda size: estimators.MedianOfMeans(estimators.Clipping(size), 3),
    ),
    "MedianOfMeans, of truncation": Part(
        None, lambda size: estimators.MedianOfMeans(estimators.Truncation(size), 4)
    ),
    "MedianOfMeans, one group": Part(
        None,
        lambda size: estimators.MedianOfMeans(estimators.SmoothedTruncation(size), 1),
    ),
    "TrimmedMean": Part(
        "trim_fraction lower upper relative_spread=",
        lambda size: estimators.TrimmedMean(0.2, -size, size),
    ),
}

# make(key, value) -> a release of the value, an array of shape (n,).
MECHANISMS = {
    "gaussian": Part(
        "key value * stddev",
        functools.partial(mechanisms.gaussian, stddev=0.5),
    ),
    "laplace": Part(
        "key value * scale", functools.partial(mechanisms.laplace, scale=0.5)
    ),
    "arsinh_normal": Part(
        "key value * scale sigma",
        functools.partial(mechanisms.arsinh_normal, scale=0.5, sigma=0.7),
    ),
    "laplace_log_normal": Part(
        "key value * scale sigma",
        functools.partial(mechanisms.laplace_log_normal, scale=0.5, sigma=0.7),
    ),
    "discrete_gaussian": Part(
        "shape * stddev random_bytes=",
        lambda key, value: mechanisms.discrete_gaussian(value.shape, stddev=3),
    ),
    "exponential": Part(
        "key scores * epsilon sensitivity_range num_chunks= axis_name=",
        functools.partial(mechanisms.exponential, epsilon=1.0, sensitivity_range=0.5),
    ),
    "permute_and_flip": Part(
        "key scores * epsilon sensitivity_range num_chunks= axis_name=",
        functools.partial(
            mechanisms.permute_and_flip, epsilon=1.0, sensitivity_range=0.5
        ),
    ),
    "peeling": Part(
        "key vector * sparsity selection_scale release_stddev noise=",
        functools.partial(
            mechanisms.peeling, sparsity=2, selection_scale=0.5, release_stddev=0.5
        ),
    ),
    "peeling, laplace": Part(
        None,
        functools.partial(
            mechanisms.peeling,
            sparsity=2,
            selection_scale=0.5,
            release_stddev=0.5,
            noise="laplace",
        ),
    ),
}

_BALL = functools.partial(optax.projections.projection_l2_ball, scale=0.5)

# make(key) -> the transform.
TRANSFORMS = {
    "aggregate": Part(
        "estimator * normalize_by= axis_name=",
        lambda key: transforms.aggregate(estimators.Truncation(1.0)),
        takes_samples=True,
    ),
    "privatize": Part(
        "estimator * noise_multiplier key normalize_by= relation= sampled= axis_name="
        " noise=",
        lambda key: transforms.privatize(
            estimators.SmoothedTruncation(1.0), noise_multiplier=0.5, key=key
        ),
        takes_samples=True,
    ),
    "privatize, adaptive": Part(
        None,
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
        None,
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
        None,
        lambda key: transforms.privatize(
            estimators.Truncation(1.0),
            noise_multiplier=0.5,
            key=key,
            noise=mechanisms.BinaryTree(16),
        ),
        takes_samples=True,
    ),
    "privatize, trimmed mean": Part(
        None,
        lambda key: transforms.privatize(
            estimators.TrimmedMean(0.2, -1.0, 1.0), noise_multiplier=0.02, key=key
        ),
        takes_samples=True,
    ),
    "dp_sgd": Part(
        "learning_rate estimator * noise_multiplier key normalize_by= relation="
        " axis_name= noise=",
        lambda key: transforms.dp_sgd(
            0.1, estimators.Truncation(1.0), noise_multiplier=0.5, key=key
        ),
        takes_samples=True,
    ),
    "chain": Part(
        "transforms",
        lambda key: transforms.chain(
            transforms.privatize(
                estimators.Clipping(1.0), noise_multiplier=0.5, key=key
            ),
            optax.trace(0.9),
        ),
        takes_samples=True,
    ),
    "add_gaussian_noise": Part(
        "* stddev key",
        lambda key: transforms.add_gaussian_noise(stddev=0.1, key=key),
    ),
    "frank_wolfe": Part(
        "constraint * epsilon sensitivity limit key learning_rate= mechanism=",
        lambda key: transforms.frank_wolfe(
            constraints.L1Ball(4.0), epsilon=1.0, sensitivity=0.1, limit=1.0, key=key
        ),
    ),
    "peel": Part(
        "sparsity * rho sensitivity limit key noise=",
        lambda key: transforms.peel(4, rho=1.0, sensitivity=0.1, limit=1.0, key=key),
    ),
    "peel, laplace": Part(
        None,
        lambda key: transforms.peel(
            4, rho=1.0, sensitivity=0.1, limit=1.0, key=key, noise="laplace"
        ),
    ),
    "project": Part("projection_fn", lambda key: transforms.project(_BALL)),
    "average_iterates": Part(
        "* power= decay=", lambda key: transforms.average_iterates()
    ),
    "scale_by_dp_adam": Part(
        "* b1= b2= eps= floor=",
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
    "L1Ball": Part("radius", constraints.L1Ball),
    "L2Ball": Part("radius", constraints.L2Ball),
    "Simplex": Part("radius", constraints.Simplex),
    "Box": Part("lower upper", lambda size: constraints.Box(-size / 3, size / 2)),
    "Polytope": Part(
        "vertices",
        lambda size: constraints.Polytope(size * jnp.array([[1.0, 0], [0, 1], [0, 0]])),
    ),
}

# make() -> the loss of (features, target), for parameters (d,); (d, 3) for softmax.
LOSSES = {
    "squared": Part("params example", lambda: losses.squared),
    "absolute": Part("params example", lambda: losses.absolute),
    "logistic": Part("params example", lambda: losses.logistic),
    "huber": Part("threshold", lambda: losses.huber(1.5)),
    "biweight": Part("threshold", lambda: losses.biweight(2.5)),
    "poisson": Part("max_mean * max_target=", lambda: losses.poisson(4.0)),
    "gamma": Part(
        "* min_mean max_target", lambda: losses.gamma(min_mean=0.1, max_target=20.0)
    ),
    "tweedie": Part(
        "power * min_mean max_mean max_target",
        lambda: losses.tweedie(1.5, min_mean=0.1, max_mean=5.0, max_target=20.0),
    ),
    "log_link": Part("power", lambda: losses.log_link(1.25)),
    "softmax": Part("num_classes", lambda: losses.softmax(3)),
    "regularized": Part(
        "loss_fn l2", lambda: losses.regularized(losses.squared, l2=0.3)
    ),
}

BATCHINGS = {
    "Full": Part("", batching.Full),
    "Disjoint": Part("", batching.Disjoint),
    "Poisson": Part("expected_batch_size capacity=", lambda: batching.Poisson(3.0)),
    "WithoutReplacement": Part("batch_size", lambda: batching.WithoutReplacement(3)),
    "CyclicPoisson": Part(
        "expected_batch_size cycle_length capacity=",
        lambda: batching.CyclicPoisson(2.0, 2),
    ),
    "BallsInBins": Part("num_bins capacity=", lambda: batching.BallsInBins(2)),
    "ShuffledEpochs": Part("batch_size", lambda: batching.ShuffledEpochs(3)),
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


def _of_unit_length(data: Any) -> tuple[jax.Array, jax.Array]:
    features, targets = data
    norms = jnp.linalg.norm(features, axis=1, keepdims=True)
    return features / jnp.maximum(norms, 1), jnp.sign(targets)


_GRADIENT_DESCENT = (
    "loss_fn params data * key epsilon delta estimator learning_rate num_steps="
    " batching= projection_fn= averaging= execution="
)

# make(data, key, i) -> a release of data = (features, targets), whose numbers (epsilon,
# scales, step sizes) depend on i.
SOLVERS = {
    "dp_gradient_descent": Part(
        _GRADIENT_DESCENT, _descent(estimators.SmoothedTruncation)
    ),
    "dp_gradient_descent, disjoint": Part(
        None, _descent(estimators.Winsorization, batching=batching.Disjoint())
    ),
    "dp_gradient_descent, clipping": Part(
        None, _descent(estimators.Clipping, averaging=True)
    ),
    "robust_gradient_descent": Part(
        "loss_fn params data * estimator learning_rate num_steps= batching= key="
        " projection_fn= averaging= execution=",
        lambda data, key, i: solvers.robust_gradient_descent(
            losses.squared,
            _start(data),
            data,
            estimator=estimators.Winsorization(1.0 + i),
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
        ),
    ),
    "dp_mean": Part(
        "samples * key epsilon delta estimator= moment_bound=",
        lambda data, key, i: solvers.dp_mean(
            data[0],
            estimator=estimators.SmoothedTruncation(1.0 + i),
            **_budget(key, i),
        ),
    ),
    "dp_frank_wolfe": Part(
        "loss_fn params data * key epsilon delta= constraint estimator= moment_bound="
        " num_steps= learning_rate= calibration= execution=",
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
        ),
    ),
    "dp_linear_model": Part(
        "loss data * key epsilon= delta noise_multiplier= intercept= max_features="
        " offsets= weights= max_weight= execution=",
        lambda data, key, i: solvers.dp_linear_model(
            "squared", data, max_weight=1.0 + i, **_budget(key, i)
        ),
    ),
    "dp_lasso": Part(
        "features targets * key epsilon delta= radius= threshold= num_steps="
        " fourth_moment_bound= calibration= execution=",
        lambda data, key, i: solvers.dp_lasso(
            *data, radius=1.0 + i, threshold=2.0 + i, num_steps=5, **_budget(key, i)
        ),
    ),
    "dp_iterative_hard_thresholding": Part(
        "loss_fn params data * key epsilon delta= sparsity estimator learning_rate"
        " num_steps= calibration= execution=",
        lambda data, key, i: solvers.dp_iterative_hard_thresholding(
            losses.squared,
            _start(data),
            data,
            sparsity=2,
            estimator=estimators.SmoothedTruncation(1.0 + i),
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
            **_budget(key, i),
        ),
    ),
    "dp_sparse_linear_regression": Part(
        "features targets * key epsilon delta sparsity threshold= learning_rate="
        " num_steps= fourth_moment_bound= radius= calibration= execution=",
        lambda data, key, i: solvers.dp_sparse_linear_regression(
            *data,
            sparsity=2,
            threshold=2.0 + i,
            learning_rate=0.1 + 0.05 * i,
            num_steps=5,
            **_budget(key, i),
        ),
    ),
    "dp_l1_regression": Part(
        "features targets * key epsilon candidates truncation= moment_order="
        " residual_moment_bound= failure_prob= calibration= chunk_size=",
        lambda data, key, i: solvers.dp_l1_regression(
            *data,
            key=key,
            epsilon=0.5 + i / 10,
            candidates=jnp.linspace(-1.0, 1.0, 48).reshape(8, 6),
            residual_moment_bound=1.0 + i,
        ),
    ),
    "dp_objective_perturbation": Part(
        "features labels * key epsilon delta regularization loss= calibration="
        " gradient_norm=",
        lambda data, key, i: solvers.dp_objective_perturbation(
            *_of_unit_length(data), regularization=0.1 * i, **_budget(key, i)
        ),
    ),
    "dp_sample_and_aggregate": Part(
        "fit_fn data * key epsilon delta num_subsets diameter center= overlap= spread="
        " vectorize= calibration=",
        lambda data, key, i: solvers.dp_sample_and_aggregate(
            _mean_of_features,
            data,
            num_subsets=320,
            diameter=10.0 + i,
            **_budget(key, i),
        ),
    ),
    "dp_quantile": Part(
        "samples * key epsilon quantile= edges=",
        lambda data, key, i: solvers.dp_quantile(
            data[1], key=key, epsilon=0.5 + i / 10
        ),
    ),
    "dp_center_and_scale": Part(
        "samples * key epsilon delta=",
        lambda data, key, i: solvers.dp_center_and_scale(data[0], **_budget(key, i)),
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
