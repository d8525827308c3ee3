"""Models of tables and deep networks: problems, the bar, rivals priced, verdicts."""

import dataclasses
from itertools import product

import jax
import numpy as np
import pytest
from scipy import special, stats
from sklearn import metrics

from benchmarks.comparison import LARGEST_EXCESS
from benchmarks.deep import methods as deep
from benchmarks.deep import tasks
from benchmarks.record import Record, read
from benchmarks.utility import (
    hindsight,
    page,
    peers,
    predictions,
    problems,
    tuning,
    untuned,
)
from benchmarks.utility.hindsight import Setting
from benchmarks.utility.methods import METHODS
from benchmarks.utility.problems import Problem
from dpjax import accounting
from dpjax.accounting import gaussian_stddev, noise_multiplier_to_epsilon

KEYS = jax.random.split(jax.random.key(3), 2)
RUN = {"cores": 2, "processor": "a processor", "accelerator": None, "python": "3.11"}
RUN |= {"system": "Linux", "versions": {"jax": "0"}, "commit": "abc"}


def small(loss="squared", n=400, d=3, **changes):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, d)).astype(np.float32)
    features[:, -1] = 1
    means = features @ np.arange(1.0, d + 1).astype(np.float32)
    targets = means + 0.1 * rng.standard_normal(n).astype(np.float32)
    if loss == "logistic":
        targets = np.where(targets > 0, np.float32(1), np.float32(-1))
    best = problems.non_private_optimum(loss, features, targets)
    data = features, targets, features, targets
    one = Problem("small", "small", loss, *data, best, intercept=d - 1)
    return dataclasses.replace(one, **changes)


def test_excess_is_that_of_the_mean_test_loss():
    data = small()
    weights = np.array([[1.0, 0.0], [2.0, 0.0], [3.5, 0.0]])
    residuals = data.test_features @ weights - data.test_targets[:, None]
    assert data.risk(weights) == pytest.approx(0.5 * np.mean(residuals**2, axis=0))
    assert data.excess(data.reference) == pytest.approx(0, abs=1e-12)
    assert data.excess(weights[:, 1]) == pytest.approx(data.zero_excess)
    assert 0 < data.intercept_excess < data.zero_excess
    assert data.excess(np.full(3, np.nan)) == LARGEST_EXCESS
    # Rows are scaled down where a method says so.
    lengths = np.linalg.norm(data.test_features, axis=1)
    short = data.test_features / np.maximum(lengths, 1)[:, None]
    risk = data.risk(np.ones(3), row_norm=1.0)
    assert risk == pytest.approx(0.5 * np.mean((short.sum(1) - data.targets) ** 2))
    # A mean of labels has the mean of the losses.
    predictions = np.array([[-3.0], [0.2], [40.0]])
    both = [problems._losses("logistic", predictions, y) for y in (-1.0, 1.0)]
    mixed = problems._losses("logistic", predictions, 0.5)  # +1 three times in four
    assert mixed == pytest.approx(0.25 * both[0] + 0.75 * both[1])


@pytest.mark.parametrize("name", ["adult", "rand_hie", "heavy_tailed"])
def test_problems_are_those_of_the_record(name):
    data = problems.problem(name)
    facts = page.facts(data)
    for fact, recorded in read(page.PATH).facts[name].items():
        is_rounded = isinstance(recorded, float)
        expected = pytest.approx(recorded, rel=1e-3) if is_rounded else recorded
        assert facts[fact] == expected
    if name == "heavy_tailed":  # no other weights are better than the reference
        moves = 0.02 * np.concatenate([np.eye(30), -np.eye(30)])
        assert data.excess((data.reference + moves).T).min() > -1e-5


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_hindsight_descends_by_clipped_gradients_of_each_record(loss):
    data = small(loss)
    settings = [Setting(0.5, 0.3, 4), Setting(2.0, 0.1, 7)]
    iterates = hindsight.descend(data, settings, KEYS, epsilon=1e7)
    for index, (norm, rate, num_steps) in enumerate(settings):
        params = np.zeros(3)
        for _ in range(num_steps):
            predictions = data.features @ params
            slopes = predictions - data.targets
            if loss == "logistic":
                slopes = 1 / (1 + np.exp(-predictions)) - (data.targets > 0)
            grads = slopes[:, None] * data.features
            lengths = np.linalg.norm(grads, axis=1, keepdims=True)
            params -= rate * np.mean(grads * np.minimum(1, norm / lengths), axis=0)
        for column in iterates[:, index].T:
            assert column == pytest.approx(params, abs=1e-4)


