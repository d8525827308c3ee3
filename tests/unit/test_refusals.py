"""Bad arguments: each name has its bad values, which all that take it refuse.

The message names the argument; the rest of its wording is nobody's contract. What is
bad beside another argument alone is tested next to the code that it belongs to.
"""

import inspect
import itertools
import math
import operator
from functools import partial
from unittest import mock

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import dpjax
from dpjax import accounting, constraints, estimators, losses, mechanisms
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
# Names, and bad values of each.
BAD = {
    "epsilon rho diameter moment_bound smoothness sigma radius derivative_bound "
    "curvature_bound sensitivity_range max_weight threshold learning_rate beta "
    "l2_clip_norm residual_moment_bound truncation fourth_moment_bound floor "
    "expected_batch_size relative_spread max_mean max_target min_mean offset spread "
    "noise_multiplier tail_index degrees_of_freedom limit width multiplier": POSITIVE,
    "sensitivity stddev release_stddev selection_scale regularization eps scale "
    "other_multiplier": NON_NEGATIVE,
    "num_samples num_steps num_coordinates num_releases num_selections num_groups "
    "num_bins batch_size capacity cycle_length num_shares max_records overlap "
    "num_features num_subsets chunk_size microbatch_size trim_count sample_size "
    "callback_every max_features sparsity num_classes num_params group_size "
    "max_participations min_separation num_pieces num_bands": COUNT,
    "failure_prob confidence monitor prior share trim_fraction": PROBABILITY,
    "b1 b2 decay": [-0.1, 1.0, NAN],
    "lower upper": [NAN, INF, None, "1"],
    "mechanism method norm bound distribution": WORD,
    "loss_fn": [3, "f", lambda params, x, y: 0.0],
    "projection_fn callback fit_fn derivative_fn value_fn": [3, "f"],
    "offsets weights": [np.ones(3)],
    "data": ARRAY,
    "samples": [1.0, np.zeros((0, 2)), scipy.sparse.eye(9)],
    "features": [np.zeros(3), np.zeros((0, 2)), np.zeros((40, 6), complex)],
    "targets": [np.zeros((40, 2)), np.zeros(7), np.zeros(40, complex)],
    "labels": [np.zeros((40, 2)), np.zeros(7), np.array(["a"] * 40)],
    "delta": [-1e-9, 1.0, NAN, None],
    "quantile": [-0.1, 0.0, 1.0, 1.5, NAN, None],
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
    "batching": ["full", 3, dpjax.batching.Full],
    "loss": ["cubic", lambda w, x: 0.0],
    "edges": [[0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.0, INF]],
    "unit": ["", "  ", None, 3],
    "false_positive_rates": [-0.1, [0.5, 1.1], NAN, "low"],
    "intercept": [6, 1.0, True],
    "dp_event": [3.0, "event", dp_accounting.ComposedDpEvent([UNREADABLE])],
}
BAD = {name: values for names, values in BAD.items() for name in names.split()}


def _registered(layer, name, *args):
    """Returns a part of the registry, and the valid arguments that it has there."""
    part = getattr(layer, name)

    def bind(*args, **options):
        return inspect.signature(part).bind(*args, **options).arguments

    parts = registry.SOLVERS if layer is dpjax.solvers else registry.TRANSFORMS
    with mock.patch.object(layer, name, bind):
        return part, parts[name](*args)


def _table(num_samples):
    rows = np.random.default_rng(0).normal(size=(num_samples, 6)).astype(np.float32)
    return rows, rows[:, 0]


