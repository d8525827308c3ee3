"""Batches: who enters, in which shape, and what it costs.

Every random check has a fixed key and a false-alarm rate of at most 1e-6.
"""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting
from dpjax.accounting._shared import poisson_capacity
from dpjax.batching import (
    BallsInBins,
    CyclicPoisson,
    Disjoint,
    Full,
    Poisson,
    ShuffledEpochs,
    WithoutReplacement,
    _without_replacement,
)
from dpjax.estimators import MedianOfMeans, Truncation, Winsorization
from dpjax.transforms import privatize

FALSE_ALARM = 1e-6
BATCHINGS = {
    "full": Full(),
    "disjoint": Disjoint(),
    "poisson": Poisson(4.0, capacity=12),
    "without_replacement": WithoutReplacement(4),
    "cyclic_poisson": CyclicPoisson(4.0, 2, capacity=6),
    "balls_in_bins": BallsInBins(3, capacity=12),
    "shuffled_epochs": ShuffledEpochs(4),
}
each = pytest.mark.parametrize("name", BATCHINGS)


def begun(batching, key, num_samples, num_steps=1, step=0):
    """A state before some step."""
    state = batching.init(key, num_samples, num_steps, epsilon=1.0, delta=1e-5)
    return dataclasses.replace(state, step=jnp.asarray(step, jnp.int32))


def drawn(batching, key, data, num_steps=1, step=0):
    """One batch, and its mask."""
    num_samples = len(jax.tree.leaves(data)[0])
    return batching.draw(begun(batching, key, num_samples, num_steps, step), data)[:2]


def binomial_bounds(num_trials, prob, num_tests):
    law = scipy.stats.binom(num_trials, prob)
    level = FALSE_ALARM / num_tests / 2
    return law.ppf(level), law.isf(level)


def memberships(batching, num_samples, num_draws, key):
    """Who is in: a 0/1 matrix of shape (num_draws, num_samples)."""

    @jax.jit
    @jax.vmap
    def draw(key):
        rows, mask = drawn(batching, key, jnp.arange(num_samples))
        counts = (~mask).astype(jnp.int32)
        return jnp.zeros(num_samples, jnp.int32).at[rows].add(counts)

    return np.asarray(draw(jax.random.split(key, num_draws)))


def test_full(key):
    data = {"x": jnp.arange(6.0).reshape(3, 2), "y": np.arange(3)}
    batch, mask = drawn(Full(), key, data, num_steps=5, step=2)
    assert batch is data
    assert not mask.any()
    assert Full().divisor(3, 5) == 3


def test_disjoint_batches_when_the_steps_do_not_divide(key):
    data = {"x": np.arange(22.0).reshape(11, 2), "y": jnp.arange(11)}
    seen, state = [], Disjoint().init(key, 11, 3)
    for _ in range(3):
        batch, mask, state = Disjoint().draw(state, data)
        assert not mask.any()
        assert batch["x"].shape == (3, 2)
        np.testing.assert_array_equal(batch["x"][:, 0] / 2, batch["y"])
        seen += batch["y"].tolist()
    assert seen == list(range(9))  # records 9 and 10 are in none
    assert Disjoint().divisor(11, 3) == 3
    assert Disjoint().accounting(11, 3) == {"num_steps": 1}


@pytest.mark.parametrize("method", ["divisor", "accounting"])
def test_disjoint_refuses_more_steps_than_records(method):
    with pytest.raises(ValueError, match="num_steps must be at most the 3 records"):
        getattr(Disjoint(), method)(3, 4)
    assert Disjoint().divisor(3, 3) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("expected", [0.5, 6.0, 19.9])
def test_poisson_inclusion(expected, key):
    num_samples, num_draws = 20, 20_000
    batching = Poisson(expected, capacity=num_samples)
    member = memberships(batching, num_samples, num_draws, key)
    prob = expected / num_samples
    assert member.max() == 1
    low, high = binomial_bounds(num_draws, prob, num_samples)
    counts = member.sum(axis=0)
    assert (low <= counts).all()
    assert (counts <= high).all()
    # Coins are independent: the size of a batch is Binomial(n, q). Dvoretzky, Kiefer,
    # Wolfowitz, Massart: Pr[distance > t] <= 2 exp(-2 n t^2).
    sizes = np.bincount(member.sum(axis=1), minlength=num_samples + 1) / num_draws
    law = scipy.stats.binom(num_samples, prob).cdf(np.arange(num_samples + 1))
    distance = np.abs(np.cumsum(sizes) - law).max()
    assert distance <= math.sqrt(math.log(2 / FALSE_ALARM) / (2 * num_draws))


