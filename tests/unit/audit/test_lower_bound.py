"""Lower bounds on epsilon: right as often as they say, near the truth, for any release.

Randomized response, Laplace and Gaussian noise have a known epsilon. A bound at
confidence c may pass it in a share 1 - c of all keys; what more than that is allowed in
a test happens by chance once in a million.
"""

import math
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.accounting import gaussian_epsilon
from dpjax.audit import epsilon_lower_bound, one_run
from dpjax.audit._lower_bound import clopper_pearson

FALSE_ALARM = 1e-6
gaussian_lower_bound = partial(epsilon_lower_bound, is_gaussian=True)


def randomized_response(epsilon):
    """Tells a bit, and lies with probability 1 / (1 + e^epsilon)."""

    def release(key, bit):
        lies = jax.random.bernoulli(key, 1 / (1 + math.exp(epsilon)), bit.shape)
        return bit ^ lies

    return release


def laplace(key, value):
    return value + jax.random.laplace(key, value.shape)


def gaussian(key, value):
    return value + jax.random.normal(key, value.shape)


RESPONSE = randomized_response(1.0)
BITS = jnp.array(False), jnp.array(True)
NUMBERS = jnp.zeros(()), jnp.ones(())
# name: release, two data sets, delta, the true epsilon at delta
KNOWN = {
    "response": (RESPONSE, *BITS, 0.0, 1.0),
    "laplace": (laplace, *NUMBERS, 0.0, 1.0),
    "gaussian": (gaussian, *NUMBERS, 0.05, gaussian_epsilon(1, 0.05, sensitivity=1)),
    "same": (laplace, jnp.zeros(20), jnp.zeros(20), 0.0, 0.0),
}