X, KEY = jnp.zeros(3), jax.random.key(0)
CLIPPING, BIWEIGHT = estimators.Clipping(1.0), losses.biweight(1.0)
TRUNCATION, TRIMMED = estimators.Truncation(1.0), estimators.TrimmedMean(0.1, -1.0, 1.0)
BOX = constraints.Box(-np.ones(3), np.ones(3))
BALL, POLYTOPE = constraints.L1Ball(1.0), constraints.Polytope(np.eye(3))
EVENT = dp_accounting.GaussianDpEvent(1.0)
STATED = accounting.PrivacyGuarantee.of(1.0, 1e-5, dp_event=EVENT)
RUN = {"num_steps": 5, "sampling_prob": 0.5}
BATCHES = {"num_steps": 5, "num_samples": 9, "batch_size": 3}
RELEASE = {"release": partial(mechanisms.laplace, scale=1.0), "neighbor": X + 1}
# Names, and a good value of each.
GOOD = {
    "rho prior false_positive_rates": 0.5,
    "smoothness lower trim_fraction min_mean": 0.1,
    "epsilon sensitivity noise_multiplier base radius limit scale scales": 1.0,
    "sensitivity_range selection_scale release_stddev": 1.0,
    "l2_clip_norm threshold offset moment_bound derivative_bound curvature_bound": 1.0,
    "mean_trials expected_batch_size tail_index degrees_of_freedom": 2.0,
    "group_size num_bins batch_size cycle_length sparsity num_bands": 2,
    "num_coordinates num_params num_selections num_groups sample_size": 3,
    "num_classes shape stddev": 3,
    "data params gradient like value scores vector": X,
    "event dp_event": EVENT,
    "constraint": BOX,
    **{"num_samples": 40, "num_steps": 4, "num_features": 5},
    **{"delta": 1e-5, "sigma": 0.7, "power": 1.5, "max_mean": 5.0, "max_target": 20.0},
    **{"upper": 9.0, "index": 0, "decays": (0.5,), "coefficients": (1.0, 0.5)},
    **{"key": KEY, "relation": dpjax.REPLACE_ONE, "description": "", "privacy": STATED},
    **{"norm": "l1", "vertices": np.eye(3), "categories": ("a",), "groups": ("a",)},
    **{"estimator": CLIPPING, "inner": TRUNCATION, "samples": jnp.ones((30, 2))},
    **{"loss_fn": losses.squared, "derivative_fn": jnp.tanh, "fn": print},
    **{"sampling": accounting.Sampling(**RUN), "statistic": lambda x: x},
}
GOOD = {name: value for names, value in GOOD.items() for name in names.split()}


def _with_good(function, **others):
    """Returns a function, and good values where it has no default, or others."""
    parameters = inspect.signature(function).parameters.values()
    needed = {x.name for x in parameters if x.default is x.empty} - others.keys()
    return function, {name: GOOD[name] for name in needed} | others