@pytest.mark.quick(2)
@pytest.mark.parametrize("expected", [1 / 3, 0.1, 2.9999999, 1e-12, 3.0])
def test_poisson_probability_never_passes_q(expected, key, monkeypatch):
    # Of the 2^32 words exactly floor(q 2^32) let a record enter.
    threshold = int(expected / 3 * 2**32)
    words = np.array(
        [max(threshold, 1) - 1, min(threshold, 2**32 - 1), 2**32 - 1], np.uint32
    )
    monkeypatch.setattr(
        jax.random, "bits", lambda key, shape, dtype: jnp.asarray(words)
    )
    batching = Poisson(expected, capacity=3)
    rows, mask = drawn(batching, key, jnp.arange(3))
    enters = set(np.asarray(rows)[~np.asarray(mask)].tolist())
    if expected == 3.0:
        assert enters == {0, 1, 2}
    elif threshold == 0:
        assert enters == set()
    else:
        assert enters == {0}
    assert threshold / 2**32 <= expected / 3


def test_poisson_overflow_drops_the_last(key):
    state = dataclasses.replace(begun(Poisson(7.0), key, 7), capacity=3)
    rows, mask, _ = Poisson(7.0).draw(state, jnp.arange(7))
    assert sorted(rows.tolist()) == [0, 1, 2]
    assert not mask.any()


def test_poisson_places_do_not_depend_on_who_else_is_there(key):
    # Every record takes each row equally often, whatever its index: a record that
    # comes or goes moves no other. Chi-square with 9 degrees of freedom passes 44.8
    # once in 1e6 tests; records in order of their index would give thousands.
    batching = Poisson(4.0, capacity=10)

    def row_of_last(key):
        rows, mask = drawn(batching, key, jnp.arange(8))
        return jnp.where((rows == 7) & ~mask, jnp.arange(10), 0).sum(), (
            ((rows == 7) & ~mask).any()
        )

    draws = jax.jit(jax.vmap(row_of_last))
    places, is_in = draws(jax.random.split(key, 20_000))
    counts = np.bincount(np.asarray(places)[np.asarray(is_in)], minlength=10)
    expected = counts.sum() / 10
    assert ((counts - expected) ** 2 / expected).sum() < 44.8


def test_poisson_empty_batch(key):
    batching = Poisson(1e-9)
    batch, mask = drawn(batching, key, jnp.full((5, 2), jnp.nan))
    assert batch.shape == (1, 2)
    assert mask.all()
    mean = Winsorization(1.0)(batch, mask, normalize_by=batching.divisor(5, 1))
    np.testing.assert_array_equal(mean, jnp.zeros(2))


@pytest.mark.parametrize(
    ("batching", "group"), [(Poisson(50.0), 10_000), (CyclicPoisson(50.0, 5), 2_000)]
)
def test_capacity_is_priced(batching, group):
    def capacity(batching):
        return batching.init(
            jax.random.key(0), 10_000, 100, epsilon=1.0, delta=1e-5
        ).capacity

    assert capacity(batching) == poisson_capacity(
        group, 50 / group, num_steps=100, epsilon=1.0, delta=1e-5
    )
    assert capacity(dataclasses.replace(batching, capacity=200)) == 200
    with pytest.raises(ValueError, match=r"capacity must be at least \d+.*got 60"):
        capacity(dataclasses.replace(batching, capacity=60))
    for budget, name in (({}, "epsilon"), ({"epsilon": 1.0}, "delta")):
        with pytest.raises(ValueError, match=f"{name} must be given: the capacity"):
            batching.init(jax.random.key(0), 10_000, 100, **budget)


@pytest.mark.slow
def test_why_a_small_capacity_is_refused():
    # One step, q = 0.02, a capacity so small that every batch is full: a record that
    # enters pushes out another, and the sum moves by 2 C where the accounting of
    # Poisson batches counts C. At the stddev made for delta = 1e-5 this costs 4e-3.
    q, epsilon, delta = 0.02, 1.0, 1e-5
    multiplier = accounting.noise_multiplier(
        epsilon, delta, num_steps=1, sampling_prob=q
    )
    stddev = 2 * multiplier  # in norm bounds C; replacing one moves a sum by 2 C
    x = np.linspace(-12 * stddev, 12 * stddev + 2, 200_001)

    def density(mean):
        return scipy.stats.norm.pdf(x, mean, stddev)

    def spent(p, q):
        return np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)

    absent = (1 - q) * density(0)
    assert spent(absent + q * density(1), absent + q * density(-1)) <= delta
    assert spent(absent + q * density(2), density(0)) > 100 * delta


