"""Published attacks, on a naive release and on dpjax: `docs/privacy/attacks.md`."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import LaplaceDpEvent

from dpjax import ADD_OR_REMOVE_ONE, accounting, audit, mechanisms, transforms
from dpjax.accounting import PrivacyGuarantee, Sample
from dpjax.datasets import Categorical
from dpjax.estimators import Clipping, Truncation

ROOT = Path(__file__).parents[3]


def test_a_sample_used_twice(key):
    def release(key, data):
        sample_key, *keys = jax.random.split(key, 3)
        drawn = data[jax.random.randint(sample_key, (), 0, 10)]
        return [mechanisms.laplace(key, drawn, scale=0.5) for key in keys]

    one = PrivacyGuarantee.of(2.0, 0.0, dp_event=LaplaceDpEvent(0.5))
    naive, sample = 2 * Sample(10, 1).privacy(one).epsilon, Sample(10, 1)
    data, both = jnp.zeros(10), {"statistic": lambda x: jnp.minimum(*x), "key": key}
    found = audit.epsilon_lower_bound(release, data, data.at[0].set(1.0), **both)
    assert naive < found.epsilon <= sample.privacy(one, one).epsilon


def test_a_divisor_that_is_the_private_number_of_records(key):
    def release(key, num):  # all records are 0: the noise alone tells their number
        return mechanisms.gaussian(key, jnp.zeros(100), stddev=4.0 / num)

    claim = accounting.gaussian_epsilon(4.0, 1e-5, sensitivity=1.0)
    few = {"num_releases": 10_000, "statistic": jnp.linalg.norm, "delta": 1e-5}
    found = audit.epsilon_lower_bound(release, 10.0, 9.0, key=key, **few)
    assert found.epsilon > claim
    private = {"noise_multiplier": 4.0, "relation": ADD_OR_REMOVE_ONE}
    with pytest.raises(ValueError, match="normalize_by"):
        transforms.privatize(Clipping(1.0), key=jax.random.key(0), **private)


def test_a_sum_that_rounds():
    terms = np.full(1_000_000, -1 / 32, np.float32)
    terms[0], terms[1:524_289] = 0.125, 1.0
    neighbor = np.r_[np.float32(-0.875), terms[1:]]
    assert np.cumsum(terms)[-1] - np.cumsum(neighbor)[-1] > 14_000  # 2 is claimed
    moved = Truncation(1.0)(terms) - Truncation(1.0)(neighbor)
    assert 0 < moved <= Truncation(1.0).sensitivity(terms.size, 1).l2


def test_tails_that_end(key):
    largest = 1 - np.float32(2.0**-24)  # of a uniform float32 number, of 24 bits
    naive = np.sqrt(2.0) * jax.scipy.special.erfinv(2 * largest - 1)
    noise = mechanisms.gaussian(key, jnp.zeros(2**26), stddev=1.0)
    assert naive < jnp.max(jnp.abs(noise))


def test_gaps_of_floats(key):
    # Near 0, x = 1 + noise is a multiple of 2^-25 only if the sum is that of floats.
    def are_finer(noisy):
        near = noisy[jnp.abs(noisy) < 2.0**-4] * 2.0**25
        return jnp.mean(near != jnp.round(near))

    key, naive_key = jax.random.split(key)
    noise = 0.5 * jax.random.laplace(naive_key, (10**6,))
    assert are_finer(1.0 + noise) == 0 < 0.5 < are_finer(noise)
    noisy = mechanisms.laplace(key, jnp.repeat(jnp.array([0.0, 1.0]), 10**6), scale=0.5)
    assert are_finer(noisy[: 10**6]) == pytest.approx(
        are_finer(noisy[10**6 :]), abs=0.02
    )


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


def test_labels_that_are_read_from_the_records():
    labels = np.repeat(["no", "yes"], 50)
    neighbor = np.r_[labels[:-1], ["rare"]]
    assert len(np.unique(labels)) < len(np.unique(neighbor))
    declared = Categorical(("no", "yes"))
    assert declared.encode(labels).shape == declared.encode(neighbor).shape


@pytest.mark.parametrize(("multiplier", "is_caught"), [(0.1, True), (1.0, False)])
def test_canaries_of_one_run(multiplier, is_caught, key):
    # Each canary has a direction of its own. The claim is for a multiplier of 1.
    options = {"noise_multiplier": multiplier, "relation": ADD_OR_REMOVE_ONE}

    def release(key, grads):
        private = transforms.privatize(
            Clipping(1.0), key=key, normalize_by=1, **options
        )
        return private.update(grads, private.init(None))[0]

    data, same = jnp.zeros((1_500, 1_500)), {"statistic": jnp.asarray, "key": key}
    found = audit.one_run(release, data, jnp.eye(1_500), delta=1e-5, **same)
    claim = accounting.gaussian_epsilon(1.0, 1e-5, sensitivity=1.0)
    assert (found.epsilon > claim) == is_caught


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs/privacy/attacks.md").read_text()
    named = re.findall(r"`(tests/\S+\.py)`, `(\w+)`", page)
    assert len(named) >= 10
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(), name