FUNCTIONS = {
    "accounting": "PrivacyFilter PrivacyGuarantee PrivacyGuarantee.of Sample delta_of "
    "epsilon_of epsilon_to_rho rho_to_epsilon gaussian_stddev gaussian_epsilon "
    "noise_multiplier noise_multiplier_to_epsilon tuning_epsilon tuning_budget",
    "batching": "BallsInBins CyclicPoisson Poisson WithoutReplacement",
    "constraints": "Box Polytope grid_net",
    "datasets": "Normal LogNormal Categorical Numeric Pareto StudentT linear_model",
    "estimators": "AdaptiveThreshold Grouped MedianOfMeans Scaled "
    "MedianOfMeans.for_failure_prob Truncation.for_moment Winsorization.for_moment "
    "SmoothedTruncation.for_moment",
    "losses": "biweight huber gamma poisson softmax tweedie MarginLoss "
    "MarginLoss.smoothed_hinge",
    "mechanisms": "BandedToeplitz BandedToeplitz.square_root BandedToeplitz.optimal "
    "BufferedToeplitz.optimal",
    "solvers": "Execution PrivateTraining recommend",
    "tuning": "Score",
    "transforms": "scale_by_dp_adam",
}
METHODS = [
    dpjax.robust_grad,
    *(STATED.tradeoff, STATED.posterior, STATED.for_groups),
    *(kind.init for kind in registry.BATCHINGS.values()),
    *(BALL.num_vertices, BALL.vertex, BALL.contains, POLYTOPE.vertex),
    *(
        POLYTOPE.vertex_scores,
        BOX.minimize_linear,
        mechanisms.BandedToeplitz(4, (1.0,)).sensitivity,
    ),
    *(kind.project for kind in (BALL, BOX, constraints.L2Ball(1.0))),
    *(kind(1.0).diameter for kind in (constraints.L2Ball, constraints.Simplex)),
    *(kind.diameter for kind in (BALL, BOX, POLYTOPE)),
    *(dpjax.datasets.Normal().sample, TRIMMED.trim_count, TRIMMED.smooth_sensitivity),
    *(make(1.0) for make in registry.ESTIMATORS.values()),
    *(make(1.0).sensitivity for x, make in registry.ESTIMATORS.items() if x != "Mean"),
]
# What is called, with valid arguments.
CALLS = [
    *(
        _registered(dpjax.solvers, name, _table(registry.enough(name, 40)), KEY, 0)
        for name in registry.SOLVERS
        if "," not in name
    ),
    *(
        _registered(dpjax.transforms, name, KEY)
        for name in registry.TRANSFORMS
        if "," not in name and name not in ("chain", "scale_by_dp_adam")
    ),
    *(
        _with_good(part)
        for part in (registry.ESTIMATORS | registry.CONSTRAINTS).values()
        if inspect.isclass(part)
    ),
    *(
        _with_good(getattr(mechanisms, name))
        for name in sorted(registry.names(registry.MECHANISMS))
    ),
    *(
        _with_good(operator.attrgetter(f"{layer}.{name}")(dpjax))
        for layer, names in FUNCTIONS.items()
        for name in names.split()
    ),
    *map(_with_good, METHODS),
    *((accounting.Sampling, scheme) for scheme in (RUN, BATCHES)),
    _with_good(accounting.Sample(9, 3).budget, delta=1e-9),
    *(
        _with_good(x, **RELEASE)
        for x in (dpjax.audit.epsilon_lower_bound, dpjax.audit.one_run)
    ),
    _with_good(estimators.TrimmedMean, lower=-1.0, upper=1.0),
    _with_good(mechanisms.BufferedToeplitz, scales=(0.2,)),
    _with_good(dpjax.tuning.clipped_loss, data=(X, X)),
]
# What is bad there alone: an argument, and the functions that it is of.
WRONG = {
    "delta: dp_gradient_descent dp_localized_sco dp_mean dp_additive_model "
    "dp_linear_model dp_sparse_linear_regression dp_objective_perturbation "
    "dp_sample_and_aggregate dp_histogram dp_group_means "
    "ThresholdEstimator.for_moment "
    "SmoothedTruncation.for_moment PrivateTraining recommend": [0.0],
    "release: epsilon_lower_bound": [lambda key, x: ()],
    "statistic: epsilon_lower_bound": [lambda x: (x, x)],
    "neighbor: epsilon_lower_bound one_run": [jnp.int32(0)],
    "neighbor: one_run": [X],
    "stddev: discrete_gaussian": [0, 2.5, True, 2**26 + 1],
    "scale: Numeric Normal LogNormal": [0.0],
    "sample_size: Sample": [41],
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
        *((), (0.0, 0.0), (1.0, 0.5, 0.4, 0.3, 0.2)),
        *((1.0, second) for second in (NAN, 1.5, -0.5)),
    ],
    "num_bands: BandedToeplitz.square_root": [5],
    "decays: BufferedToeplitz": [(), (1.5,)],
    "scales: BufferedToeplitz": [(0.2, 0.1), (1.2,)],
    "upper: Box": [-1.0, np.ones((1, 3))],
    "vertices: Polytope": [[[1.0]], np.ones(3), np.ones((0, 3)), np.array([[INF]])],
    "num_coordinates: Box.diameter Polytope.diameter grid_net": [4],
    "index: VertexConstraint.vertex": [6, -1, 0.5],
    "tolerance: L1Ball.contains": [-1.0],
    "params: L1Ball.project L2Ball.project Box.project": [{}, np.ones(3, complex)],
    "params: Box.project": [np.ones(4)],
    "gradient: Box.minimize_linear": [np.ones(4), {"a": X}],
    "constraint: grid_net": [POLYTOPE],
    "quantile: dp_quantile": [(), (0.5, 0.5), (0.5, 1.0), [[0.5]], "half"],
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
    "noise_multiplier: noise_multiplier_to_epsilon": [0.0, INF],
    "other_multiplier: Sampling": [INF],
    "limit: Numeric": [INF],
    "epsilon: dp_additive_model dp_linear_model": [INF],
    "release_stddev: peeling": [INF],  # the set alone
    "decay: average_iterates": [1.0],
    "noise_multiplier: dp_sgd privatize": [0.0],
    "learning_rate: dp_sgd": POSITIVE,  # optax reads it, and schedules
    "samples: PrivacyFilter": BAD["samples"],  # the counts that it has seen
    "num_samples: Estimator.sensitivity": [2.5, True],  # an expected number
}


def _name(part):
    return getattr(part, "__qualname__", type(part).__name__).removeprefix("dict")


def _listed(table, argument, function):
    """Returns the values that a table has for an argument of a function."""
    uses = ((*use.split(": "), values) for use, values in table.items())
    name = _name(function)
    lists = [x for of, to, x in uses if of == argument and name in to.split()]
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
