"""Bad arguments: each name has its bad values, which all that take it refuse.

The message names the argument; the rest of its wording is nobody's contract. What is
bad beside another argument alone is tested next to the code that it belongs to.
"""

import inspect
import itertools
import math
from functools import partial
from unittest import mock

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import (
    accounting,
    audit,
    batching,
    constraints,
    datasets,
    estimators,
    losses,
    mechanisms,
    solvers,
    transforms,
    tuning,
)
from tests import registry

NAN, INF = math.nan, math.inf
POSITIVE = [0.0, -1.0, NAN, INF, None, "1"]
NON_NEGATIVE = POSITIVE[1:]
FAR = [1e31, 1e-30, jnp.array([1.0, -1.0])]  # of what is proved for floats
COUNT = [0, -1, 2.5, True, None, "3"]
PROBABILITY = [0.0, 1.0, -0.1, NAN, None, "1"]
WORD = ["loose", None, 1]
UNREADABLE = dp_accounting.UnsupportedDpEvent()
ESTIMATOR = [None, 1.0, "mean", estimators.Truncation]
ARRAY = [{}, 1.0, np.zeros((0, 2)), (np.zeros((3, 2)), np.zeros(4))]


def _each(names, values):
    return {name: values for name in names.split()}


BAD = {
    **_each(
        "epsilon rho diameter moment_bound smoothness sigma radius derivative_bound "
        "curvature_bound sensitivity_range max_weight threshold learning_rate beta "
        "l2_clip_norm residual_moment_bound truncation fourth_moment_bound floor "
        "expected_batch_size relative_spread max_mean max_target min_mean offset "
        "spread noise_multiplier tail_index degrees_of_freedom limit width multiplier",
        POSITIVE,
    ),
    **_each(
        "sensitivity stddev release_stddev selection_scale regularization l2 eps scale "
        "other_multiplier",
        NON_NEGATIVE,
    ),
    **_each(
        "num_samples num_steps num_coordinates num_releases num_selections num_groups "
        "num_bins batch_size capacity cycle_length num_shares max_records overlap "
        "num_features num_subsets chunk_size microbatch_size trim_count sample_size "
        "callback_every max_features sparsity num_classes num_params group_size "
        "max_participations min_separation num_pieces num_candidates num_bands",
        COUNT,
    ),
    **_each("failure_prob confidence monitor prior share trim_fraction", PROBABILITY),
    **_each("b1 b2 decay", [-0.1, 1.0, NAN]),
    **_each("lower upper", [NAN, INF, None, "1"]),
    **_each("mechanism conversion method norm user_gradient bound distribution", WORD),
    **_each("loss_fn projection_fn callback fit_fn derivative_fn value_fn", [3, "f"]),
    **_each("offsets weights", [np.ones(3)]),
    "data": ARRAY,
    "samples": [1.0, np.zeros((0, 2))],
    "features": [np.zeros(3), np.zeros((0, 2)), np.zeros((40, 6), complex)],
    "targets": [np.zeros((40, 2)), np.zeros(7), np.zeros(40, complex)],
    "labels": [np.zeros((40, 2)), np.zeros(7), np.array(["a"] * 40)],
    "delta": [-1e-9, 1.0, NAN, None],
    "quantile": [-0.1, 1.5, NAN, None],
    "sampling_prob": [0.0, 1.1, NAN],
    "sampling": [3, {"num_steps": 5}, "poisson"],
    "moment_order": [1.0, NAN, -2.0, None],
    "normalize_by": [0.0, -2, NAN, INF],
    "order": [1, 2.5, INF],
    "vector": [np.zeros((2, 3)), 1.0, np.zeros(3, int)],
    "scores": [jnp.zeros((2, 3)), jnp.zeros(()), jnp.zeros(0), jnp.zeros(3, int)],
    "noise": ["loose"],
    "categories": [(), ("a", "a"), ("1", "true"), *(("a", x) for x in ("", "NaT"))],
    "location": [NAN, INF],
    "event": [3.0, UNREADABLE],
    "base": [-0.1, UNREADABLE],
    "fn": [3],
    "records": ["all"],
    "mean_trials": [0.0, INF, NAN, None],
    "relation": ["replace", None],
    "value": [np.zeros(3, kind) for kind in (int, bool, complex)],
    "key": [0, None, np.zeros(2, np.uint32), jax.random.split(jax.random.key(0))],
    "execution": [print],
    "checkpoint": ["folder", 3],
    "estimator": ESTIMATOR,
    "inner": [*ESTIMATOR, estimators.MedianOfMeans(estimators.Mean(), 2)],
    "batching": ["full", 3, batching.Full],
    "loss": ["cubic", lambda w, x: 0.0],
    "edges": [[0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, INF]],
    "unit": ["", "  ", None, 3],
    "false_positive_rates": [-0.1, [0.5, 1.1], NAN, "low"],
    "intercept": [6, 1.0, True],
    "dp_event": [3.0, "event", dp_accounting.ComposedDpEvent([UNREADABLE])],
}


