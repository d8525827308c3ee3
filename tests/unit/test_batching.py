"""Batches: who enters which steps, and what it costs; false alarms are 1e-6 at most."""

import dataclasses
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import batching as ways
from dpjax.accounting import Sampling
from dpjax.estimators import Winsorization
from dpjax.mechanisms import BandedToeplitz
from dpjax.transforms import privatize

FALSE_ALARM = 1e-6
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
BATCHINGS = {
    "full": ways.Full(),
    "disjoint": ways.Disjoint(),
    "poisson": ways.Poisson(4.0, capacity=12),
    "without_replacement": ways.WithoutReplacement(4),
    "cyclic_poisson": ways.CyclicPoisson(4.0, 2, capacity=6),
    "balls_in_bins": ways.BallsInBins(3, capacity=12),
}
each = pytest.mark.parametrize("name", BATCHINGS)
GROUPS = [(ways.Poisson(50.0), 10_000), (ways.BallsInBins(200), 10_000)]
GROUPS += [(ways.CyclicPoisson(50.0, 5), 2_000)]
NUM_SAMPLES, NUM_STEPS, NUM_RUNS = 14, 9, 2_000
EPOCHS = {
    "cyclic": ways.CyclicPoisson(2.0, cycle_length=3, capacity=4),
    "bins": ways.BallsInBins(4, capacity=NUM_SAMPLES),
}


def begun(batching, key, num_samples, num_steps=1):
    return batching.init(jax.random.clone(key), num_samples, num_steps, **BUDGET)


def first_batch(batching, key, data):
    """One batch, and its mask."""
    return batching.draw(begun(batching, key, len(jax.tree.leaves(data)[0])), data)[:2]


def members(batching, key, num_samples, num_steps=1):
    """How often each record is in each step's batch, (num_steps, num_samples)."""

    def step(state, _):
        rows, mask, state = batching.draw(state, jnp.arange(num_samples))
        counts = (~mask).astype(rows.dtype)
        return state, jnp.zeros(num_samples, rows.dtype).at[rows].add(counts)

    state = begun(batching, key, num_samples, num_steps)
    return jax.lax.scan(step, state, length=num_steps)[1]


def many(draw, num_draws, seed=7):
    keys = jax.random.split(jax.random.key(seed), num_draws)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))


def is_likely(counts, num_trials, prob, num_tests):
    law = scipy.stats.binom(num_trials, prob)
    level = FALSE_ALARM / num_tests / 2
    return ((law.ppf(level) <= counts) & (counts <= law.isf(level))).all()


@pytest.fixture(scope="module")
def drawn():
    """Members of many runs of each batching in turns or epochs."""
    sizes = {"num_samples": NUM_SAMPLES, "num_steps": NUM_STEPS}
    runs = {name: partial(members, x, **sizes) for name, x in EPOCHS.items()}
    return {name: many(run, NUM_RUNS) for name, run in runs.items()}


@each
def test_batches_depend_on_the_key_alone_and_end_with_the_run(name, key):
    batching, index = BATCHINGS[name], jnp.arange(12)
    start = partial(begun, batching, key, 12, num_steps=3)

    @jax.jit
    def run(state, values):
        def step(state, _):
            data = {"index": index, "values": values}
            batch, mask, state = batching.draw(state, data)
            return state, (batch, mask)

        return jax.lax.scan(step, state, length=5)

    values = jnp.arange(1.0, 13.0) / 10
    state, (batches, masks) = run(start(), values)
    # Beyond the last step nothing is drawn.
    assert int(state.step) == 3
    assert not masks[:3].all(axis=1).any()
    assert masks[3:].all()
    if name == "full":
        np.testing.assert_array_equal(batches["values"], jnp.tile(values, (5, 1)))
    else:
        assert not batches["values"][3:].any()
    # Who enters does not depend on values.
    for odd in (jnp.full(12, jnp.nan), 1e38 * index.astype(jnp.float32)):
        _, (moved, moved_masks) = run(start(), odd)
        np.testing.assert_array_equal(moved["index"], batches["index"])
        np.testing.assert_array_equal(moved_masks, masks)
    # A loop of one's own draws the same, and divides by what is public.
    divisor = batching.divisor(12, 3)
    assert divisor == {"full": 12}.get(name, 4)
    options = {"noise_multiplier": 0.0, "key": key, "normalize_by": divisor}
    transform = privatize(Winsorization(1.0), **options)
    noise, state = transform.init(jnp.zeros(())), start()
    for step in range(3):
        batch, mask, state = batching.draw(state, values)
        expected = np.where(masks[step], 0, batches["values"][step])
        np.testing.assert_array_equal(np.where(mask, 0, batch), expected)
        mean, noise = transform.update(batch, noise, is_padding_example=mask)
        total = np.clip(expected, -1, 1).sum()
        np.testing.assert_allclose(mean, total / divisor, rtol=1e-6)
    # A state is for its batching and its records.
    other = ways.Full() if name != "full" else ways.Disjoint()
    with pytest.raises(ValueError, match=r"data must be of length 12, .*'length 14'"):
        batching.draw(start(), jnp.arange(14))
    for wrong, kind in ((start(), other), (3, batching)):
        with pytest.raises(ValueError, match=r"state must be one that .*"):
            kind.draw(wrong, index)