def test_hindsight_draws_the_noise_that_its_epsilon_asks_for():
    data = small(features=np.zeros((400, 50), np.float32))
    keys = jax.random.split(jax.random.key(0), 200)
    setting = Setting(l2_clip_norm=2.0, learning_rate=0.5, num_steps=3)
    iterates = hindsight.descend(data, [setting], keys, epsilon=1.0)
    stddev = gaussian_stddev(1.0, data.delta, sensitivity=2 * 2.0 / 400, num_releases=3)
    law = stats.norm(scale=0.5 * stddev * np.sqrt(3))  # three steps of 0.5
    assert stats.kstest(iterates.ravel(), law.cdf).pvalue > 1e-3
    for factor in (0.9, 1.1):
        wrong = stats.norm(scale=factor * law.std())
        assert stats.kstest(iterates.ravel(), wrong.cdf).pvalue < 1e-6


def test_hindsight_chooses_by_the_excess_on_keys_of_its_own(monkeypatch):
    data = small()
    settings = [Setting(*x) for x in product((0.1, 10.0), (0.001, 0.3), (3, 30))]
    monkeypatch.setattr(hindsight, "grid", lambda is_wide: settings)
    params, setting = hindsight.fit(data, KEYS, 8.0)
    assert setting == {"l2_clip_norm": 10.0, "learning_rate": 0.3, "num_steps": 30}
    again = hindsight.descend(data, [Setting(**setting)], KEYS, 8.0)
    np.testing.assert_array_equal(params, again[:, 0])


def test_a_noisy_gram_has_half_the_variance_off_its_diagonal():
    noisy = peers._noisy_gram(np.random.default_rng(0), np.zeros((600, 600)), 3.0)
    np.testing.assert_array_equal(noisy, noisy.T)
    upper = noisy[np.triu_indices(600, 1)]
    assert np.std(upper) == pytest.approx(3 / np.sqrt(2), rel=0.01)
    assert np.std(noisy.diagonal()) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("name", ["adassp", "boosted_adassp", "tukey_em"])
def test_rivals_find_the_weights_where_the_budget_is_vast(name):
    data, method = small(n=20_000), METHODS[name]
    reference = data.reference
    if method.row_norm is not None:  # a model of other features: none is worse
        features = problems.scaled_down(data.features, method.row_norm)
        targets = (features @ reference).clip(-1, 1).astype(np.float32)
        data = small(n=20_000, features=features.astype(np.float32), targets=targets)
        reference = problems.non_private_optimum("squared", features, targets)
    params, _ = method.fit(data, KEYS, 1e5)
    for column in params.T:
        assert column == pytest.approx(reference, abs=0.02)


def test_tukey_em_gives_zero_weights_where_its_test_fails():
    assert not peers.tukey_em(small(), jax.random.key(0), 0.05).any()
    with pytest.raises(peers.LeftOut, match="5 fits of d records are too few"):
        peers.tukey_em(small(n=16), jax.random.key(0), 1.0)