def _registered(layer, name, *args):
    """Returns a part of the registry, and the valid arguments that it has there."""
    part = getattr(layer, name)

    def bind(*args, **options):
        return inspect.signature(part).bind(*args, **options).arguments

    parts = registry.SOLVERS if layer is solvers else registry.TRANSFORMS
    with mock.patch.object(layer, name, bind):
        return part, parts[name](*args)


def _table(num_samples):
    rows = np.random.default_rng(0).normal(size=(num_samples, 6)).astype(np.float32)
    return rows, rows[:, 0]


def _of_size(part):
    """Returns a class that is registered by itself, and its first argument."""
    return part, {next(iter(inspect.signature(part).parameters)): 1.0}


def _of_value(part):
    """Returns a registered mechanism, with a key, a value, and its options."""
    first = [*inspect.signature(part.func).parameters][:2]
    return part.func, dict(zip(first, (KEY, X), strict=True)) | part.keywords


X, KEY, BUDGET = jnp.zeros(3), jax.random.key(0), {"epsilon": 1.0, "delta": 1e-5}
CLIPPING, BIWEIGHT = estimators.Clipping(1.0), losses.biweight(1.0)
TRUNCATION, TRIMMED = estimators.Truncation(1.0), estimators.TrimmedMean(0.1, -1.0, 1.0)
BOX = constraints.Box(-np.ones(3), np.ones(3))
EVENT = accounting.gaussian_event(1.0)
STATED = accounting.PrivacyGuarantee.of(1.0, 1e-5, dp_event=EVENT)
RUN = {"num_steps": 5, "sampling_prob": 0.5}
BATCHES = {"num_steps": 5, "num_samples": 9, "batch_size": 3}
SPENT = {"noise_multiplier": 1.0, "delta": 0.1}
SAMPLING = {"sampling": accounting.Sampling(**RUN)}
SMOOTH = {"smoothness": 0.1, "sigma": 0.7}
TWEEDIE = {"power": 1.5, "min_mean": 0.1, "max_mean": 5.0, "max_target": 20.0}
MOMENT = {"moment_bound": 1.0, "num_samples": 100, "num_coordinates": 3} | BUDGET
DISCRETE = {"sensitivity": 3.0, "num_coordinates": 2, "delta": 1e-5}
POLYTOPE = constraints.Polytope(np.eye(3))
LAPLACE = {"release": partial(mechanisms.laplace, scale=1.0), "key": KEY}
RELEASE = LAPLACE | {"data": X, "neighbor": X + 1}

