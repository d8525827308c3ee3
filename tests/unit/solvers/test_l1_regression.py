"""Private l1 regression: its scores and their units, heavy tails, chunks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import RandomizedResponseDpEvent, SelfComposedDpEvent

from dpjax.constraints import Box, grid_net
from dpjax.solvers import dp_l1_regression
from dpjax.solvers.papers import _l1_regression


@jax.jit(static_argnums=4)
def scores_of(features, targets, candidates, truncation, order):
    fixed_point = _l1_regression.FixedPoint.of(targets.size, order)
    blocks = _l1_regression.row_blocks(features, targets, truncation, fixed_point)
    return _l1_regression.chunk_scores(blocks, candidates.T, fixed_point)


def solve(features, targets, fit=dp_l1_regression, **changes):
    options = {"key": jax.random.key(1), "epsilon": 1.0, "truncation": 1.0}
    return fit(features, targets, **options | changes)


def problem(num_samples, num_candidates=64, num_features=3):
    rng = np.random.default_rng(num_samples)
    features = rng.normal(size=(num_samples, num_features))
    targets = features.sum(axis=1) + rng.standard_t(1.5, num_samples)
    candidates = rng.uniform(-2, 2, (num_candidates, num_features))
    candidates[:2] = [[0.0], [1.0]]
    return [jnp.asarray(a, jnp.float32) for a in (features, targets, candidates)]


@pytest.mark.parametrize(
    ("num_samples", "order", "truncation", "num_features"),
    [
        (1, 2.0, 0.7, 3),
        (65, 1.5, 0.7, 3),
        (5000, 1.1, 0.7, 3),
        (100_000, 2.0, 0.7, 3),
        (200, 2.0, 0.1, 20),  # which take a matrix product
    ],
)
def test_scores_are_the_formula(num_samples, order, truncation, num_features):
    data = problem(num_samples, num_features=num_features)
    scores = scores_of(*data, truncation, order)
    x, y, w = (np.asarray(a, np.float64) for a in data)
    z = np.minimum(truncation * np.abs(y[:, None] - x @ w.T), 1)
    psi = -np.log1p(-z + z**order / order)  # (6), (16)
    fixed_point = _l1_regression.FixedPoint.of(num_samples, order)
    expected = (math.log(order) - psi).sum(axis=0) / fixed_point.unit
    atol = 2.0**-fixed_point.score_bits + 1e-5 * num_samples
    np.testing.assert_allclose(scores, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("order", [2.0, 1.5, 1.1])
@pytest.mark.parametrize("num_samples", [1, 41, 64, 65, 5000, 100_000, 2**24 - 1])
def test_units_hold_what_the_proof_says(num_samples, order):
    unit, length, fine, coarse = _l1_regression.FixedPoint.of(num_samples, order)[1:]
    assert length * math.log2(order) < 127  # no product overflows
    assert num_samples * 2**fine < 2**31
    assert num_samples * 2**coarse < 2**24
    assert fine >= coarse >= 0
    error = length * 2.0**-23 + 2.0**-17 * max(1, length * math.log(order))
    change = 2**fine * (math.log(order) + 2 * error) / unit + 1
    assert change <= 2**fine * (1 + 1e-12)
    assert unit / math.log(order) < (1.002 if num_samples <= 10**5 else 1.01)


def test_chunks_change_nothing_and_the_guarantee_is_pure():
    features, targets, candidates = problem(3000)
    best = candidates[scores_of(features, targets, candidates, 1.0, 2.0).argmax()]
    for chunk_size in (7, 1000):
        options = {"epsilon": 1e5, "candidates": candidates, "chunk_size": chunk_size}
        solution = solve(features, targets, **options)
        np.testing.assert_array_equal(solution.params, best)
        assert solution.stats["num_chunks"] == -(-64 // chunk_size)
    privacy = solution.privacy
    assert (privacy.epsilon, privacy.delta) == (1e5, 0.0)
    assert "3,000 records" in str(privacy)
    assert solution.stats["num_candidates"] == 64
    answer = RandomizedResponseDpEvent(0.0, 2)  # a wrong one has probability e^-1e5
    assert privacy.dp_event == SelfComposedDpEvent(answer, 1)


def test_heavy_tails_and_outliers_leave_the_parameters_near(key):
    # Noise with 1.5 degrees of freedom has no variance; targets are off by any amount
    # in one record of fifty. theta = 1.3: E|t|^1.3 < 3, and |x| adds to it.
    truth = jnp.array([0.6, -0.4])
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(20_000, 2)), jnp.float32)
    noise = jnp.asarray(rng.standard_t(1.5, 20_000), jnp.float32)
    targets = (features @ truth + 0.3 * noise).at[::50].set(1e30)
    wide = [np.asarray(a, np.float64) for a in (features, targets)]
    assert np.abs(np.linalg.lstsq(*wide)[0]).max() > 2  # where squares fail
    options = {"moment_order": 1.3, "residual_moment_bound": 3.0, "truncation": None}
    options["candidates"] = grid_net(Box(-1.0, 1.0), 2, radius=0.03)
    params = solve(features, targets, key=key, epsilon=4.0, **options).params
    assert jnp.linalg.norm(params - truth) < 0.2


def test_blocks_side_by_side_give_the_scores_of_one_by_one(monkeypatch):
    # What other platforms run, run here.
    data = problem(9000)
    expected = scores_of(*data, 1.0, 2.0)
    of_others = lambda *, cpu, default: default()  # noqa: E731
    monkeypatch.setattr(jax.lax, "platform_dependent", of_others)
    scores = scores_of.__wrapped__(*data, 1.0, 2.0)
    # Products may be taken in another order, in which they round otherwise.
    np.testing.assert_allclose(scores, expected, rtol=0, atol=0.01)