def test_adaptive_clipping_pays_for_its_counts():
    data = small("logistic")
    _, facts = METHODS["adaptive_clipping"].fit(data, KEYS, 1.0)
    mu = 1 / gaussian_stddev(1.0, data.delta, sensitivity=1.0)
    counts = max(400 / 20, np.sqrt(20 * 100) / mu)
    spent = 100 * (facts["noise_multiplier"] ** -2 + counts**-2)
    assert spent == pytest.approx(mu**2, rel=1e-6)
    least = gaussian_stddev(1.0, data.delta, sensitivity=1.0, num_releases=100)
    assert facts["noise_multiplier"] > least


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_fits_what_it_serves(name, loss, monkeypatch):
    method, data = METHODS[name], small(loss)
    if not method.serves(data):
        assert loss not in method.tasks
        return
    assert name != "constant" or not method.serves(small(loss, intercept=None))
    if "diffprivlib" in name:  # which older versions of scikit-learn alone can load
        pytest.importorskip("diffprivlib.models", exc_type=ImportError)
    small_grid = [Setting(1.0, 0.3, 10), Setting(10.0, 0.3, 10)]
    monkeypatch.setattr(hindsight, "grid", lambda is_wide: small_grid)
    first, again = (page.run_one(method, data, 8.0, 2) for _ in range(2))
    assert "left_out" not in first
    assert len(first["excess"]) == 2
    assert all(np.isfinite(first["excess"]))
    assert {**again, "seconds": first["seconds"]} == first
    if name == "adassp":  # more repetitions begin with the fewer
        more = page.run_one(method, data, 8.0, 4)["excess"]
        assert more[:2] == first["excess"]
        assert len(set(more)) == 4


def row(method, *excess, problem="adult", epsilon=1.0, **others):
    values = {"excess": list(excess), "seconds": 0.0, "facts": {}, "run": 0}
    return (problem, method, epsilon), values | others


def test_ratios_have_a_floor_and_means_leave_out_what_is_not_served():
    rows = [row("hindsight", 0.01, 0.01), row("dp_linear_model", -0.2, -0.2)]
    for name, x in (("hindsight", 0.0), ("dp_linear_model", 0.06), ("adassp", 0.16)):
        rows.append(row(name, x, x, problem="rand_hie"))
    facts = page.facts(small()) | {"zero_excess": 10.0}
    known = {name: facts | {"title": name} for name in ("adult", "rand_hie")}
    numbers = page.Numbers(Record((RUN,), known, dict(rows)))
    # f is 0.2 percent of 10.
    assert numbers.ratio("adult", "dp_linear_model", 1.0) == pytest.approx(0.02 / 0.03)
    names = ["adult", "rand_hie"]
    mean, count = numbers.geometric_mean(names, "dp_linear_model", 1.0)
    assert (mean, count) == (pytest.approx(np.sqrt(0.02 / 0.03 * 4)), 2)
    assert numbers.geometric_mean(names, "adassp", 1.0) == (pytest.approx(9), 1)
    assert numbers.geometric_mean(names, "tukey_em", 1.0) is None


def test_a_search_states_how_its_budget_is_split(monkeypatch):
    monkeypatch.setattr(tuning, "NUM_STEPS", 3)
    keys = jax.random.split(jax.random.key(4), 1)  # others have used KEYS
    params, facts = tuning.select(small(), keys, 1.0, mean_trials=1.5)
    assert params.shape == (3, 1)
    assert np.isfinite(params).all()
    assert facts["num_candidates"] == len(tuning.grid()) == 20
    assert 0.5 < facts["epsilon_of_a_run"] < 1


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize(
    "name", [name for name in predictions.METHODS if name != predictions.EBM]
)
def test_every_model_predicts_the_test_set(name, loss):
    method, data = predictions.METHODS[name], small(loss)
    result = page.run_one(method, data, 8.0, 2, predictions.judged)
    assert len(result["excess"]) == len(result.get("auc", "ab")) == 2
    constant = data.reference_risk + data.intercept_excess
    assert np.mean(result["excess"]) < constant * (1.3 if name == "constant" else 1)
    assert ("auc" in result) == (loss == "logistic")


