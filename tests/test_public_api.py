"""The public contract: names, signatures, docstrings, and a light import."""

import inspect
import json
import subprocess
import sys

import pytest

import dpjax
from dpjax import (
    accounting,
    batching,
    constraints,
    datasets,
    estimators,
    gradients,
    losses,
    mechanisms,
    solvers,
    transforms,
)

PACKAGES = [
    dpjax,
    accounting,
    constraints,
    datasets,
    estimators,
    gradients,
    mechanisms,
    solvers,
    transforms,
]

# Parameters in order; those after * are keyword-only, "=" marks a default.
SIGNATURES = {
    dpjax.per_sample_grad: "loss_fn * has_aux=",
    dpjax.robust_grad: (
        "loss_fn estimator * microbatch_size= normalize_by= return_values= has_aux="
    ),
    dpjax.dp_sgd: (
        "learning_rate estimator * noise_multiplier key normalize_by= relation="
    ),
    estimators.Mean: "",
    estimators.Clipping: "l2_clip_norm",
    estimators.Truncation: "threshold",
    estimators.Winsorization: "threshold",
    estimators.SmoothedTruncation: "scale beta=",
    estimators.MedianOfMeans: "inner num_groups",
    estimators.Estimator.__call__: ("self samples is_padding_example= * normalize_by="),
    estimators.Estimator.influence: "self sample",
    estimators.Estimator.sensitivity: "self num_samples num_coordinates relation=",
    estimators.SmoothedTruncation.for_moment: (
        "moment_bound * num_samples num_coordinates= num_steps= epsilon delta"
        " failure_prob= beta= calibration="
    ),
    estimators.Truncation.for_moment: (
        "moment_bound * moment_order= num_samples num_coordinates= num_steps= epsilon"
        " delta failure_prob= calibration="
    ),
    mechanisms.gaussian: "key value * stddev",
    mechanisms.exponential: "key scores * epsilon sensitivity_range num_chunks=",
    mechanisms.permute_and_flip: "key scores * epsilon sensitivity_range num_chunks=",
    mechanisms.peeling: "key vector * sparsity selection_scale release_stddev",
    mechanisms.laplace_peeling: "key vector * sparsity scale",
    mechanisms.laplace: "key value * scale",
    accounting.gaussian_stddev: "epsilon delta * sensitivity num_releases=",
    accounting.gaussian_epsilon: "stddev delta * sensitivity num_releases=",
    accounting.noise_multiplier: (
        "epsilon delta * num_steps sampling_prob= num_samples= batch_size= relation="
    ),
    accounting.rho_to_epsilon: "rho delta * conversion=",
    accounting.epsilon_to_rho: "epsilon delta * conversion=",
    accounting.PrivacyGuarantee: "epsilon delta relation dp_event description",
    transforms.aggregate: "estimator * normalize_by=",
    transforms.privatize: ("estimator * noise_multiplier key normalize_by= relation="),
    transforms.add_gaussian_noise: "* stddev key",
    transforms.project: "projection_fn",
    transforms.average_iterates: "",
    transforms.average_params: "state",
    batching.Full: "",
    batching.Disjoint: "",
    batching.Poisson: "expected_batch_size capacity=",
    batching.WithoutReplacement: "batch_size",
    batching.Batching.draw: "self key data * step num_steps",
    solvers.Solution: "params privacy stats",
    solvers.Watch: "callback every=",
    solvers.private_mean: (
        "samples * key epsilon delta estimator= moment_bound= calibration="
    ),
    solvers.robust_gradient_descent: (
        "loss_fn params data * estimator learning_rate num_steps= batching= key="
        " projection_fn= averaging= microbatch_size= watch="
    ),
    solvers.dp_gradient_descent: (
        "loss_fn params data * key epsilon delta estimator learning_rate num_steps="
        " batching= projection_fn= averaging= calibration= microbatch_size= watch="
    ),
}


def described(function):
    parts, has_star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parts, has_star = [*parts, "*"], True
        has_default = parameter.default is not parameter.empty
        parts.append(parameter.name + "=" * has_default)
    return " ".join(parts)


@pytest.mark.parametrize(
    "function", SIGNATURES, ids=lambda function: function.__qualname__
)
def test_signature(function):
    assert described(function) == SIGNATURES[function]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_names(package):
    assert len(package.__all__) == len(set(package.__all__))
    for name in package.__all__:
        assert hasattr(package, name)
        assert not name.startswith("_")


# Plain records, which the functions that make or take them explain, and aliases.
RECORDS = {
    "dpjax.ADD_OR_REMOVE_ONE",
    "dpjax.REPLACE_ONE",
    "dpjax.NeighboringRelation",
    "dpjax.datasets.Dataset",
    "dpjax.datasets.Law",
    "dpjax.datasets.Problem",
    "dpjax.estimators.ADD_OR_REMOVE_ONE",
    "dpjax.estimators.REPLACE_ONE",
    "dpjax.estimators.NeighboringRelation",
    "dpjax.estimators.CoordinateEstimator",
    "dpjax.estimators.Estimator",
    "dpjax.estimators.Rows",
    "dpjax.solvers.Solution",
    "dpjax.solvers.Watch",
    "dpjax.transforms.AddGaussianNoiseState",
    "dpjax.transforms.AverageIteratesState",
    "dpjax.transforms.PrivatizeState",
}


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in PACKAGES for name in package.__all__]
    + [(losses, name) for name in vars(losses) if name in ("squared", "huber")]
    + [(batching, name) for name in ("Full", "Disjoint", "Poisson")],
)
def test_docstrings_have_an_example_or_a_reference(package, name):
    value = getattr(package, name)
    if inspect.ismodule(value):
        assert value.__doc__
        return
    if f"{package.__name__}.{name}" in RECORDS:
        return
    documentation = inspect.getdoc(value) or ""
    assert "Example:" in documentation or "Reference:" in documentation


def test_import_needs_no_extras():
    # Run anew, since the tests themselves have imported much.
    script = """
import json, sys
import dpjax
print(json.dumps([name.split(".")[0] for name in sys.modules]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    extras = {"typer", "rich", "matplotlib", "polars", "flax", "orbax", "pytest"}
    assert not loaded & extras
    assert {"jax", "optax", "dp_accounting"} <= loaded