def test_disjoint_batches_when_the_steps_do_not_divide(key):
    data = {"x": np.arange(22.0).reshape(11, 2), "y": jnp.arange(11)}
    seen, state = [], ways.Disjoint().init(key, 11, 3)
    for _ in range(3):
        batch, mask, state = ways.Disjoint().draw(state, data)
        assert not mask.any()
        assert batch["x"].shape == (3, 2)
        np.testing.assert_array_equal(batch["x"][:, 0] / 2, batch["y"])
        seen += batch["y"].tolist()
    assert seen == list(range(9))  # records 9 and 10 are in none
    assert ways.Disjoint().divisor(11, 3) == 3
    assert ways.Disjoint().divisor(3, 3) == 1
    assert ways.Disjoint().sampling(11, 3) == Sampling(1)


def test_records_enter_poisson_batches_by_independent_coins():
    num_samples, num_draws = 20, 20_000
    batching, prob = ways.Poisson(6.0, capacity=num_samples), 0.3
    entered = many(lambda key: members(batching, key, num_samples)[0], num_draws)
    assert entered.max() == 1
    assert is_likely(entered.sum(axis=0), num_draws, prob, num_samples)
    # Coins are independent: the size of a batch is Binomial(n, q). Dvoretzky, Kiefer,
    # Wolfowitz, Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    sizes = np.bincount(entered.sum(axis=1), minlength=num_samples + 1) / num_draws
    law = scipy.stats.binom(num_samples, prob).cdf(np.arange(num_samples + 1))
    distance = np.abs(np.cumsum(sizes) - law).max()
    assert distance <= math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))


@pytest.mark.parametrize("expected", [1 / 3, 2.9999999, 1e-12, 3.0])
def test_poisson_probability_never_passes_q(expected, key, monkeypatch):
    # Of the 2^32 words exactly floor(q 2^32) let a record enter.
    threshold = int(expected / 3 * 2**32)
    words = [max(threshold, 1) - 1, min(threshold, 2**32 - 1), 2**32 - 1]
    words = jnp.asarray(np.array(words, np.uint32))
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: words)
    rows, mask = first_batch(ways.Poisson(expected, capacity=3), key, jnp.arange(3))
    entered = set(np.asarray(rows)[~np.asarray(mask)].tolist())
    if expected == 3.0:
        assert entered == {0, 1, 2}
    else:
        assert entered == ({0} if threshold > 0 else set())
    assert threshold / 2**32 <= expected / 3


def test_poisson_overflow_drops_the_last_and_padding_is_zeros(key):
    state = dataclasses.replace(begun(ways.Poisson(7.0), key, 7), capacity=3)
    rows, mask, _ = ways.Poisson(7.0).draw(state, jnp.arange(7))
    assert sorted(rows.tolist()) == [0, 1, 2]
    assert not mask.any()
    data = {"x": jnp.ones((6, 2)), "y": np.ones(6, int), "z": jnp.ones(6, bool)}
    batch, mask = first_batch(ways.Poisson(3.0, capacity=20), key, data)
    assert 0 < mask.sum() < 20
    for leaf in batch.values():  # were it a record's, that record would count often
        np.testing.assert_array_equal(leaf.reshape(20, -1).any(axis=1), ~mask)
    assert [leaf.dtype for leaf in batch.values()] == ["float32", "int32", "bool"]
    batch, mask = first_batch(ways.Poisson(1e-9), key, jnp.full((5, 2), jnp.nan))
    assert batch.shape == (1, 2)
    assert mask.all()
    divisor = ways.Poisson(1e-9).divisor(5, 1)
    mean = Winsorization(1.0)(batch, mask, normalize_by=divisor)
    np.testing.assert_array_equal(mean, jnp.zeros(2))


