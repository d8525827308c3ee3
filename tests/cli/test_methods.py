"""The methods: what each makes of its options, beyond what the command's tests show."""

from functools import partial
from typing import get_args

import jax
import numpy as np
import pytest

from dpjax.cli._high_dimensional import candidate_net, is_thin
from dpjax.cli._methods import METHODS, find_method
from dpjax.cli._options import METHOD, declared
from dpjax.cli._plan import make_plan
from dpjax.cli._runs import train_private
from dpjax.cli._settings import MethodName, Settings
from dpjax.constraints import L1Ball
from dpjax.estimators import Clipping, SmoothedTruncation, Truncation
from tests.cli import test_train


def asked(**options):
    return Settings(source="made up", **options)


dataset = partial(test_train.dataset, n=60, names="abcd")


def plan(task="regression", **changes):
    return make_plan(asked(epsilon=1.0, **changes), dataset(task=task), is_named=True)


def train(plan, task="regression"):
    return train_private(
        plan, dataset(task=task), key=jax.random.key(0), on_step=test_train.ignore
    )


def named(name):
    return next(method for method in METHODS if method.name == name)


def needed(method):
    return {name: 2 for name, is_needed in method.reads.items() if is_needed}


VARIANTS = [  # name, options, the epsilon that it costs, whether that is all
    ("frank-wolfe", {"estimator": "truncation", "scale": 2.0}, True),
    ("frank-wolfe", {"estimator": "clipping", "l2": 0.1, "learning_rate": 0.3}, True),
    ("frank-wolfe", {"delta": 0, "steps": 5, "loss": "biweight"}, True),
    ("frank-wolfe", {"calibration": "paper"}, False),
    ("lasso", {"calibration": "paper"}, False),
    ("sparse", {"sparsity": 2, "learning_rate": 0.1, "scale": 2.0}, True),
    ("sparse", {"sparsity": 2, "calibration": "paper"}, False),
    (
        "sparse",
        {"sparsity": 2, "estimator": "median-of-means", "loss": "huber", "delta": 0.0},
        True,
    ),
    ("sparse", {"sparsity": 2, "loss": "huber", "calibration": "paper"}, False),
    ("l1", {"candidates": 20, "calibration": "paper"}, False),
    ("objective-perturbation", {"scale": 3.0, "l2": 0.1}, True),
    ("objective-perturbation", {"calibration": "paper"}, False),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "changes", "is_exact"), VARIANTS)
def test_variants_run_at_what_they_cost(name, changes, is_exact):
    task = "classification" if name == "objective-perturbation" else "regression"
    run = train(plan(task, method=name, **changes), task)
    assert np.isfinite(run.solution.params).all()
    privacy = run.solution.privacy
    assert (privacy.epsilon == 1.0) == is_exact
    assert privacy.delta in (0.0, 60**-1.1)
    if named(name).has_steps:
        assert len(run.steps) == run.steps[-1] == run.solution.stats["num_steps"]
        assert np.array_equal(run.iterates[-1], run.solution.params)


def test_sample_and_aggregate_stays_in_its_ball():
    made = make_plan(
        asked(
            epsilon=8.0, delta=0.01, method="sample-aggregate", subsets=200, radius=0.5
        ),
        dataset(n=2000),
        is_named=True,
    )

    run = train_private(
        made, dataset(n=2000), key=jax.random.key(0), on_step=test_train.ignore
    )
    assert run.solution.privacy.epsilon == 8.0
    assert 0 < np.linalg.norm(run.solution.params) <= 0.5001


@pytest.mark.parametrize("subsets", [None, 61])
def test_subsets_are_given_and_no_more_than_the_records(subsets):
    with pytest.raises(ValueError, match="--subsets must be"):
        plan(method="sample-aggregate", subsets=subsets)


def test_what_options_become():
    made = plan("classification", method="frank-wolfe", radius=3.0)
    assert made.facts.loss == "logistic"
    assert made.arguments["constraint"] == L1Ball(3.0)
    assert made.arguments["estimator"] is None  # the solver's own
    assert made.arguments["moment_bound"] == 0.25
    clipping = plan(method="frank-wolfe", estimator="clipping", scale=2.0)
    assert clipping.arguments["estimator"] == Clipping(2.0)
    sparse = {"method": "sparse", "sparsity": 2, "steps": 6}
    iterated = plan("classification", **sparse).arguments
    assert iterated["learning_rate"] == pytest.approx(8 / 3)
    assert iterated["estimator"] == SmoothedTruncation.for_moment(
        0.25, num_samples=10, num_coordinates=2, epsilon=1.0, delta=60**-1.1
    )
    huber = plan(loss="huber", estimator="truncation", scale=2.0, **sparse)
    assert huber.arguments["estimator"] == Truncation(2.0)
    regression = plan(scale=2.0, **sparse).arguments
    assert (regression["threshold"], regression["sparsity"]) == (2.0, 2)
    l1 = plan(method="l1", scale=4.0, candidates=7).arguments
    assert l1["truncation"] == 0.25
    assert l1["candidates"].shape == (7, 5)


@pytest.mark.parametrize(
    "name", [name for name in get_args(MethodName) if name != "gradient-descent"]
)
def test_baselines_are_gradient_descent_by_its_own_defaults(name):
    given = needed(named(name)) | {"method": name}
    task = "classification" if name == "objective-perturbation" else "regression"
    changed, default = plan(task, **given), plan(task)
    assert changed.descent.num_steps == 300
    assert changed.descent.learning_rate == default.descent.learning_rate
    pure = plan(method="frank-wolfe", delta=0.0)
    assert pure.facts.delta == 0
    assert pure.facts.gaussian_delta == 60**-1.1


def test_private_ranges_leave_the_rest_to_training():
    made = plan(private_ranges=0.25, delta=0.1)
    assert (made.facts.epsilon, made.facts.delta) == (0.75, pytest.approx(0.075))


def test_every_loss_of_a_method_finds_its_variant():
    for variant in METHODS:
        for loss in variant.losses:
            given = needed(variant) | {"method": variant.name, "loss": loss}
            assert find_method(asked(epsilon=1.0, **given)) is variant
    assert {variant.name for variant in METHODS} == set(get_args(MethodName))


def test_every_option_of_methods_is_read_by_one():
    of_methods = {
        name
        for name, (_, said) in declared(Settings).items()
        if getattr(said, "panel", None) == METHOD
    }
    read = {name for method in METHODS for name in method.reads}
    assert read == of_methods - {"method", "loss", "quick"}


@pytest.mark.quick(2)
@pytest.mark.parametrize("num_features", [3, 10, 11, 300])
def test_candidates_are_in_the_set_and_always_the_same(num_features):
    net = np.asarray(candidate_net(500, num_features, 2.0))
    assert net.shape == (500, num_features)
    assert not net[0].any()
    assert np.array_equal(net, candidate_net(500, num_features, 2.0))
    thin = num_features > 10
    assert is_thin({"candidates": net}) == thin
    if thin:
        assert np.abs(net).sum(axis=1).max() <= 2.0001
        assert (np.count_nonzero(net, axis=1) <= 4).all()
    else:
        assert np.abs(net).max() == 2
    assert len(np.unique(net, axis=0)) == 500