@pytest.mark.parametrize("num_bands", [1, 4])
def test_a_plan_costs_its_epsilon(num_bands):
    how, last, strategy = deep.plan(1_600, 3.0, 1e-4, 40, num_bands), 1.0, {}
    if num_bands > 1:
        sums = np.tri(40) @ np.linalg.inv(how.noise.matrix())
        last = np.linalg.norm(sums[-1]) / np.sqrt(40)
        strategy = {"strategy": how.noise}
    sampling = how.batching.sampling(1_600, 40, **strategy)
    assert how.stddev == pytest.approx(2 * how.multiplier / 100 * last)
    assert 2.97 < noise_multiplier_to_epsilon(how.multiplier, 1e-4, sampling) <= 3.0


def test_a_last_layer_anew_is_paid_with_the_steps():
    how = deep.plan(1_600, 3.0, 1e-4, 40, head_share=0.4)
    sampling = how.batching.sampling(1_600, 40)
    steps = noise_multiplier_to_epsilon(how.multiplier, 1e-4, sampling)
    # What dp_linear_model takes at that epsilon, for all of its releases.
    release = accounting.Sampling(num_steps=1)
    head = accounting.noise_multiplier(how.head_epsilon, 1e-4, release)
    both = dataclasses.replace(sampling, other_multiplier=head)
    assert 2.97 < noise_multiplier_to_epsilon(how.multiplier, 1e-4, both) <= 3.0
    assert max(steps, how.head_epsilon) < 2.7 < steps + how.head_epsilon


def test_hindsight_takes_the_best_of_its_grid_and_reports_fresh_keys(monkeypatch):
    grid = {"NORMS": (1.0, 10.0), "RATES": (0.001, 1.0), "STEPS": (10,)}
    for name, values in grid.items():
        monkeypatch.setattr(deep, name, values)
    task, key = tasks.task("digits"), jax.random.key(0)
    losses = deep.grid_losses(task, deep.METHODS["hindsight"], 8.0, key)
    assert len(losses) == 4
    best = min(losses, key=lambda one: losses[one])
    assert best.learning_rate == 1.0
    assert losses[best] < 0.9 * losses[deep.Setting(1.0, 0.001, 10)]
    result = deep.run_one(task, "hindsight", 8.0, 2)
    assert (result["facts"]["rate"], result["facts"]["num_steps"]) == (1.0, 10)
    assert result["excess"][0] != result["excess"][1]


@pytest.mark.parametrize("name", [*untuned.LAWS, "wooldridge/gpa2", "carData/Chile"])
def test_untuned_losses_are_those_of_other_libraries(name):
    try:
        data = untuned.table(name)
    except peers.LeftOut as reason:
        pytest.skip(str(reason))
    assert data.features.dtype == np.float32
    assert np.all(data.features[:, -1] == 1)
    y, rng = data.test_targets.astype(np.float64), np.random.default_rng(0)
    outputs = (1 + int(y.max()),) if data.loss == "softmax" else ()
    scores = rng.normal(size=(len(y), 2, *outputs))
    for column, loss in enumerate(data.mean_loss(scores)):
        own = scores[:, column]
        if data.loss == "squared":
            expected = metrics.mean_squared_error(y, own) / 2
        elif data.loss == "logistic":
            expected = metrics.log_loss(y, special.expit(own))
        elif data.loss == "softmax":
            expected = metrics.log_loss(y, special.softmax(own, axis=1))
        else:
            power = untuned.POWERS[data.loss]
            expected = metrics.mean_tweedie_deviance(y, np.exp(own), power=power) / 2
        assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["constant", "lines", "coarse", "default"])
def test_untuned_methods_fit(name):
    row, facts = untuned.run_one("law/straight t3", name, 8.0, 2)
    limit = 2.0 if name == "constant" else 0.27  # of which 0.25 is noise
    assert len(row["excess"]) == 2
    assert max(row["excess"]) < limit
    assert facts["num_smooth"] == 4
