"""Batches in turns and epochs: who enters which steps, and what that costs.

Every random check has a fixed key and a false-alarm rate of at most 1e-6.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from dpjax import accounting
from dpjax._types import REPLACE_ONE
from dpjax.batching import (
    BallsInBins,
    CyclicPoisson,
    Disjoint,
    Full,
    Poisson,
    ShuffledEpochs,
    WithoutReplacement,
)
from dpjax.estimators import Mean
from dpjax.solvers import robust_gradient_descent
from tests.unit.refusals import refused

NUM_SAMPLES, NUM_STEPS = 14, 9


def members(batching, key, num_steps=NUM_STEPS, num_samples=NUM_SAMPLES):
    """How often each record is in each step's batch, (num_steps, num_samples)."""

    def step(state, _):
        rows, mask, state = batching.draw(state, jnp.arange(num_samples))
        counts = (~mask).astype(rows.dtype)
        return state, jnp.zeros(num_samples, rows.dtype).at[rows].add(counts)

    state = batching.init(key, num_samples, num_steps, epsilon=1.0, delta=1e-5)
    return jax.lax.scan(step, state, length=num_steps)[1]


@pytest.fixture(scope="module")
def drawn():
    """Members of many runs of each batching."""
    return {
        name: np.asarray(
            jax.jit(jax.vmap(lambda key, b=batching: members(b, key)))(
                jax.random.split(jax.random.key(7), 2_000)
            )
        )
        for name, batching in {
            "cyclic": CyclicPoisson(2.0, cycle_length=3, capacity=4),
            "bins": BallsInBins(4, capacity=NUM_SAMPLES),
            "epochs": ShuffledEpochs(4),
        }.items()
    }


def is_likely(counts, num_trials, prob, num_tests):
    law = scipy.stats.binom(num_trials, prob)
    level = 1e-6 / num_tests / 2
    return ((law.ppf(level) <= counts) & (counts <= law.isf(level))).all()


def test_groups_take_turns(drawn):
    found = drawn["cyclic"]
    assert found.max() == 1
    step, record = np.indices(found.shape[1:])
    may = (record % 3 == step % 3) & (record < 12)  # 4 records a group, 2 in none
    assert not found[:, ~may].any()
    counts = found.sum(axis=0)[may]
    assert is_likely(counts, len(found), 0.5, len(counts))
    # Coins are independent from step to step, and from record to record.
    pairs = (found[:, 0, 0] & found[:, 3, 0]).sum(), (found[:, 0] & 1)[:, [0, 3]].all(1)
    assert is_likely(np.array([pairs[0], pairs[1].sum()]), len(found), 0.25, 2)


def test_every_record_falls_into_one_bin_of_each_epoch(drawn):
    found = drawn["bins"]
    first, second = found[:, :4], found[:, 4:8]
    np.testing.assert_array_equal(first.sum(axis=1), 1)
    np.testing.assert_array_equal(second.sum(axis=1), 1)
    counts = found.sum(axis=0).ravel()
    assert is_likely(counts, len(found), 0.25, counts.size)
    # Bins are independent from record to record, and from epoch to epoch.
    pairs = (first[..., 0] & first[..., 13]).any(axis=1).sum()
    again = (first & second).any(axis=1).sum(axis=0)
    assert is_likely(np.r_[pairs, again], len(found), 0.25, 1 + again.size)


def test_every_epoch_is_a_new_order(drawn):
    found = drawn["epochs"]  # 3 steps an epoch, 2 of 14 records in none
    by_epoch = found.reshape(-1, 3, 3, NUM_SAMPLES).sum(axis=2)
    assert by_epoch.max() == 1
    assert (by_epoch.sum(axis=2) == 12).all()
    assert (found.sum(axis=2) == 4).all()
    counts = found.sum(axis=0).ravel()
    assert is_likely(counts, len(found), 4 / 14, counts.size)
    again = (found[:, 0] & found[:, 3]).sum(axis=0)  # first of one and of the next
    assert is_likely(again, len(found), (4 / 14) ** 2, NUM_SAMPLES)