def test_poisson_places_do_not_depend_on_who_else_is_there():
    # Every record takes each row equally often, whatever its index: a record that
    # comes or goes moves no other. Chi-square with 9 degrees of freedom passes 44.8
    # once in 1e6 tests; records in order of their index would give thousands.
    def is_last(key):
        rows, mask = first_batch(ways.Poisson(4.0, capacity=10), key, jnp.arange(8))
        return (rows == 7) & ~mask

    counts = many(is_last, 20_000).sum(axis=0)
    expected = counts.sum() / 10
    assert ((counts - expected) ** 2 / expected).sum() < 44.8


@pytest.mark.parametrize(("batching", "group"), GROUPS)
def test_capacity_is_priced(batching, group, key):
    def capacity(**changes):
        changed = dataclasses.replace(batching, **changes)
        return begun(changed, key, 10_000, 100).capacity

    # At most a thousandth of delta for the overflow of 100 steps, and hardly less.
    least = capacity()
    tail = scipy.stats.binom(group, 50 / group).sf([least, least - 1])
    cost = (1 + math.e) * 100 * tail / (1e-3 * 1e-5)
    assert cost[0] <= 1 < cost[1]
    assert capacity(capacity=200) == 200
    with pytest.raises(ValueError, match=rf"capacity must be at least {least}.*got"):
        capacity(capacity=least - 1)
    for budget, name in (({}, "epsilon"), ({"epsilon": 1.0}, "delta")):
        with pytest.raises(ValueError, match=f"{name} must be given: the capacity"):
            batching.init(key, 10_000, 100, **budget)


@pytest.mark.parametrize(
    ("num_samples", "size", "spread"), [(40, 3, 8), (5, 4, 0.0), (4, 4, 8)]
)
def test_subsets_are_uniform_however_often_they_are_drawn(
    monkeypatch, num_samples, size, spread
):
    # Without room for more heads than are wanted, most draws are thrown away.
    monkeypatch.setattr(ways._fixed_size, "_SPREAD", spread)
    num_draws, batching = 20_000, ways.WithoutReplacement(size)
    index = jnp.arange(num_samples)
    rows = many(lambda key: first_batch(batching, key, index)[0], num_draws)
    assert ((rows >= 0) & (rows < num_samples)).all()
    assert all(len(set(row)) == size for row in rows.tolist())
    # Groups of a median of means are places: each must be equally likely for a record.
    places = list(itertools.combinations(range(size), 2))
    prob = 1 / (num_samples * (num_samples - 1))
    for i, j in places:
        pairs = np.zeros((num_samples, num_samples))
        np.add.at(pairs, (rows[:, i], rows[:, j]), 1)
        off_diagonal = pairs[~np.eye(num_samples, dtype=bool)]
        assert is_likely(off_diagonal, num_draws, prob, len(places) * num_samples**2)


def test_equal_random_numbers_are_drawn_again(monkeypatch):
    # Of one bit most draws have ties: taken by index, they would favor first records.
    bits, shapes = jax.random.bits, []

    def few_bits(key, shape, dtype):
        words = bits(key, shape, dtype)
        shapes.append(shape)
        return words >> 31 if len(shape) == 2 else words

    monkeypatch.setattr(jax.random, "bits", few_bits)
    rows = many(partial(ways._fixed_size.uniform_subset, size=2, num_samples=4), 4_000)
    assert (2, 4) in shapes
    for place in range(2):
        assert is_likely(np.bincount(rows[:, place], minlength=4), 4_000, 1 / 4, 8)


