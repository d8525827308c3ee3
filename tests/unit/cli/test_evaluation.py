"""Private numbers of held-out records: what they cost, and how far they can be off."""

import json
import math
from types import SimpleNamespace

import jax
import mpmath
import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from dpjax import losses
from dpjax.accounting import PrivacyGuarantee, gaussian_epsilon
from dpjax.cli import _evaluation
from dpjax.cli._evaluation import evaluate
from dpjax.cli._runs import Run
from dpjax.cli._schema import Schema
from dpjax.cli._sources import Table, encode_table
from dpjax.datasets import Categorical, Numeric
from dpjax.mechanisms import discrete_gaussian
from dpjax.models import _label_scores, _noisy_counts, _scores, private_scores
from dpjax.solvers import Solution
from tests.unit.cli.command import done, invoke

PRICE, SOLD = Numeric(300.0, 100.0), Categorical(("yes",))
ODD = ["1e38", "-1e38", "", "nan", "inf", "0", "yes", "1e4"]


def held_out(cells, targets, kind):
    """A data set whose every record but the first is held out."""
    cells, targets = (np.array(["0", *x], dtype=object) for x in (cells, targets))
    is_test = np.arange(len(cells)) > 0
    schema = Schema({"x": Numeric()}, kind)
    return encode_table(Table("t", {"x": cells, "y": targets}, schema, "y", is_test))


def evaluation(data, kind, *, epsilon=1.0, delta=1e-5, weight=1.0, key=0, loss=None):
    privacy = PrivacyGuarantee.of(epsilon, delta, dp_event=NonPrivateDpEvent())
    params = np.array([weight, 0.0], np.float32)
    solution = Solution(params, privacy, {"constant": 0.1})
    run = Run("by hand", solution)
    loss = loss or (losses.squared if kind is PRICE else losses.logistic)
    plan = SimpleNamespace(loss_fn=loss, loss="of the run")
    return evaluate(plan, data, run, kind, key=jax.random.key(key))


@pytest.fixture
def sums(monkeypatch):
    """What is released, before the noise; the noise is left out."""
    seen = []

    def record(self, sums, sensitivity):
        seen.append((np.array(sums), sensitivity))
        return sums, 0.0

    monkeypatch.setattr(_noisy_counts.Release, "__call__", record)
    monkeypatch.setattr(_evaluation, "noise_multiplier", lambda *_, **__: 1.0)
    one = _noisy_counts.Interval(1.0, 1.0, 1.0)
    for module in (_scores, _label_scores):
        monkeypatch.setattr(module, "interval_of", lambda *_: one)
    return seen


@pytest.mark.parametrize("kind", [PRICE, SOLD])
@pytest.mark.parametrize("weight", [1.0, 1e30, math.nan])
def test_a_replaced_record_moves_counts_by_their_sensitivity_at_most(
    kind, weight, sums
):
    for cell in ODD:
        for target in ODD:
            data = held_out([cell, "1", "-1"], [target, "400", "yes"], kind)
            evaluation(data, kind, weight=weight)
    histograms, of_losses = sums[::2], sums[1::2]
    sensitivity = 2.0 if kind is PRICE else math.sqrt(2)
    assert {said for _, said in histograms} == {sensitivity}
    # Of prices losses and absolute errors, of the model and the constant.
    assert {said for _, said in of_losses} == {1000 * sensitivity}
    counts = np.array([counts.ravel() for counts, _ in histograms])
    moves = np.linalg.norm(counts[:, None] - counts[None], axis=2)
    assert moves.max() <= sensitivity * (1 + 1e-12)
    if weight == 1.0:
        assert moves.max() > 0.9 * sensitivity


@pytest.mark.parametrize("loss", [losses.squared, losses.log_link(1.5)])
def test_sums_within_given_bounds_move_by_their_sensitivity_at_most(sums, loss):
    release = _noisy_counts.Release(jax.random.key(0), 1.0)
    odd = np.array([0.0, 1e38, -1e38, np.nan, np.inf, 0.3])
    for score in odd:
        for target in odd[[0, 1, 2, 3, 5]]:
            scores = np.array([[score, 1.0], [-score, 2.0]])
            targets = np.array([target, 1.0])
            values = _scores._losses(scores, targets, loss)
            errors = np.abs(scores - targets)
            terms = [(values, [1.0, 2.0]), (errors, [0.5, 0.5]), (errors, [0.5, 0.5])]
            terms = terms[: 2 if loss is losses.squared else 3]
            _scores._means(release, terms, ~np.isnan(targets), 2.0)
    totals = np.array([total.ravel() for total, _ in sums])
    largest = np.linalg.norm(totals[:, None] - totals[None], axis=2).max()
    (said,) = {said for _, said in sums}
    assert 0.7 * said < largest <= said == 1000 * math.sqrt(len(totals[0]))


ODD_SCORES = [0.0, 3.0, -3.0, 1e38, -1e38, math.nan, math.inf]