def test_participation_holds_and_accounting_counts_it(drawn):
    for name, batching in {
        "cyclic": CyclicPoisson(2.0, 3),
        "bins": BallsInBins(4),
        "epochs": ShuffledEpochs(4),
    }.items():
        pattern = batching.participation(NUM_SAMPLES, NUM_STEPS)
        most = pattern["max_participations"]
        assert pattern["num_steps"] == NUM_STEPS
        assert drawn[name].sum(axis=1).max() == most
        cost = batching.accounting(NUM_SAMPLES, NUM_STEPS)
        assert math.ceil(cost["num_steps"] / cost.get("num_bins", 1)) == most
        steps = np.argsort(-drawn[name], axis=1, kind="stable")
        both = drawn[name].sum(axis=1) >= 2
        gaps = (steps[:, 1] - steps[:, 0])[both]
        assert gaps.min() == pattern["min_separation"]
    for batching, pattern in {
        Full(): (6, 1),
        Disjoint(): (1, 6),
        Poisson(2.0): (6, 1),
        WithoutReplacement(2): (6, 1),
    }.items():
        found = batching.participation(12, 6)
        assert tuple(found.values()) == (6, *pattern)


def test_cost_of_cyclic_batches():
    # 3 of 12 steps, at 20 of 200 records; dp_accounting takes stddev / norm bound.
    sampling = CyclicPoisson(20.0, cycle_length=5).accounting(1_000, 12)
    found = accounting.noise_multiplier_to_epsilon(1.5, 1e-5, **sampling)
    accountant = PLDAccountant(REPLACE_ONE)
    event = PoissonSampledDpEvent(0.1, GaussianDpEvent(2 * 1.5))
    expected = accountant.compose(event, 3).get_epsilon(1e-5)
    assert expected <= found < 1.01 * expected
    whole = CyclicPoisson(200.0, cycle_length=5).accounting(1_000, 12)
    assert whole == {"num_steps": 3, "sampling_prob": 1.0}


def test_bins_have_the_capacity_of_poisson_batches(key):
    sizes = [
        x.init(jax.random.clone(key), 100_000, 50, epsilon=1.0, delta=1e-5).capacity
        for x in (BallsInBins(100), Poisson(1_000.0))
    ]
    assert sizes[0] == sizes[1]
    with pytest.raises(ValueError, match="epsilon must be given"):
        BallsInBins(100).init(key, 100_000, 50)
    with pytest.raises(ValueError, match=f"capacity must be at least {sizes[0]}"):
        BallsInBins(100, sizes[0] - 1).init(key, 100_000, 50, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("batching", "num_steps"),
    [
        (ShuffledEpochs(3), 8),
        pytest.param(BallsInBins(4, capacity=12), 8, marks=pytest.mark.slow),
    ],
)
def test_solvers_go_through_epochs(key, batching, num_steps):
    # Two epochs: every record's own parameter has moved twice.
    params = robust_gradient_descent(
        lambda w, i: -w[i],
        jnp.zeros(12),
        jnp.arange(12),
        estimator=Mean(),
        learning_rate=1.0,
        num_steps=num_steps,
        batching=batching,
        key=key,
    ).params
    divisor = batching.divisor(12, num_steps)
    np.testing.assert_allclose(params * divisor, np.full(12, 2.0), rtol=1e-6)


test_bad_sizes = refused(
    lambda make: make(),
    (lambda: CyclicPoisson(1.0, 9).divisor(8, 2), "cycle_length must be at most"),
    (
        lambda: CyclicPoisson(5.0, 2).accounting(8, 2),
        "expected_batch_size must be at most .* of a group, 4",
    ),
    (lambda: BallsInBins(2**16 + 1), "num_bins must be at most 65,536"),
    (lambda: BallsInBins(9).accounting(8, 2), "num_bins must be at most"),
    (lambda: ShuffledEpochs(9).divisor(8, 2), "batch_size must be at most"),
)