def test_groups_take_turns(drawn):
    entered = drawn["cyclic"]
    assert entered.max() == 1
    step, record = np.indices(entered.shape[1:])
    may = (record % 3 == step % 3) & (record < 12)  # 4 records a group, 2 in none
    assert not entered[:, ~may].any()
    counts = entered.sum(axis=0)[may]
    assert is_likely(counts, NUM_RUNS, 0.5, len(counts))
    # Coins are independent from step to step, and from record to record.
    pairs = [entered[:, [0, 3], 0].all(1).sum(), entered[:, 0, [0, 3]].all(1).sum()]
    assert is_likely(np.array(pairs), NUM_RUNS, 0.25, 2)


def test_every_record_falls_into_one_bin_of_each_epoch(drawn):
    entered = drawn["bins"]
    first, second = entered[:, :4], entered[:, 4:8]
    assert (first.sum(axis=1) == 1).all()
    assert (second.sum(axis=1) == 1).all()
    counts = entered.sum(axis=0).ravel()
    assert is_likely(counts, NUM_RUNS, 0.25, counts.size)
    # Bins are independent from record to record, and from epoch to epoch.
    pairs = (first[..., 0] & first[..., 13]).any(axis=1).sum()
    again = (first & second).any(axis=1).sum(axis=0)
    assert is_likely(np.r_[pairs, again], NUM_RUNS, 0.25, 1 + again.size)


def test_participation_holds_and_accounting_counts_it(drawn):
    strategy = BandedToeplitz(99, (1.0,))
    for name, batching in EPOCHS.items():
        pattern = batching.sampling(NUM_SAMPLES, NUM_STEPS, strategy=strategy)
        most = pattern.max_participations
        assert (pattern.num_steps, drawn[name].sum(axis=1).max()) == (NUM_STEPS, most)
        cost = batching.sampling(NUM_SAMPLES, NUM_STEPS)
        assert math.ceil(cost.num_steps / (cost.num_bins or 1)) == most
        steps = np.argsort(-drawn[name], axis=1, kind="stable")
        both = drawn[name].sum(axis=1) >= 2
        assert (steps[:, 1] - steps[:, 0])[both].min() == pattern.min_separation
    for batching, pattern in {
        ways.Full(): {"max_participations": 6},
        ways.Disjoint(): {"min_separation": 6},
        ways.Poisson(2.0): {"max_participations": 6},
        ways.WithoutReplacement(2): {"max_participations": 6},
    }.items():
        fields = {"strategy": strategy, **pattern}
        assert batching.sampling(12, 6, strategy=strategy) == Sampling(6, **fields)


def test_batches_are_accounted_for_as_they_are_sampled():
    assert ways.Full().sampling(100, 5) == Sampling(5)
    assert ways.Poisson(10.0).sampling(100, 5) == Sampling(5, sampling_prob=0.1)
    assert ways.BallsInBins(3).sampling(100, 5) == Sampling(5, num_bins=3)
    sizes = {"num_samples": 100, "batch_size": 7}
    assert ways.WithoutReplacement(7).sampling(100, 5) == Sampling(5, **sizes)
    for expected in (20.0, 200.0):  # 3 of 12 steps, of 200 records
        sampling = ways.CyclicPoisson(expected, cycle_length=5).sampling(1_000, 12)
        assert sampling == Sampling(3, sampling_prob=expected / 200)


def test_sizes_beyond_the_data_are_refused(key):
    for batching, num_steps, name in (
        (ways.Disjoint(), 9, "num_steps"),
        (ways.Poisson(8.5), 2, "expected_batch_size"),
        (ways.WithoutReplacement(9), 2, "batch_size"),
        (ways.CyclicPoisson(1.0, 9), 2, "cycle_length"),
        (ways.CyclicPoisson(5.0, 2), 2, "expected_batch_size"),
        (ways.BallsInBins(9), 2, "num_bins"),
    ):
        for method in (batching.divisor, batching.sampling):
            with pytest.raises(ValueError, match=f"{name} must be at most"):
                method(8, num_steps)
        with pytest.raises(ValueError, match=f"{name} must be at most"):
            begun(batching, key, 8, num_steps)
    with pytest.raises(ValueError, match="num_bins must be at most 65,536"):
        ways.BallsInBins(2**16 + 1)
