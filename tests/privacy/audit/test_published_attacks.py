"""Published attacks, on a naive release and on dpjax: `docs/privacy/attacks.md`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent

from dpjax import ADD_OR_REMOVE_ONE, accounting, audit, mechanisms, transforms
from dpjax.accounting import PrivacyGuarantee, Sample
from dpjax.estimators import Clipping


def test_a_sample_used_twice(key):
    def release(key, data):
        sample_key, *keys = jax.random.split(key, 3)
        drawn = data[jax.random.randint(sample_key, (), 0, 10)]
        return [mechanisms.laplace(key, drawn, scale=0.5) for key in keys]

    one = PrivacyGuarantee.of(2.0, 0.0, dp_event=LaplaceDpEvent(0.5))
    naive, both = (
        2 * Sample(10, 1).privacy(one).epsilon,
        Sample(10, 1).privacy(one, one),
    )
    given = jnp.zeros(10), jnp.zeros(10).at[0].set(1.0)
    options = {"statistic": lambda x: jnp.minimum(*x), "key": key}
    found = audit.epsilon_lower_bound(release, *given, **options)
    assert naive < found.epsilon <= both.epsilon


def test_a_divisor_that_is_the_private_number_of_records(key):
    def release(key, num):  # all records are 0: the noise alone tells their number
        return mechanisms.gaussian(key, jnp.zeros(100), stddev=4.0 / num)

    few = {"num_releases": 10_000, "statistic": jnp.linalg.norm, "delta": 1e-5}
    found = audit.epsilon_lower_bound(release, 10.0, 9.0, key=key, **few)
    assert found.epsilon > accounting.gaussian_epsilon(4.0, 1e-5, sensitivity=1.0)
    private = {"noise_multiplier": 4.0, "relation": ADD_OR_REMOVE_ONE}
    with pytest.raises(ValueError, match="normalize_by"):
        transforms.privatize(Clipping(1.0), key=jax.random.key(0), **private)


def test_gaps_of_floats(key):
    # Near 0 the float 1 + noise is a multiple of 2^-25, and the float noise is not.
    def are_finer(noisy):
        near = noisy[jnp.abs(noisy) < 2.0**-4] * 2.0**25
        return float(jnp.mean(near != jnp.round(near)))

    key, naive_key = jax.random.split(key)
    noise = jax.random.laplace(naive_key, (10**6,))
    assert are_finer(1.0 + noise) == 0 < 0.5 < are_finer(noise)
    values = jnp.repeat(jnp.array([0.0, 1.0]), 10**6)
    at_0, at_1 = jnp.split(mechanisms.laplace(key, values, scale=1.0), 2)
    assert are_finer(at_0) == pytest.approx(are_finer(at_1), abs=0.02)


def test_rounds_of_a_discrete_sampler():
    # Calls for random bytes, as rounds of the sampler, tell its noise. No claim.
    source, calls, found = np.random.default_rng(0), [], []

    def random_bytes(num):
        calls.append(num)
        return source.bytes(num)

    for _ in range(2_000):
        before = len(calls)
        draw = mechanisms.discrete_gaussian(1, stddev=1, random_bytes=random_bytes)
        found.append((abs(int(draw[0])), len(calls) - before))
    sizes, rounds = np.transpose(found)
    assert rounds[sizes > 1].mean() > rounds[sizes == 0].mean() + 0.1