def test_without_replacement(key):
    num_samples, num_draws = 10, 20_000
    member = memberships(WithoutReplacement(3), num_samples, num_draws, key)
    assert member.max() == 1
    assert (member.sum(axis=1) == 3).all()
    low, high = binomial_bounds(num_draws, 0.3, num_samples)
    counts = member.sum(axis=0)
    assert (low <= counts).all()
    assert (counts <= high).all()
    # Pairs: 3·2 / (10·9) of all batches hold both.
    pairs = member.T @ member
    low, high = binomial_bounds(num_draws, 1 / 15, 45)
    for i in range(num_samples):
        for j in range(i):
            assert low <= pairs[i, j] <= high


@pytest.mark.slow
def test_without_replacement_takes_any_order(key):
    # Median of means groups by position: a record is equally likely at each.
    @jax.jit
    @jax.vmap
    def draw(key):
        return drawn(WithoutReplacement(4), key, jnp.arange(5))[0]

    rows = np.asarray(draw(jax.random.split(key, 20_000)))
    low, high = binomial_bounds(20_000, 1 / 5, 20)
    for position in range(4):
        counts = np.bincount(rows[:, position], minlength=5)
        assert (low <= counts).all()
        assert (counts <= high).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("spread", [0.0, 8])
@pytest.mark.parametrize(("num_samples", "size"), [(40, 3), (5, 4), (4, 4)])
def test_subsets_are_uniform_however_often_they_are_drawn(
    key, monkeypatch, num_samples, size, spread
):
    # Without room for more heads than are wanted, most draws are thrown away.
    monkeypatch.setattr(_without_replacement, "_SPREAD", spread)
    num_draws = 20_000
    draw = jax.jit(
        jax.vmap(
            lambda key: _without_replacement.uniform_subset(key, num_samples, size)
        )
    )
    rows = np.asarray(draw(jax.random.split(key, num_draws)))
    assert ((rows >= 0) & (rows < num_samples)).all()
    assert all(len(set(row)) == size for row in rows.tolist())
    # Every ordered pair of records at every pair of places.
    places = list(itertools.combinations(range(size), 2))
    prob = 1 / (num_samples * (num_samples - 1))
    low, high = binomial_bounds(num_draws, prob, len(places) * num_samples**2)
    for i, j in places:
        pairs = np.zeros((num_samples, num_samples))
        np.add.at(pairs, (rows[:, i], rows[:, j]), 1)
        off_diagonal = pairs[~np.eye(num_samples, dtype=bool)]
        assert (low <= off_diagonal).all()
        assert (off_diagonal <= high).all()


@pytest.mark.slow
def test_equal_random_numbers_are_drawn_again(key, monkeypatch):
    # With one bit a number there are ties in most draws; taken by index, they would
    # favour the first records.
    bits, num_calls = jax.random.bits, []

    def few_bits(key, shape, dtype):
        found = bits(key, shape, dtype)
        num_calls.append(shape)
        return found >> 31 if len(shape) == 2 else found

    monkeypatch.setattr(jax.random, "bits", few_bits)

    @jax.jit
    @jax.vmap
    def draw(key):
        return _without_replacement.uniform_subset(key, 4, 2)

    rows = np.asarray(draw(jax.random.split(key, 20_000)))
    assert (2, 4) in num_calls
    low, high = binomial_bounds(20_000, 1 / 4, 8)
    for position in range(2):
        counts = np.bincount(rows[:, position], minlength=4)
        assert (low <= counts).all()
        assert (counts <= high).all()


@pytest.mark.parametrize("batching", [Poisson(5.5), WithoutReplacement(6)])
def test_sizes_beyond_the_data_are_refused(batching):
    for method in ("divisor", "accounting"):
        with pytest.raises(ValueError, match=r"size must be at most .* records, 5"):
            getattr(batching, method)(5, 1)


@each
def test_a_state_is_for_its_batching_and_its_records(name, key):
    batching = BATCHINGS[name]
    state = begun(batching, key, 12, num_steps=3)
    with pytest.raises(ValueError, match=r"data must be the 12 records .*'14 records'"):
        batching.draw(state, jnp.arange(14))
    other = Full() if name != "full" else Disjoint()
    with pytest.raises(ValueError, match=r"state must be one that .*\.init returned"):
        other.draw(state, jnp.arange(12))
    with pytest.raises(ValueError, match=r"state must be one that .*, got 3"):
        batching.draw(3, jnp.arange(12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 3}, "batch_size must be at most .* records, 3"),
    ],
)
def test_init_names_what_is_wrong(change, message, key):
    with pytest.raises(ValueError, match=message):
        WithoutReplacement(4).init(
            **{"key": key, "num_samples": 12, "num_steps": 3} | change
        )


