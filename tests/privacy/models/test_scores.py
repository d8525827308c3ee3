"""Private scores: a record moves what they release by the sensitivity at most."""

import itertools
import math

import jax
import mpmath
import numpy as np
import pytest

from dpjax import losses, models
from dpjax.mechanisms import discrete_gaussian
from dpjax.tables.models import _scores

ODD = [0.0, 1e4, 1e38, -1e38, math.nan, math.inf, 3.0]
CLASSES = (0, 1, 2, -1, 7, math.nan)
KINDS = {
    # The loss, the unit of a number, and how far a record moves the counts.
    "numbers": (losses.squared, 100.0, 2.0),
    "amounts": (losses.log_link(1.5), 100.0, 2.0),
    "labels": (losses.logistic, None, math.sqrt(2)),
    "three classes": (losses.softmax(3), None, math.sqrt(14)),
    "four classes": (losses.softmax(4), None, 4.0),
}


def scored(kind, scores, targets, beside, *, multiplier=1.0, key=0):
    loss, scale, _ = KINDS[kind]
    options = {"beside": beside, "loss": loss, "loss_name": kind, "scale": scale}
    options |= {"key": jax.random.key(key), "noise_multiplier": multiplier}
    return models.private_scores(scores, np.asarray(targets, float), **options)


@pytest.fixture
def sums(monkeypatch):
    seen = []

    def record(self, sums, sensitivity):
        seen.append((np.array(sums), sensitivity))
        return sums, 0.0

    monkeypatch.setattr(_scores.Release, "__call__", record)
    interval = _scores.Interval(1.0, 1.0, 1.0)
    monkeypatch.setattr(_scores, "interval_of", lambda *_: interval)
    return seen


def moves(rows):
    rows = np.array([row.ravel() for row, _ in rows])
    return np.linalg.norm(rows[:, None] - rows[None], axis=2).max()