# What is called, with valid arguments.
CALLS = [
    *(
        _registered(solvers, name, _table(registry.enough(name, 40)), KEY, 0)
        for name in registry.SOLVERS
        if "," not in name
    ),
    *(
        _registered(transforms, name, KEY)
        for name in registry.TRANSFORMS
        if "," not in name and name not in ("chain", "scale_by_dp_adam")
    ),
    *(
        _of_size(part)
        for part in (registry.ESTIMATORS | registry.CONSTRAINTS).values()
        if inspect.isclass(part)
    ),
    *(
        _of_value(part)
        for name, part in registry.MECHANISMS.items()
        if "," not in name and name != "discrete_gaussian"
    ),
    (accounting.PrivacyFilter, BUDGET),
    (
        accounting.PrivacyGuarantee,
        BUDGET | {"relation": dpjax.REPLACE_ONE, "dp_event": EVENT, "description": ""},
    ),
    (accounting.PrivacyGuarantee.of, BUDGET | {"dp_event": EVENT}),
    (STATED.tradeoff, {"false_positive_rates": 0.5}),
    (STATED.posterior, {"prior": 0.5, "false_positive_rates": 0.5}),
    (accounting.Sample, {"num_samples": 9, "sample_size": 3}),
    (accounting.Sample(9, 3).budget, BUDGET | {"delta": 1e-9}),
    (accounting.delta_of, {"event": EVENT, "epsilon": 1.0}),
    (accounting.epsilon_of, {"event": EVENT, "delta": 0.1}),
    (accounting.epsilon_to_rho, BUDGET),
    (accounting.rho_to_epsilon, {"rho": 1.0, "delta": 0.1}),
    (accounting.gaussian_stddev, BUDGET | {"sensitivity": 1.0}),
    (accounting.gaussian_epsilon, {"stddev": 1.0, "delta": 0.1, "sensitivity": 1.0}),
    *((accounting.Sampling, scheme) for scheme in (RUN, BATCHES)),
    (accounting.gaussian_event, {"noise_multiplier": 1.0}),
    (accounting.noise_multiplier, BUDGET | SAMPLING),
    (accounting.noise_multiplier_to_epsilon, SPENT | SAMPLING),
    (STATED.for_groups, {"group_size": 2}),
    (accounting.selection_epsilon, BUDGET | {"num_selections": 3}),
    (accounting.smooth_noise_multiplier, {"rho": 0.5} | SMOOTH),
    (accounting.tuning_epsilon, {"base": 1.0, "delta": 0.0, "mean_trials": 2.0}),
    (accounting.tuning_budget, BUDGET | {"mean_trials": 2.0}),
    (accounting.discrete_gaussian_stddev, DISCRETE | {"epsilon": 1.0}),
    (audit.epsilon_lower_bound, RELEASE),
    (audit.one_run, RELEASE | {"statistic": lambda x: x}),
    *(
        (kind.init, {"key": KEY, "num_samples": 12, "num_steps": 4})
        for kind in registry.BATCHINGS.values()
    ),
    (batching.BallsInBins, {"num_bins": 2}),
    (batching.CyclicPoisson, {"expected_batch_size": 2.0, "cycle_length": 2}),
    (batching.Poisson, {"expected_batch_size": 2.0}),
    (batching.ShuffledEpochs, {"batch_size": 2}),
    (batching.WithoutReplacement, {"batch_size": 2}),
    *(
        (kind(1.0).diameter, {"norm": "l1", "num_coordinates": 3})
        for kind in (constraints.L1Ball, constraints.L2Ball, constraints.Simplex)
    ),
    (constraints.Box, {"lower": 0.0, "upper": np.ones(3)}),
    (constraints.Polytope, {"vertices": np.eye(3)}),
    *(
        (method, {"norm": "l1", "num_coordinates": 3})
        for method in (BOX.diameter, POLYTOPE.diameter)
    ),
    (constraints.L1Ball(1.0).num_vertices, {"num_coordinates": 3}),
    (constraints.L1Ball(1.0).vertex, {"index": 0, "like": X}),
    (POLYTOPE.vertex, {"index": 0, "like": X}),
    (POLYTOPE.vertex_scores, {"gradient": X}),
    (BOX.minimize_linear, {"gradient": X}),
    *(
        (constraint.project, {"params": X})
        for constraint in (constraints.L1Ball(1.0), constraints.L2Ball(1.0), BOX)
    ),
    (constraints.L1Ball(1.0).contains, {"params": X, "tolerance": 0.1}),
    (constraints.grid_net, {"constraint": BOX, "num_coordinates": 3, "radius": 1.0}),
    (constraints.halton_net, {"box": BOX, "num_coordinates": 3, "num_candidates": 9}),
    *((law, {"scale": 1.0}) for law in (datasets.Normal, datasets.LogNormal)),
    (datasets.Categorical, {"categories": ("a",)}),
    (datasets.Numeric, {"scale": 1.0, "limit": 1.0}),
    (datasets.Pareto, {"tail_index": 2.0}),
    (datasets.StudentT, {"degrees_of_freedom": 2.0}),
    (datasets.Normal().sample, {"key": KEY, "shape": (2,)}),
    *(
        (model, {"key": KEY, "num_samples": 3, "num_features": 5})
        for model in (datasets.linear_model, datasets.logistic_model)
    ),
    (datasets.sparse_params, {"sparsity": 2}),
    (estimators.AdaptiveThreshold, {"estimator": CLIPPING, "lower": 0.1, "upper": 9.0}),
    (estimators.Grouped, {"estimator": CLIPPING, "groups": ("a",)}),
    (estimators.MedianOfMeans, {"inner": TRUNCATION, "num_groups": 3}),
    (
        estimators.MedianOfMeans.for_failure_prob,
        {"inner": TRUNCATION, "num_coordinates": 3},
    ),
    (estimators.Scaled, {"estimator": CLIPPING, "scales": 1.0}),
    (estimators.TrimmedMean, {"trim_fraction": 0.1, "lower": -1.0, "upper": 1.0}),
    (TRIMMED.trim_count, {"num_samples": 9}),
    (TRIMMED.smooth_sensitivity, {"samples": jnp.zeros(9), "smoothness": 0.1}),
    (estimators.Truncation.for_moment, MOMENT),
    (estimators.Winsorization.for_moment, MOMENT),
    (estimators.SmoothedTruncation.for_moment, MOMENT),
    *(
        (make(1.0).sensitivity, {"num_samples": 30, "num_coordinates": 3})
        for name, make in registry.ESTIMATORS.items()
        if name != "Mean"
    ),
    *(
        (make(1.0), {"samples": jnp.ones((30, 2))})
        for make in registry.ESTIMATORS.values()
    ),
    *((kind, {"threshold": 1.0}) for kind in (losses.biweight, losses.huber)),
    (losses.gamma, {"min_mean": 0.1, "max_target": 20.0}),
    (losses.poisson, {"max_mean": 1.0, "max_target": 9.0}),
    (losses.regularized, {"loss_fn": losses.squared, "l2": 0.1}),
    (losses.softmax, {"num_classes": 3}),
    (losses.tweedie, TWEEDIE),
    (
        losses.MarginLoss,
        {"derivative_fn": jnp.tanh, "derivative_bound": 1.0, "curvature_bound": 1.0},
    ),
    (losses.MarginLoss.smoothed_hinge, {"width": 1.0}),
    (mechanisms.BandedToeplitz, {"num_steps": 2, "coefficients": (1.0, 0.5)}),
    (mechanisms.BufferedToeplitz, {"num_steps": 4, "decays": (0.5,), "scales": (0.2,)}),
    (mechanisms.BandedToeplitz.square_root, {"num_steps": 4, "num_bands": 2}),
    (mechanisms.BandedToeplitz.optimal, {"num_steps": 4, "num_bands": 2}),
    (mechanisms.BufferedToeplitz.optimal, {"num_steps": 4}),
    (mechanisms.BinaryTree, {"num_steps": 4}),
    (mechanisms.BinaryTree(4).sensitivity, {}),
    (mechanisms.discrete_gaussian, {"shape": 3, "stddev": 3}),
    (solvers.Execution, {}),
    (solvers.PrivateTraining, {"loss_fn": losses.squared, "num_samples": 40} | BUDGET),
    (tuning.Score, {"fn": print, "privacy": STATED}),
    (
        tuning.clipped_loss,
        BUDGET | {"loss_fn": losses.squared, "data": (X, X), "limit": 1.0},
    ),
    (solvers.recommend, {"num_samples": 40, "num_params": 3} | BUDGET),
    (transforms.scale_by_dp_adam, {}),
    (dpjax.robust_grad, {"loss_fn": losses.squared, "estimator": TRUNCATION}),
]

