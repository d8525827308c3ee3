"""Every solver shows nothing but what its mechanisms release, with every option."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import batching, estimators, gradients, losses, mechanisms, solvers
from dpjax.datasets import Categorical, Numeric
from tests import registry
from tests.privacy.replay import _replay

D = 6
# What the first record becomes.
NEIGHBOURS = {
    "zeros": (0.0, 0.0),
    "NaN": (np.nan, np.nan),
    "infinities": (np.resize([np.inf, -np.inf], D), -np.inf),
    "huge": (np.resize([3e38, -1e308, 1e30], D), -1e308),
    "opposite": (np.resize([-1e6, 1e6], D), 1e6),
    "tiny": (1e-38, -1e-45),
    "target": (None, np.nan),
}
TICKS = []
CLIPPING = estimators.Clipping(1.0)


def table(num_samples):
    rng = np.random.default_rng(num_samples)
    features = rng.standard_t(3, (num_samples, D))
    return features, features[:, 0] + rng.standard_t(3, num_samples)


def neighbour(data, row, target):
    features, targets = (np.array(x) for x in data)
    if row is not None:
        features[0] = row
    targets[0] = target
    return features, targets


def linear(loss="squared", weight=None, solve=solvers.dp_linear_model, **options):
    def release(data, key, i):
        features, targets = data
        given = dict(options)
        if given.pop("weights", False):
            # The first record counts from not at all to too much.
            first = targets[0] if weight is None else weight
            given["weights"] = np.r_[first, np.ones(len(targets) - 1)]
            given["max_weight"] = 2.0
        if given.pop("offsets", False):
            given["offsets"] = features[:, 0]
        given = {"epsilon": 0.5 + i, "delta": 1e-5} | given
        return solve(loss, (features, targets), key=key, **given)

    return release


def tick(step, params):
    """A callback: one for all runs, so that they share a program."""
    TICKS.append(_replay.seen((step, params)))


def descent(estimator=CLIPPING, **options):
    def release(data, key, i):
        TICKS.clear()
        given = {"epsilon": 1.0 + i, "delta": 1e-5, "learning_rate": 0.1, "key": key}
        given |= {"execution": solvers.Execution(callback=tick), "num_steps": 4}
        given |= {"estimator": estimator} | options
        problem = losses.squared, jnp.zeros(D), data
        solution = solvers.dp_gradient_descent(*problem, **given)
        jax.effects_barrier()
        solution.stats["ticks"] = list(TICKS)
        return solution

    return release


def description(data, key, i, **options):
    features, targets = data
    frame = {"x": features[:, 0], "y": targets, "by": features[:, 1] > 0}
    frame["z"] = features[:, 0] > 0
    schema = {"x": Numeric(0, 2, limit=1), "y": None, "by": Categorical(("true",))}
    schema["z"] = Categorical(("true", "false"))
    budget = {"epsilon": 1.0 + i, "delta": 1e-5}
    one = dpjax.describe(frame, schema, key=key, by="by, z", **budget, **options)
    shown = one.rows, one.edges, one.to_json(), one.to_html(), one._repr_html_()
    return solvers.Solution(shown, one.privacy, {})


def training(**options):
    """A run of four steps, and one too many: its parameters, and all it shows."""

    @cache  # the run of all tables of a size, whose step is compiled once
    def run_of(num_samples, epsilon):
        given = {"num_samples": num_samples, "epsilon": epsilon, "delta": 1e-5}
        return solvers.PrivateTraining(losses.squared, num_steps=4, **given, **options)

    def release(data, key, i):
        run = run_of(len(data[1]), 1.0 + i)
        state, shown = run.init(jnp.zeros(D), key), []
        for _ in range(5):
            state, metrics = run.step(state, data)
            shown.append((state.params, metrics))
        return solvers.Solution(state.params, run.privacy, {"shown": shown})

    return release


# At this budget 20 records are enough for knots.
additive = partial(
    linear, solve=solvers.dp_additive_model, smooth=(0, 3), intercept=5, epsilon=9_000.0
)


def mostly_zero(loss, data, **options):
    """Curves of columns one of which is close to zero in all records but the first."""
    features, targets = data
    small = np.where(np.arange(D) == 3, 1e-3, 1.0)
    return solvers.dp_additive_model(loss, (features * small, targets), **options)


EXPOSED = {"intercept": 1, "offsets": True}
OPTIONS = {
    "description": description,
    "description, sample": partial(description, max_records=12),
    "curves": additive(weights=True),
    "curves of a sample": additive("logistic", max_records=12, weights=True),
    "curves of outputs": additive(losses.softmax(3), epsilon=300.0),  # coarse knots
    "narrow curves": additive("logistic", solve=mostly_zero, weights=True, epsilon=2e5),
    "curves, intervals": additive(weights=True, intervals=True),
    "curves, exposures": additive(losses.poisson(10.0), offsets=True),
    "training": training(monitor=0.2),
    "training, full": training(batching=batching.Full(), monitor=0.2),
    "training, cyclic bands": training(
        noise=mechanisms.BandedToeplitz.square_root(4, 2),
        estimator=CLIPPING,
        optimizer=optax.sgd(0.1),
    ),
    **{
        f"training, {type(x).__name__}": training(
            **{"noise": x, "estimator": estimators.MedianOfMeans(CLIPPING, 3)},
            **{"batching": batching.Full(), "optimizer": optax.sgd(0.1, momentum=0.5)},
        )
        for x in (
            mechanisms.BandedToeplitz.square_root(4, 3),
            mechanisms.BufferedToeplitz(4, decays=(0.5,), scales=(0.5,)),
        )
    },
    "features": linear(max_features=4),
    "features of classes": linear("logistic", max_features=3, intercept=2),
    "one feature": linear(max_features=1),
    "sample": linear(max_records=12, weights=True),
    "labels": linear("logistic", intercept=0),
    "weights": linear(intercept=0, weights=True),
    "labels, weights": linear("logistic", weights=True),
    "outputs": linear(losses.softmax(3), intercept=5, weights=True),
    "outputs, features": linear(losses.softmax(3), max_features=2),
    "exposures": linear(losses.poisson(10.0), **EXPOSED),
    "exposures, weights": linear(losses.log_link(1.5), **EXPOSED, weights=True),
    "offsets": linear(losses.huber(1.0), offsets=True),
    "intervals": linear(intercept=0, intervals=True),
    "intervals, labels": linear("logistic", weights=True, intervals=True),
    "intervals, rare labels": linear("logistic", intercept=0, intervals=True),
    "intervals, exposures": linear(
        losses.poisson(10.0), **EXPOSED, weights=True, intervals=True
    ),
    "intervals, robust": linear("huber", intercept=0, intervals=True),
    "robust": linear("huber", intercept=0, weights=True),
    "median of means": descent(
        estimators.MedianOfMeans(estimators.Clipping(1.0), 3), averaging=True
    ),
    "normalised": descent(estimators.Normalization(0.1)),
    "truncated": descent(estimators.Truncation(1.0)),
    "winsorized": descent(estimators.Winsorization(1.0)),
    "trimmed": descent(estimators.TrimmedMean(0.2, -1.0, 1.0)),
    "poisson": descent(batching=batching.Poisson(5.0, capacity=20)),
    "fixed size": descent(batching=batching.WithoutReplacement(5)),
    "bins": descent(batching=batching.BallsInBins(4)),
    "objective": lambda data, key, i: solvers.dp_objective_perturbation(
        *data, key=key, epsilon=1.0, delta=1e-5, regularization=0.1
    ),
    **{
        f"mean, {type(x).__name__}": lambda data, key, i, x=x: solvers.dp_mean(
            data[0], key=key, epsilon=1.0, delta=1e-5, estimator=x
        )
        for x in (
            *(CLIPPING, estimators.Truncation(1.0), estimators.Winsorization(1.0)),
            estimators.MedianOfMeans(estimators.Truncation(1.0), 4),
        )
    },
    "untuned mean of a column": lambda data, key, i: solvers.dp_mean(
        data[1], key=key, epsilon=1.0, delta=1e-5
    ),
}
PRIVATE = {
    name: make
    for name, make in registry.SOLVERS.items()
    if name != "robust_gradient_descent"  # protects nobody, and says so
}
CASES = PRIVATE | OPTIONS


def refuse_interference(hooks, release, num_samples, neighbours=NEIGHBOURS, most=None):
    data, key = table(num_samples), jax.random.key(7)
    others = [neighbour(data, *first) for first in neighbours.values()]
    run = lambda data: release(data, jax.random.clone(key), 0)  # noqa: E731
    return hooks.compare(run, data, others, most)


@pytest.mark.parametrize("name", sorted({*registry.MECHANISMS} - {"discrete_gaussian"}))
def test_every_mechanism_is_replayed(hooks, name, key):
    # The other one's noise is of parties, whose sums are tested with them.
    def run(value):
        return registry.MECHANISMS[name](jax.random.clone(key), value)

    shown = hooks.record(lambda: run(jnp.arange(4.0)))
    assert len(hooks.recorded) == 1
    hooks.replay(lambda: run(jnp.array([5.0, -9.0, 0.0, 2.0])), shown, None)


@pytest.mark.quick(20)
@pytest.mark.parametrize("name", CASES)
def test_solvers_show_what_they_release(hooks, name):
    (kind, *_), _ = refuse_interference(hooks, CASES[name], registry.enough(name, 20))
    assert kind == "Solution"  # else nothing was compared


@pytest.mark.quick(6)
@pytest.mark.parametrize("num_samples", [1, 2, 1000])
@pytest.mark.parametrize("name", CASES)
def test_solvers_of_any_size_show_what_they_release(hooks, name, num_samples):
    refuse_interference(hooks, CASES[name], num_samples)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options",
    [
        {"intercept": 0},
        {"loss": "logistic"},
        {"loss": losses.softmax(3), "intercept": 5},
        {"loss": losses.log_link(1.5)} | EXPOSED,
        {"loss": losses.huber(1.0), "max_features": 3},
        {"intercept": 0, "intervals": True},
    ],
    ids=str,
)
def test_a_record_of_weight_zero_moves_no_release(hooks, options):
    release = linear(weights=True, weight=0.0, **options)
    refuse_interference(hooks, release, 20, most=1e-30)  # programs of `CASES`


# Every loss x every solver that takes it, on targets beyond the loss's range.
NUM, WIDTH = 24, 3
KNOWN = {
    "squared": losses.squared,
    "logistic": losses.logistic,
    "smoothed hinge": losses.MarginLoss.smoothed_hinge(),
    "huber": losses.huber(1.0),
    "huber in scales": "huber",
    "poisson": losses.poisson(4.0),
    "gamma": losses.gamma(min_mean=0.2, max_target=6.0),
    "tweedie": losses.tweedie(1.5, min_mean=0.2, max_mean=3.0, max_target=6.0),
    "log link": losses.log_link(2.0),
    "softmax": losses.softmax(3),
}
# Of one prediction, smooth and convex.
ONE_PASS = [name for name in KNOWN if name not in ("huber in scales", "softmax")]
CLIPPED = ["squared", "gamma"]  # gradients of the loss's value, whatever it is
ODD = np.array([0.0, -1.0, -1e-3, -1e3, -1e308, 1e3, 1e308, np.nan, np.inf, -np.inf])
SCO = {"epsilon": 9.0, "delta": 1e-5, "moment_bound": 9.0, "diameter": 4.0}
STEPS = {"learning_rate": 0.1, "num_steps": 3, "estimator": CLIPPING}
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
CURVES = {"smooth": (1,), "intercept": 0, "epsilon": 9_000.0, "delta": 1e-5}


def odd_table(num_samples, first):
    """Records of which most have a target, or a feature, beyond what is declared."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((num_samples, WIDTH))
    features[1::7] *= rng.choice([0.0, 1e30, np.inf], (len(features[1::7]), 1))
    targets = rng.choice(ODD, num_samples)
    targets[: num_samples // 2] = -1.0  # a row of steps along the same line
    features[: num_samples // 2] = 0.5
    features[0], targets[0] = first
    return features, targets


def of_start(solve, **options):
    start = np.zeros(WIDTH, np.float32)
    return lambda loss, data, key: solve(loss, start, data, key=key, **options)


def of_columns(solve, **options):
    return lambda loss, data, key: solve(loss, data, key=key, **options)


# How many records a solver takes here, and the losses that it takes.
SOLVERS = {
    "one pass": (of_start(solvers.dp_one_pass_sco, **SCO), 1_000, ONE_PASS),
    "descent": (of_start(solvers.dp_gradient_descent, **STEPS, **BUDGET), NUM, CLIPPED),
    "localized": (
        of_start(solvers.dp_localized_sco, **SCO, smoothness=1.0, num_steps=3),
        *(1_000, CLIPPED),
    ),
    "linear": (of_columns(solvers.dp_linear_model, intercept=0, **BUDGET), NUM, KNOWN),
    "additive": (of_columns(solvers.dp_additive_model, **CURVES), NUM, KNOWN),
}
OF_LOSSES = [(name, solver) for solver in SOLVERS for name in SOLVERS[solver][-1]]


@pytest.mark.quick(12)
@pytest.mark.parametrize(("name", "solver"), OF_LOSSES)
def test_what_a_record_moves_is_charged(hooks, name, solver):
    loss, (solve, num_samples, _) = KNOWN[name], SOLVERS[solver]
    solutions = []

    def run(first):
        solutions.append(solve(loss, odd_table(num_samples, first), jax.random.key(7)))
        return solutions[-1]

    others = (-0.5, 1e6), (np.nan, -1.0), (0.5, np.nan), (1e308, -np.inf)
    (kind, *_), _ = hooks.compare(run, (0.5, -1e6), others)
    assert kind == "Solution"
    assert _replay.charged(solutions[0].privacy) is not None


@pytest.mark.parametrize("options", [{}, {"intervals": True}, {"max_features": 1}])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_all_records_of_a_user_move_what_is_charged(hooks, loss, options):
    def run(rows):
        # The first user has these records, and every other one has two of three.
        features, targets = odd_table(NUM, (0.0, 0.0))
        own = np.reshape([(*WIDTH * [x], y) for x, y in rows], (-1, WIDTH + 1))
        data = np.r_[own[:, :-1], features], np.r_[own[:, -1], targets]
        ids = np.r_[np.zeros(len(rows), int), 1 + np.arange(NUM) // 2]
        data = gradients.by_user(data, ids, num_users=1 + NUM // 2, records_per_user=3)
        given = {"key": jax.random.key(7), "intercept": 0, **options, **BUDGET}
        return solvers.dp_linear_model(loss, data, **given)

    others = 4 * [(-0.5, 1e6)], [(0.5, np.nan), (np.nan, 1.0), (1e308, -np.inf)], []
    (kind, *_), _ = hooks.compare(run, 3 * [(0.5, -1e6)], others)
    assert kind == "Solution"