@pytest.mark.parametrize("beside", ["a model", "a constant", "shares"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_moves_counts_and_losses_by_their_sensitivity(kind, beside, sums):
    """With another model beside it a label is counted twice."""
    loss, scale, stated = KINDS[kind]
    num_outputs = loss.num_outputs
    constant = np.zeros(num_outputs if num_outputs > 1 else ())
    for score, target in itertools.product(ODD, CLASSES if scale is None else ODD):
        scores = np.full((3, num_outputs), -1.0)
        scores[0, -1] = score
        scores = scores if num_outputs > 1 else scores[:, 0]
        other = {"a model": -scores, "a constant": constant, "shares": None}
        scored(kind, scores, [target, 1, 2], other[beside])
    of_counts, of_losses = sums[::2], sums[1::2]
    if scale is None:
        stated *= math.sqrt(2) if beside == "a model" else 1
    assert [*{scale for _, scale in of_counts}] == pytest.approx([stated])
    assert 0.7 * stated < moves(of_counts) <= stated * (1 + 1e-12)
    # Of numbers also absolute errors, and of amounts their squares.
    largest = 1000 * math.sqrt({"numbers": 4, "amounts": 6}.get(kind, 2))
    assert [*{scale for _, scale in of_losses}] == pytest.approx([largest])
    # Ends of losses follow from the counts: with equal ones below.
    assert scale is not None or 0.7 * largest < moves(of_losses) <= largest


@pytest.mark.parametrize("marks", [None, [False, True]])
@pytest.mark.parametrize("loss", [losses.squared, losses.log_link(1.5)])
def test_sums_within_given_bounds_move_by_their_sensitivity(sums, loss, marks):
    """Beside them stands the number of records that are marked, if any may be."""
    release = _scores.Release(jax.random.key(0), 1.0)
    odd = np.array([0.0, 1e38, -1e38, np.nan, np.inf, 0.3])
    for score, target in itertools.product(odd, odd[[0, 1, 2, 3, 5]]):
        scores = np.array([[score, 1.0], [-score, 2.0]])
        targets = np.array([target, 1.0])
        values = _scores._losses(scores, targets, loss)
        errors = np.abs(scores - targets)
        terms = [(values, [1.0, 2.0]), (errors, [0.5, 0.5]), (errors, [0.5, 0.5])]
        terms = terms[: 2 if loss is losses.squared else 3]
        for mark in marks or [None]:
            is_end = None if mark is None else np.array([mark, False])
            _scores._means(release, terms, ~np.isnan(targets), 2.0, is_end)
    (stated,) = {scale for _, scale in sums}
    of_marks = 0.25 if marks else 0.0
    assert stated == 1000 * math.sqrt(2 * len(terms) + of_marks)
    assert not marks or np.ptp([row[-1] for row, _ in sums]) == 500
    assert 0.7 * stated < moves(sums) <= stated


@pytest.mark.parametrize("kind", ["numbers", "amounts", "labels"])
def test_scores_of_odd_records_are_finite(kind):
    odd = np.array(ODD * 3)
    for scores in (odd, 1e30 * odd, np.zeros(len(odd))):
        for one in scored(kind, scores, odd[::-1], -scores, multiplier=2.0).measures:
            assert np.isfinite([*one.model, *one.constant]).all()


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_noise_is_what_the_multiplier_says(monkeypatch, kind):
    seen = []

    def spy(shape, *, stddev, random_bytes):
        noise = discrete_gaussian(shape, stddev=stddev, random_bytes=random_bytes)
        seen.append((stddev, noise))
        return noise

    monkeypatch.setattr(_scores, "discrete_gaussian", spy)
    x, multiplier = np.random.default_rng(3).normal(size=50), 7.0
    scored(kind, x, np.sign(x), np.zeros(()), multiplier=multiplier)
    (of_counts, counts), (of_losses, losses_) = seen
    assert not np.isin(losses_, counts).any()
    sensitivity = KINDS[kind][2]
    for stddev, moved in (of_counts, sensitivity), (of_losses, 1000 * sensitivity):
        # In units of a power of two.
        ratio = math.frexp(stddev)[0] / math.frexp(multiplier * moved)[0]
        assert 1 + 2**-17 < ratio < 1.0001
        assert stddev >= 2**20
    assert 0.6 < np.std(counts) / of_counts < 1.4


@pytest.mark.parametrize("multiplier", [0.0, 1e-4, 0.7, 40.0, 3e6, 1e8])
def test_noise_of_counts_hides_their_last_bits(multiplier):
    release = _scores.Release(jax.random.key(0), multiplier)
    counts = np.array([0.0, 1.0, 2.0**24 + 1, 1e9, *[5.0] * 400])
    released, stddev = release(counts, 2.0)
    noise = released - counts
    # All on one grid, whatever the count: float32 noise had more bits near zero.
    unit = 2.0**-20 if stddev < 32 else 2.0 ** -(25 - math.ceil(math.log2(stddev)))
    on_grid = np.array([released, noise]) / min(unit, 1.0)
    np.testing.assert_array_equal(on_grid, np.rint(on_grid))
    assert 2 * multiplier <= stddev <= max(2 * multiplier * 1.01, 1e-6)
    if multiplier > 0.0:
        assert 0.85 < np.std(noise) / stddev < 1.15
    again, _ = _scores.Release(jax.random.key(0), multiplier)(counts, 2.0)
    np.testing.assert_array_equal(again, released)


@pytest.mark.parametrize("size", [68, 84_000])
@pytest.mark.parametrize("multiplier", [0.1, 3.0, 300.0, 1e5])
def test_raised_noise_pays_for_being_discrete(monkeypatch, size, multiplier):
    """With (3) and (4) of `dpjax.accounting._discrete_gaussian`, for two releases."""
    units = []

    def zero(shape, *, stddev, random_bytes):
        units.append(math.sqrt(shape[0]) * stddev)
        return np.zeros(shape, np.int64)

    monkeypatch.setattr(_scores, "discrete_gaussian", zero)
    sensitivity = math.sqrt(size / 20.5)
    release = _scores.Release(jax.random.key(0), multiplier)
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
