"""Published attacks, on a naive release and on dpjax: `docs/privacy/attacks.md`."""

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent

from dpjax import ADD_OR_REMOVE_ONE, accounting, audit, mechanisms, transforms
from dpjax.estimators import Clipping


def test_a_sample_used_twice(key):
    def release(key, data):
        sample_key, *keys = jax.random.split(key, 3)
        drawn = data[jax.random.randint(sample_key, (), 0, 10)]
        return jnp.minimum(*[mechanisms.laplace(key, drawn, scale=0.5) for key in keys])

    one = accounting.PrivacyGuarantee.of(2.0, 0.0, dp_event=LaplaceDpEvent(0.5))
    naive, ours = (
        2 * accounting.Sample(10, 1).privacy(one).epsilon,
        accounting.Sample(10, 1).privacy(one, one),
    )
    data = jnp.zeros(10)
    found = audit.epsilon_lower_bound(release, data, data.at[0].set(1.0), key=key)
    assert naive < found.epsilon <= ours.epsilon


def test_a_divisor_that_is_the_private_number_of_records(key):
    def release(key, num):  # all records are 0: the noise alone tells their number
        noisy = mechanisms.gaussian(key, jnp.zeros(100), stddev=4.0 / num)
        return jnp.linalg.norm(noisy)

    found = audit.epsilon_lower_bound(release, 10.0, 9.0, key=key, delta=1e-5)
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
    noise = jax.random.laplace(naive_key, (200_000,))
    assert are_finer(1.0 + noise) == 0 < 0.5 < are_finer(noise)
    values = jnp.repeat(jnp.array([0.0, 1.0]), noise.size)
    at_0, at_1 = jnp.split(mechanisms.laplace(key, values, scale=1.0), 2)
    assert are_finer(at_0) == pytest.approx(are_finer(at_1), abs=0.03)


def test_rounds_of_a_discrete_sampler():
    # Calls for random bytes, as rounds of the sampler, tell its noise. No claim.
    source, found = Mock(side_effect=np.random.default_rng(0).bytes), []
    for _ in range(2_000):
        source.reset_mock()
        draw = mechanisms.discrete_gaussian((), stddev=1, random_bytes=source)
        found.append((abs(int(draw)), source.call_count))
    sizes, rounds = np.transpose(found)
    assert rounds[sizes > 1].mean() > rounds[sizes == 0].mean() + 0.1