@pytest.mark.parametrize(
    ("loss", "sensitivity"),
    [(losses.logistic, 2**0.5), (losses.softmax(3), 14**0.5), (losses.softmax(4), 4.0)],
)
@pytest.mark.parametrize("beside", ["a model", "a constant", "shares"])
def test_counts_of_labels_move_by_their_sensitivity(loss, sensitivity, beside, sums):
    """With another model beside it a record is counted twice."""
    num_outputs = loss.num_outputs
    constant = np.zeros(num_outputs if num_outputs > 1 else ())
    for score in ODD_SCORES:
        for label in (0, 1, 2, -1, 7, math.nan):
            scores = np.full((3, num_outputs), -1.0)
            scores[0, -1] = score
            scores = scores if num_outputs > 1 else scores[:, 0]
            other = {"a model": -scores, "a constant": constant, "shares": None}
            private_scores(
                scores,
                np.array([label, 1, 2]),
                beside=other[beside],
                loss=loss,
                loss_name="of labels",
                scale=None,
                key=jax.random.key(0),
                noise_multiplier=1.0,
            )
    histograms, of_losses = sums[::2], sums[1::2]
    stated = sensitivity * (math.sqrt(2) if beside == "a model" else 1)
    assert [*{said for _, said in histograms}] == pytest.approx([stated])
    for found, said in (histograms, stated), (of_losses, 1000 * math.sqrt(2)):
        rows = np.array([one.ravel() for one, _ in found])
        moves = np.linalg.norm(rows[:, None] - rows[None], axis=2)
        assert 0.7 * said < moves.max() <= said * (1 + 1e-12)


def many(kind, n=4000):
    rng = np.random.default_rng(3)
    x = rng.normal(size=n)
    if kind is PRICE:
        y = 300 + 100 * (x + 0.5 * rng.standard_t(3, n))
        return held_out(x, y, kind)
    y = np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-2 * x)), "yes", "no")
    return held_out(x, y, kind)


def true_values(data, kind):
    x, y = data.test_features[:, 0].astype(float), data.test_targets
    if kind is PRICE:
        errors = 100 * np.abs(x - y)
        return [np.median(errors), np.quantile(errors, 0.9)]
    positive, negative = x[y > 0], x[y < 0]
    area = np.mean(positive[:, None] > negative[None])
    return [np.mean((x > 0) == (y > 0)), area]


@pytest.mark.parametrize("kind", [PRICE, SOLD])
def test_intervals_cover_what_they_are_of(kind):
    data = many(kind)
    truths, missed = true_values(data, kind), 0
    for key in range(10):
        found = evaluation(data, kind, epsilon=1.0, key=key, weight=1.0)
        for measure, truth in zip(found.measures, truths, strict=False):
            value, low, high = measure.model
            assert low <= value <= high
            assert high - low < 0.25 * truth
            missed += not low <= truth <= high
    # Bounds are for sampling too, so that noise alone passes them more rarely. Of 20
    # at 5 per cent, more than 4 are missed once in 400 times.
    assert missed <= 4


@pytest.mark.parametrize("kind", [PRICE, SOLD])
def test_odd_records_raise_nothing(kind):
    data = held_out(ODD * 2, ODD[::-1] * 2, kind)
    for weight in (0.0, 1e30, math.nan):
        found = evaluation(data, kind, epsilon=0.01, weight=weight)
        for measure in found.measures:
            assert np.isfinite([*measure.model, *measure.constant]).all()


def test_what_it_costs():
    data = many(PRICE, n=50)
    found = evaluation(data, PRICE, epsilon=0.7, delta=1e-6)
    assert (found.privacy.epsilon, found.privacy.delta) == (0.7, 1e-6)
    multiplier = found.privacy.dp_event.event.noise_multiplier
    spent = gaussian_epsilon(multiplier, 1e-6, sensitivity=1.0, num_releases=2)
    assert spent == pytest.approx(0.7, rel=1e-6)
    run = Run("a", Solution(None, found.privacy, {}))
    joined = found.joined(run, 250).solution.privacy
    assert (joined.epsilon, joined.delta) == (0.7, 1e-6)
    assert "any one of the 250 records" in joined.description


@pytest.mark.parametrize(("kind", "sensitivity"), [(PRICE, 2.0), (SOLD, 2**0.5)])
def test_noise_is_what_the_guarantee_says(monkeypatch, kind, sensitivity):
    seen = []

    def spy(shape, *, stddev, random_bytes):
        noise = discrete_gaussian(shape, stddev=stddev, random_bytes=random_bytes)
        seen.append((stddev, noise))
        return noise

    monkeypatch.setattr(_noisy_counts, "discrete_gaussian", spy)
    found = evaluation(many(kind, n=50), kind)
    multiplier = found.privacy.dp_event.event.noise_multiplier
    (of_counts, counts), (of_losses, losses_) = seen
    assert not np.isin(losses_, counts).any()
    for stddev, moved in (of_counts, sensitivity), (of_losses, 1000 * sensitivity):
        # In units of a power of two.
        ratio = math.frexp(stddev)[0] / math.frexp(multiplier * moved)[0]
        assert 1 + 2**-17 < ratio < 1.0001
        assert stddev >= 2**20
    assert 0.6 < np.std(counts) / of_counts < 1.4