# What is bad there alone: an argument, and the functions that it is of.
WRONG = {
    "delta: dp_gradient_descent dp_localized_sco dp_mean dp_additive_model "
    "dp_linear_model dp_sparse_linear_regression dp_objective_perturbation "
    "dp_sample_and_aggregate dp_histogram dp_group_means "
    "discrete_gaussian_stddev ThresholdEstimator.for_moment "
    "SmoothedTruncation.for_moment PrivateTraining recommend": [0.0],
    "release: epsilon_lower_bound": [lambda key, x: ()],
    "statistic: epsilon_lower_bound": [lambda x: (x, x)],
    "neighbor: epsilon_lower_bound one_run": [jnp.int32(0)],
    "neighbor: one_run": [X],
    "stddev: discrete_gaussian": [0, 2.5, True, 2**26 + 1],
    "scale: Numeric Normal LogNormal": [0.0],
    "sample_size: Sample": [10],
    "delta: Sample.budget": [0.5],
    "mean_trials: tuning_epsilon tuning_budget": [0.5],
    "l2_clip_norm: Clipping": FAR,
    "threshold: Truncation Winsorization": FAR,
    "scale: SmoothedTruncation SmoothedClipping": [0.0, *FAR],
    "trim_fraction: TrimmedMean": [0.5, 0.7, 0, 1],
    "upper: TrimmedMean": [-1.0, -2.0, -1.0 + 1e-16, 1e31],
    "smoothness: TrimmedMean.smooth_sensitivity": [np.ones(2)],
    "lower: AdaptiveThreshold": [0.0, 2.0],
    "upper: AdaptiveThreshold": [0.05],
    "estimator: AdaptiveThreshold Grouped": [TRUNCATION],
    "groups: Grouped": [(), "a", ("a", ()), ("a", ("b", "a")), (0, 1)],
    "estimator: Scaled": [
        *(estimators.Mean(), TRIMMED, estimators.MedianOfMeans(TRUNCATION, 2)),
        estimators.Scaled(TRUNCATION, 1.0),
        estimators.AdaptiveThreshold(CLIPPING, 0.1, 9.0),
    ],
    "scales: Scaled": [{}, {"w": 0.0}, jnp.array([1.0, -1.0]), [1.0, INF], NAN, "1"],
    "coefficients: BandedToeplitz": [
        *((), (0.0, 0.0), (1.0, 0.5, 0.1)),
        *((1.0, second) for second in (NAN, 1.5, -0.5)),
    ],
    "num_bands: BandedToeplitz.square_root": [5],
    "decays: BufferedToeplitz": [(), (1.5,)],
    "scales: BufferedToeplitz": [(0.2, 0.1), (1.2,)],
    "upper: Box": [-1.0, np.ones((1, 3))],
    "vertices: Polytope": [[[1.0]], np.ones(3), np.ones((0, 3)), np.array([[INF]])],
    "num_coordinates: Box.diameter Polytope.diameter grid_net halton_net": [4],
    "index: VertexConstraint.vertex": [6, -1, 0.5],
    "tolerance: L1Ball.contains": [-1.0],
    "params: L1Ball.project L2Ball.project Box.project": [{}, np.ones(3, complex)],
    "params: Box.project": [np.ones(4)],
    "gradient: Box.minimize_linear": [np.ones(4), {"a": X}],
    "constraint: grid_net": [POLYTOPE],
    "box: halton_net": [constraints.L2Ball(1.0)],
    "num_candidates: halton_net": [20_000_001],
    "quantile: AdaptiveThreshold": [0.0, 1.0],
    "estimator: privatize dp_sgd": [estimators.Mean()],
    "estimator: dp_gradient_descent dp_mean dp_frank_wolfe": [estimators.Mean()],
    "moment_order: ThresholdEstimator.for_moment dp_l1_regression": [2.1],
    "moment_order: dp_localized_sco dp_one_pass_sco": [1.9, INF],
    "constraint: frank_wolfe dp_frank_wolfe": [BOX],
    "num_steps: dp_frank_wolfe dp_lasso dp_iterative_hard_thresholding "
    "dp_sparse_linear_regression": [41],
    "sparsity: dp_iterative_hard_thresholding dp_sparse_linear_regression": [7],
    "candidates: dp_l1_regression": [
        *(jnp.zeros(shape) for shape in (6, (1, 6), (5, 2), (0, 6))),
        jnp.zeros((5, 6), int),
    ],
    "edges: dp_quantile": [[1.0, 1.0 + 1e-12, 2.0]],
    "quantiles: dp_group_means": [(0.5, 1.0)],
    "groups: dp_group_means": [np.zeros(40), np.zeros(3, int)],
    "params: dp_one_pass_sco": [jnp.zeros(3)],
    "loss: dp_one_pass_sco": [losses.poisson, losses.softmax(3)],
    "num_subsets: dp_sample_and_aggregate": [1, 401],
    "center: dp_sample_and_aggregate": [jnp.zeros(3)],
    "features: dp_objective_perturbation": [[[1.0]], np.ones((40, 0))],
    "sigma: arsinh_normal laplace_log_normal": [9.0],
    "sparsity: peeling": [4],
    "smooth: dp_additive_model": [0, "01", (0, 6), (0.5,), (True,), (0, 0), (0, -6)],
    "loss: dp_additive_model dp_linear_model dp_one_pass_sco": [
        losses.absolute,
        BIWEIGHT,
    ],
    "data: dp_additive_model dp_linear_model": [(np.ones(3), np.ones(3))],
    "noise_multiplier: dp_additive_model dp_linear_model": [1.0],  # beside epsilon
    "num_classes: softmax": [1],
    "power: tweedie": [1.0, 2.5, "1.5"],
    "decay: average_iterates": [1.1],
    "learning_rate: frank_wolfe dp_frank_wolfe": [2.0],
}
# What has a meaning there: callables and an argument of them, values.
ALLOWED = {
    "learning_rate: dp_frank_wolfe frank_wolfe": [0.0],
    "epsilon: PrivacyGuarantee PrivacyGuarantee.of delta_of": [0.0, INF],
    "epsilon: Sample.budget epsilon_to_rho gaussian_stddev noise_multiplier "
    "Batching.init": [INF],
    "rho: rho_to_epsilon": [0.0, INF],
    "stddev: gaussian_epsilon": [INF],
    "noise_multiplier: gaussian_event noise_multiplier_to_epsilon": [0.0, INF],
    "other_multiplier: Sampling": [INF],
    "limit: Numeric": [INF],
    "release_stddev: peeling": [INF],  # the set alone
    "decay: average_iterates": [1.0],
    "noise_multiplier: dp_sgd privatize": [0.0],
    "learning_rate: dp_sgd": POSITIVE,  # optax reads it, and schedules
    "samples: PrivacyFilter": BAD["samples"],  # the counts that it has seen
    "num_samples: Estimator.sensitivity": [2.5, True],  # an expected number
}


def _name(part):
    name = getattr(part, "__qualname__", type(part).__name__)
    return name.removeprefix("dict")


def _listed(table, argument, function):
    """Returns the values that a table has for an argument of a function."""
    uses = ((*use.split(": "), values) for use, values in table.items())
    lists = [
        x for of, to, x in uses if of == argument and _name(function) in to.split()
    ]
    return itertools.chain(*lists)


@pytest.mark.parametrize(
    ("function", "valid"), CALLS, ids=lambda x: "" if isinstance(x, dict) else _name(x)
)
def test_bad_arguments_are_refused_by_name(function, valid):
    for argument, parameter in inspect.signature(function).parameters.items():
        parts = "(features|targets|neighbor|data)" if argument == "data" else argument
        allowed = [repr(value) for value in _listed(ALLOWED, argument, function)]
        for value in [*BAD.get(argument, []), *_listed(WRONG, argument, function)]:
            is_default = value is None and parameter.default is None
            if is_default or repr(value) in allowed:
                continue
            with pytest.raises(ValueError, match=rf"(?=.*\b{parts}\b).*must be"):
                function(**dict(valid) | {argument: value})