@pytest.mark.parametrize("significance", [0.025, 5e-7])
def test_clopper_pearson_intervals_have_tails_of_their_significance(significance):
    for total in (1, 10, 10_000):
        counts = np.unique([0, 1, total // 3, total - 1, total])
        low, high = clopper_pearson(counts, total, significance)
        assert (low[0], high[-1]) == (0, 1)
        above = scipy.stats.binom.sf(counts[1:] - 1, total, low[1:])
        below = scipy.stats.binom.cdf(counts[:-1], total, high[:-1])
        np.testing.assert_allclose([above, below], significance, rtol=1e-6)


EACH = [(epsilon_lower_bound, name) for name in KNOWN]
EACH.append((gaussian_lower_bound, "gaussian"))


@pytest.mark.quick(2)
@pytest.mark.parametrize(("bound", "name"), EACH)
def test_bounds_pass_epsilon_as_rarely_as_their_confidence_says(
    bound, name, key, request
):
    num_keys = 1000 if request.config.getoption("--all-cases") else 50
    release, data, neighbor, delta, truth = KNOWN[name]
    options = {"delta": delta, "num_releases": 1000, "confidence": 0.8}
    bounds = [
        bound(release, data, neighbor, key=each, **options).epsilon
        for each in jax.random.split(key, num_keys)
    ]
    most = scipy.stats.binom.isf(FALSE_ALARM, num_keys, 0.2)
    assert np.sum(np.array(bounds) > truth) <= most


@pytest.mark.parametrize(
    ("name", "share"), [("response", 0.9), ("laplace", 0.88), ("gaussian", 0.75)]
)
def test_a_bound_is_near_the_true_epsilon(name, share, key):
    release, data, neighbor, delta, truth = KNOWN[name]
    audit = epsilon_lower_bound(release, data, neighbor, key=key, delta=delta)
    assert share * truth <= audit.epsilon <= truth
    assert (audit.num_releases, audit.num_tested) == (100_000, 35_000)
    assert audit.confidence == 1 - 1e-6


def test_gaussian_bound_is_tight(key):
    audit = gaussian_lower_bound(gaussian, *NUMBERS, key=key, delta=1e-5)
    truth = gaussian_epsilon(1, 1e-5, sensitivity=1.0)
    assert 0.85 * truth <= audit.epsilon <= truth


@pytest.mark.parametrize(("p", "q"), [(0.02, 0.3), (0.7, 0.98)])
def test_a_bound_is_near_the_log_ratio_of_rare_and_of_likely_events(p, q, key):
    options = {"key": key, "statistic": jnp.asarray}
    audit = epsilon_lower_bound(jax.random.bernoulli, p, q, **options)
    assert 0.85 * math.log(15) <= audit.epsilon <= math.log(15)


def test_a_bound_leaves_out_events_of_probability_delta(key):
    def release(key, bit):  # tells the bit once in fifty times, else nothing
        return jnp.where(jax.random.bernoulli(key, 0.02), jnp.where(bit, 1, -1), 0)

    def bound(key, delta):
        return epsilon_lower_bound(release, *BITS, key=key, delta=delta).epsilon

    keys = jax.random.split(key, 3)
    assert bound(keys[0], 0.0) > 3
    assert bound(keys[1], 0.01) > 2
    assert bound(keys[2], 0.02) == 0


def scale(key, stddev):
    return stddev * jax.random.normal(key, (3,))


def correlated(key, value):
    shared, own = jax.random.split(key)
    noise = jax.random.normal(shared) + 0.1 * jax.random.normal(own)
    return {"a": jnp.stack([noise + value, noise]), "b": jnp.zeros(2)}


def sometimes_nan(key, probability):
    return jnp.where(jax.random.bernoulli(key, probability), jnp.nan, 0.0)


def pair_of_bits(key, sign):  # each bit is fair; only together they tell
    first, second = jax.random.bernoulli(key, 0.5, (2,))
    return jnp.stack([first, jnp.where(sign, first, second)])


LEARNT = {
    scale: (1.0, 2.0, 4.0),
    correlated: (0.0, 1.0, 5.0),
    sometimes_nan: (0.1, 0.5, 1.4),
    pair_of_bits: (False, True, 5.0),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("release", LEARNT)
def test_statistics_are_learnt_for_any_release(release, key):
    data, neighbor, least = LEARNT[release]
    audit = epsilon_lower_bound(
        release, data, neighbor, key=key, num_releases=40_000, confidence=0.99
    )
    assert audit.epsilon >= least


def test_audits_with_one_key_agree_in_any_batch_size_and_on_the_host(key, monkeypatch):
    def on_host(key, value):
        assert not isinstance(value, jax.core.Tracer)
        return np.asarray(laplace(key, value))

    def audit(release, key, **options):
        options |= {"key": key, "num_releases": 1000}
        return epsilon_lower_bound(release, *NUMBERS, **options)

    first = audit(laplace, jax.random.clone(key))
    with monkeypatch.context() as patch:
        patch.setattr("dpjax.audit._releases._LARGEST_BATCH", 33)
        assert first == audit(laplace, jax.random.clone(key))
    assert first == audit(on_host, jax.random.clone(key), vectorize=False)
    assert audit(laplace, jax.random.fold_in(key, 1)).threshold != first.threshold


def test_a_release_is_traced_once_and_data_are_not_copied(key, monkeypatch):
    shapes = []

    def release(key, rows):
        shapes.append(rows.shape)
        return rows.sum() + jax.random.normal(key)

    data = jnp.zeros((1000, 1000))  # 10,000 copies would take 40 GB
    neighbor = data.at[0, 0].set(1.0)
    monkeypatch.setattr("dpjax.audit._releases._CHUNK_SIZE", 10**11)  # in one batch
    audit = epsilon_lower_bound(release, data, neighbor, key=key, num_releases=20_000)
    assert audit.num_releases == 20_000
    # Once for the shape of what is released, once for both data sets.
    assert shapes == [(1000, 1000)] * 2


def test_a_key_that_is_used_twice_is_caught(key):
    def release(key, value):
        return value + jax.random.normal(key) + jax.random.normal(key)

    with pytest.raises(jax.errors.KeyReuseError):
        epsilon_lower_bound(release, *NUMBERS, key=key, num_releases=1000)
    epsilon_lower_bound(laplace, *NUMBERS, key=key, num_releases=1000)
    with pytest.raises(jax.errors.KeyReuseError):
        jax.random.normal(key)


def bits_of(size):
    bits = {"data": jnp.zeros(size, bool), "neighbor": jnp.ones(size, bool)}
    return bits | {"statistic": jnp.asarray}


@pytest.mark.parametrize("delta", [0.0, 1e-6])  # delta m is far below 1/20
def test_one_run_is_tight_where_records_are_released_alone(delta, key):
    size = 20_000
    audit = one_run(randomized_response(2.0), **bits_of(size), key=key, delta=delta)
    assert 1.75 <= audit.epsilon <= 2
    assert audit.num_canaries == size
    assert audit.num_correct / audit.num_guesses == pytest.approx(0.88, abs=0.02)


def test_one_run_is_valid_over_many_keys(key):
    options = {**bits_of(100), "confidence": 0.8}
    audits = [one_run(RESPONSE, key=x, **options) for x in jax.random.split(key, 50)]
    num_failed = sum(audit.epsilon > 1.0 for audit in audits)
    assert num_failed <= scipy.stats.binom.isf(FALSE_ALARM, 50, 0.2)


def test_one_run_counts_records_that_differ(key):
    size = 4000
    data = {"x": jnp.zeros((size, 2)), "y": jnp.zeros(size)}
    half = jnp.arange(size) < size // 2
    neighbor = {"x": data["x"].at[:, 1].set(jnp.where(half, 1.0, 0.0)), "y": data["y"]}

    def release(key, records):
        assert records["y"].shape == (size,)
        return records["x"].sum(axis=1) + 0.1 * jax.random.normal(key, size)

    audit = one_run(release, data, neighbor, key=key, statistic=jnp.asarray)
    assert audit.num_canaries == size // 2
    assert audit.num_guesses == audit.num_correct > 0
    assert audit.epsilon > 4


def test_one_run_names_the_extra_that_it_needs(key, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_privacy.auditing", None)
    with pytest.raises(ImportError, match=r'pip install "dpjax\[audit\]"'):
        one_run(RESPONSE, *BITS, key=key, statistic=jnp.asarray)


def test_one_run_needs_one_number_for_each_record(key):
    data = jnp.zeros(5), jnp.ones(5)
    with pytest.raises(ValueError, match=r"must be of shape \(\d+,\), one number"):
        one_run(laplace, *data, key=key, statistic=jnp.sum)
