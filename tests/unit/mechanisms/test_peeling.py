"""Peeling: which coordinates it takes, what it releases, and that both are private."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from dpjax.mechanisms import peeling
from tests.unit.mechanisms.test_selection import renyi

FALSE_ALARM = 1e-6  # of a right mechanism, whose key is fixed
VECTOR = np.array([0.3, -2.0, 1.2, -0.8])
SCALE = 0.7


def with_one_scale(noise, stddev):
    def mechanism(key, vector, *, sparsity, scale):
        scales = {"selection_scale": scale, "release_stddev": stddev * scale}
        return peeling(key, vector, sparsity=sparsity, noise=noise, **scales)

    return mechanism


# name: (mechanism with one scale, law of the released noise)
MECHANISMS = {
    "gumbel": (with_one_scale("gumbel", 1.0), scipy.stats.norm),
    "laplace": (with_one_scale("laplace", math.sqrt(2)), scipy.stats.laplace),
}
each = pytest.mark.parametrize("name", MECHANISMS)


def laplace_pick(sizes, scale):
    """Law of argmax(sizes + Laplace), by quadrature."""
    x = np.linspace(-40 * scale, sizes.max() + 40 * scale, 16_001)
    law = scipy.stats.laplace
    below = [law.cdf(x, size, scale) for size in sizes]
    probs = []
    for j, size in enumerate(sizes):
        of_others = np.prod(below[:j] + below[j + 1 :], axis=0)
        probs.append(scipy.integrate.simpson(law.pdf(x, size, scale) * of_others, x=x))
    return np.array(probs)


def sequential_law(pick, sizes, sparsity, scale):
    """The law of the chosen set when picks are drawn one after another, afresh."""
    law = dict.fromkeys(itertools.combinations(range(len(sizes)), sparsity), 0.0)
    for order in itertools.permutations(range(len(sizes)), sparsity):
        left, prob = list(range(len(sizes))), 1.0
        for j in order:
            prob *= pick(sizes[left], scale)[left.index(j)]
            left.remove(j)
        law[tuple(sorted(order))] += prob
    return law


softmax_pick = lambda sizes, scale: scipy.special.softmax(sizes / scale)  # noqa: E731
PICKS = {"gumbel": softmax_pick, "laplace": laplace_pick}


@pytest.mark.parametrize(
    ("name", "sparsity"), [("gumbel", 1), ("gumbel", 2), ("laplace", 2)]
)
def test_choice_has_the_law_of_sequential_picks(name, sparsity, key):
    mechanism, _ = MECHANISMS[name]
    keys = jax.random.split(key, 100_000)
    vector = jnp.asarray(VECTOR, jnp.float32)
    draw = jax.vmap(lambda key: mechanism(key, vector, sparsity=sparsity, scale=SCALE))
    chosen = np.asarray(jax.jit(draw)(keys)) != 0
    assert (chosen.sum(axis=1) == sparsity).all()
    code = chosen @ (2 ** np.arange(4))

    def rejects(scale):
        law = sequential_law(PICKS[name], np.abs(VECTOR), sparsity, scale)
        counts = [(code == sum(2**j for j in members)).sum() for members in law]
        assert sum(law.values()) == pytest.approx(1, abs=1e-5)
        expected = np.array(list(law.values())) / sum(law.values()) * len(code)
        return scipy.stats.chisquare(counts, expected).pvalue < FALSE_ALARM

    assert not rejects(SCALE)
    assert rejects(SCALE * 0.9)
    assert rejects(SCALE * 1.1)


def test_choice_and_release_have_scales_of_their_own(key):
    vector = jnp.array([5.0, 1.0, -7.0, 0.5])
    first, second = jax.random.split(key)
    exact = peeling(first, vector, sparsity=2, selection_scale=0.0, release_stddev=0.0)
    np.testing.assert_array_equal(exact, [5.0, 0.0, -7.0, 0.0])
    noisy = peeling(second, vector, sparsity=2, selection_scale=0.0, release_stddev=0.1)
    assert ((noisy != 0) == jnp.array([True, False, True, False])).all()
    assert (np.abs(noisy - exact) < 1).all()


@pytest.mark.parametrize("noise", ["gumbel", "laplace"])
def test_infinite_noise_releases_the_set_alone(key, noise):
    scales = {"selection_scale": 0.1, "release_stddev": math.inf}
    chosen = [
        peeling(jax.random.clone(key), v, sparsity=2, noise=noise, **scales)
        for v in (jnp.array([5.0, 1.0, -7.0, 0.5]), jnp.array([9.0, 1.0, 8.0, -0.5]))
    ]
    np.testing.assert_array_equal(chosen[0], [math.inf, 0.0, math.inf, 0.0])
    np.testing.assert_array_equal(*chosen)


def test_release_is_independent_of_the_choice(key):
    # With noise shared between them, a chosen value would be biased upwards.
    keys = jax.random.split(key, 50_000)
    for name, variance in (("gumbel", 1.0), ("laplace", 2.0)):
        mechanism = partial(MECHANISMS[name][0], sparsity=1, scale=1.0)
        draws = jax.vmap(mechanism, (0, None))(jax.random.clone(keys), jnp.zeros(4))
        z = float(draws.sum(axis=1).mean()) / math.sqrt(variance / len(keys))
        assert abs(z) < scipy.stats.norm.isf(FALSE_ALARM / 2)


@each
def test_choice_costs_at_most_its_rho(name):
    # Exact Renyi divergences of the chosen set, on every corner of the sensitivity.
    sparsity, lam = 2, 0.5
    rho = {"gumbel": 1 / 2, "laplace": 2.0}[name] * sparsity * (lam / SCALE) ** 2
    worst = 0.0
    for sizes in ([2.0, 2.0, 2.0], [2.0, 3.0, 4.0]):
        sizes = np.array(sizes)
        before = sequential_law(PICKS[name], sizes, sparsity, SCALE)
        for corner in itertools.product((-lam, lam), repeat=3):
            after = sequential_law(PICKS[name], sizes + corner, sparsity, SCALE)
            p, q = (np.array(list(law.values())) for law in (after, before))
            worst = max(worst, *(renyi(a, p, q) / a for a in (1.01, 2.0, 8.0)))
    assert 0.05 * rho < worst <= rho


@pytest.mark.quick(1)
@each
def test_values_that_are_not_finite_count_as_zero(name, key):
    mechanism, _ = MECHANISMS[name]
    bad = jnp.array([jnp.nan, 1.0, jnp.inf, -3.0, -jnp.inf, 0.2])
    clean = jnp.array([0.0, 1.0, 0.0, -3.0, 0.0, 0.2])
    mixed, plain, largest = (
        mechanism(jax.random.clone(key), vector, sparsity=6, scale=SCALE)
        for vector in (bad, clean, jnp.array([3e38, -3e38, 0.0, 0.0, 0.0, 0.0]))
    )
    np.testing.assert_array_equal(mixed, plain)
    assert jnp.isfinite(largest).all()