@pytest.mark.quick(2)
@each
def test_beyond_the_last_step_nothing_is_drawn(name, key):
    batching, data = BATCHINGS[name], jnp.arange(1.0, 13.0)

    @jax.jit
    def run(state):
        def step(state, _):
            batch, mask, state = batching.draw(state, data)
            return state, (batch, mask)

        return jax.lax.scan(step, state, length=5)

    state, (batches, masks) = run(begun(batching, key, 12, num_steps=3))
    assert int(state.step) == 3
    assert not masks[:3].all(axis=1).any()
    assert masks[3:].all()
    if name != "full":  # whose batch is the data
        assert not batches[3:].any()


@pytest.mark.quick(2)
@each
def test_membership_does_not_depend_on_values(name):
    @jax.jit
    def draw(data):
        return drawn(BATCHINGS[name], jax.random.key(3), data, num_steps=3, step=1)

    index, found = jnp.arange(12), []
    for values in (jnp.zeros(12), jnp.full(12, jnp.nan), 1e38 * jnp.arange(12.0)):
        batch, mask = draw({"index": index, "values": values})
        found.append((batch["index"], mask))
    for rows, mask in found[1:]:
        np.testing.assert_array_equal(rows, found[0][0])
        np.testing.assert_array_equal(mask, found[0][1])


@pytest.mark.quick(1)
@each
def test_jit_scan_and_vmap(name):
    batching, data = BATCHINGS[name], jnp.arange(12.0)

    def draw(key, step):
        batch, mask = drawn(batching, key, data, num_steps=3, step=step)
        return jnp.where(mask, -1, batch)

    def body(carry, inputs):
        return carry, draw(*inputs)

    @jax.jit
    def both_ways(keys):
        steps = jnp.arange(3)
        mapped = jax.vmap(draw)(jax.random.clone(keys), steps)
        return mapped, jax.lax.scan(body, None, (keys, steps))[1]

    eager = [draw(jax.random.key(step), step) for step in range(3)]
    for found in both_ways(jax.vmap(jax.random.key)(jnp.arange(3))):
        np.testing.assert_array_equal(found, np.stack(eager))


@each
def test_sampling_costs_no_more_than_all_records(name):
    sampling = BATCHINGS[name].accounting(1_000, 10)
    full = accounting.noise_multiplier(1.0, 1e-5, num_steps=10)
    epsilon = accounting.noise_multiplier_to_epsilon(full, 1e-5, **sampling)
    assert 0 < epsilon <= 1.0
    assert (epsilon > 0.99) == (name == "full")


@pytest.mark.slow
@each
def test_accounting_keywords(name):
    sampling = BATCHINGS[name].accounting(1_000, 10)
    multiplier = accounting.noise_multiplier(1.0, 1e-5, **sampling)
    epsilon = accounting.noise_multiplier_to_epsilon(multiplier, 1e-5, **sampling)
    assert 0.99 < epsilon <= 1.0
    full = accounting.noise_multiplier(1.0, 1e-5, num_steps=10)
    assert multiplier <= full


@pytest.mark.quick(1)
@each
def test_a_loop_of_ones_own(name, key):
    batching, num_steps, data = BATCHINGS[name], 3, jnp.arange(1.0, 13.0) / 10
    divisor = batching.divisor(len(data), num_steps)
    assert divisor == {"full": 12}.get(name, 4)
    transform = privatize(
        Winsorization(1.0),
        noise_multiplier=0.0,
        key=jax.random.key(0),
        normalize_by=divisor,
    )
    state, batches = transform.init(jnp.zeros(())), begun(batching, key, 12, num_steps)
    for _ in range(num_steps):
        batch, mask, batches = batching.draw(batches, data)
        mean, state = transform.update(batch, state, is_padding_example=mask)
        expected = np.clip(np.asarray(batch)[~np.asarray(mask)], -1, 1).sum() / divisor
        np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_groups_refuse_a_sampled_divisor(key):
    batching = Poisson(4.0, capacity=12)
    batch, mask = drawn(batching, key, jnp.arange(12.0))
    estimator = MedianOfMeans(Truncation(1.0), 3)
    with pytest.raises(ValueError, match="cannot take a subsampled batch"):
        estimator(batch, mask, normalize_by=batching.divisor(12, 1))


def test_poisson_padding_is_zeros(key):
    data = {"x": jnp.ones((6, 2)), "y": np.ones(6, int), "z": jnp.ones(6, bool)}
    batch, mask = drawn(Poisson(3.0, capacity=20), key, data)
    assert 0 < mask.sum() < 20
    for leaf in batch.values():  # were it a record's, that record would count often
        np.testing.assert_array_equal(leaf.reshape(20, -1).any(axis=1), ~mask)
    assert [leaf.dtype for leaf in batch.values()] == ["float32", "int32", "bool"]