@pytest.mark.parametrize("multiplier", [0.0, 1e-4, 0.7, 40.0, 3e6, 1e8])
def test_noise_of_counts_hides_their_last_bits(multiplier):
    release = _noisy_counts.Release(jax.random.key(0), multiplier)
    counts = np.array([0.0, 1.0, 2.0**24 + 1, 1e9, *[5.0] * 400])
    released, stddev = release(counts, 2.0)
    noise = released - counts
    # All on one grid, whatever the count: float32 noise had more bits near zero.
    unit = 2.0**-20 if stddev < 32 else 2.0 ** -(25 - math.ceil(math.log2(stddev)))
    unit = min(unit, 1.0)
    np.testing.assert_array_equal(released / unit, np.rint(released / unit))
    np.testing.assert_array_equal(noise / unit, np.rint(noise / unit))
    assert 2 * multiplier <= stddev <= max(2 * multiplier * 1.01, 1e-6)
    if multiplier > 0.0:
        assert 0.85 < np.std(noise) / stddev < 1.15
    again, _ = _noisy_counts.Release(jax.random.key(0), multiplier)(counts, 2.0)
    np.testing.assert_array_equal(again, released)


@pytest.mark.parametrize("size", [68, 84_000])
@pytest.mark.parametrize("multiplier", [0.1, 3.0, 300.0, 1e5])
def test_raised_noise_pays_for_being_discrete(monkeypatch, size, multiplier):
    """With (3) and (4) of `dpjax.accounting._discrete_gaussian`, for two releases."""
    units = []

    def zero(shape, *, stddev, random_bytes):
        units.append(math.sqrt(shape[0]) * stddev)
        return np.zeros(shape, np.int64)

    monkeypatch.setattr(_noisy_counts, "discrete_gaussian", zero)
    sensitivity = math.sqrt(size / 20.5)
    release = _noisy_counts.Release(jax.random.key(0), multiplier)
    _, stddev = release(np.zeros(size), sensitivity)

    def delta(epsilon, mu):
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return mpmath.ncdf(a) - mpmath.exp(epsilon) * mpmath.ncdf(b)

    eta = 2 * size * 30**2 / (8 * units[0] ** 2)
    root, checked = math.sqrt(2), 0
    with mpmath.workdps(60):
        for epsilon in (1e-7, 1e-5, 1e-3, 0.1, 1.0, 10.0, 100.0):
            claim = delta(epsilon, mpmath.mpf(root / multiplier))
            if 1e-100 < claim <= 0.5:
                mu = mpmath.mpf(root * sensitivity / stddev)
                spent = mpmath.exp(eta) * delta(epsilon - 2 * eta, mu)
                assert spent + mpmath.mpf("1e-140") <= claim
                checked += 1
    assert checked >= 1


def test_the_split_is_public():
    table = Table("t", {}, Schema({}, None), "y", np.zeros(1000, bool))
    masks = [table.held_out(0.2).is_test for _ in range(2)]
    assert np.array_equal(*masks)
    assert masks[0].sum() == 200
    # Of a sorted table, every part is held out.
    assert masks[0].reshape(4, 250).sum(axis=1).min() > 30
    for share in (0.001, 0.995):
        with pytest.raises(ValueError, match="--holdout must be a share that holds"):
            table.held_out(share)


@pytest.mark.slow
def test_holdout_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    lines = [f"{a},{300 + 100 * a}" for a in x]
    (tmp_path / "data.csv").write_text("\n".join(["x,y", *lines]))
    text = "columns.x = {center = 0, scale = 1}\n"
    text += "target = {column = 'y', center = 300, scale = 100}"
    (tmp_path / "schema.toml").write_text(text)
    what = ["data.csv", "--schema", "schema.toml", "--loss", "squared", "--epsilon", 2]
    what += ["--holdout", 0.3, "--output", "out"]
    result = done(invoke("train", *what))
    shown = " ".join(result.stdout.split())
    assert "n = 700 records" in shown
    assert "any one of the 1,000 records" in shown
    assert "On 300 records held out, by a budget of their own of epsilon = 2" in shown
    assert "95 per cent bounds for sampling and noise. The constant is the" in shown
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["privacy"]["epsilon"] == 2.0
    assert report["evaluation"]["privacy"]["epsilon"] == 2.0
    measures = report["evaluation"]["measures"]
    model = measures["median of the absolute error"]
    assert model["model"]["value"] < model["constant"]["value"]
