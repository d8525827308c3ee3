"""Private selection: its exact law, its privacy on worst neighbours, chunks, floats."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpjax.mechanisms import exponential, permute_and_flip

FALSE_ALARM = 1e-6  # of a right mechanism, whose key is fixed
SCORES = np.array([0.0, 1.5, 2.0, -1.0, 2.5])
EPSILON, RANGE = 1.3, 2.0


def flip_law(scores, sharpness):
    """Permute-and-flip, enumerated: the first head in each of all the orders."""
    heads = np.exp(sharpness * (scores - np.max(scores)))
    law = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        no_head_yet = 1.0
        for v in order:
            law[v] += no_head_yet * heads[v]
            no_head_yet *= 1 - heads[v]
    return law / math.factorial(len(scores))


MECHANISMS = {
    "exponential": (exponential, lambda x, factor: scipy.special.softmax(factor * x)),
    "permute_and_flip": (permute_and_flip, flip_law),
}
each = pytest.mark.parametrize("name", MECHANISMS)


def draw(mechanism, key, scores, num_draws=100_000, **options):
    options = {"epsilon": EPSILON, "sensitivity_range": RANGE} | options
    keys = jax.random.split(key, num_draws)
    indices = jax.jit(jax.vmap(lambda key: mechanism(key, scores, **options)))(keys)
    assert indices.dtype == jnp.int32
    return np.bincount(indices, minlength=len(SCORES))


def rejects(counts, law):
    possible = law > 0
    if counts[~possible].sum():
        return True
    expected = law[possible] * counts.sum()
    return scipy.stats.chisquare(counts[possible], expected).pvalue < FALSE_ALARM


@pytest.mark.quick(1)
@each
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_choices_have_their_law(name, dtype, key):
    mechanism, law = MECHANISMS[name]
    with jax.enable_x64(dtype == jnp.float64):
        counts = draw(mechanism, key, jnp.asarray(SCORES, dtype))
    assert not rejects(counts, law(SCORES, EPSILON / RANGE))
    for wrong in (1 / 2, 0.9, 1.1, 2):
        assert rejects(counts, law(SCORES, wrong * EPSILON / RANGE))


@pytest.mark.quick(1)
@each
def test_choices_in_chunks_have_the_same_law(name, key):
    # Three chunks of two, the last one padded.
    mechanism, law = MECHANISMS[name]
    chunks = jnp.asarray([*SCORES, -np.inf]).reshape(3, 2).astype(jnp.float32)
    counts = draw(mechanism, key, lambda i: chunks[i], num_chunks=3)
    assert len(counts) == len(SCORES)  # the padding was never chosen
    assert not rejects(counts, law(SCORES, EPSILON / RANGE))
    assert rejects(counts, law(SCORES, EPSILON / RANGE / 2))
    # One chunk is the array.
    scores = jnp.asarray(SCORES, jnp.float32)
    some = [
        draw(mechanism, jax.random.clone(key), x, 200, **options)
        for x, options in ((scores, {}), (lambda _: scores, {"num_chunks": 1}))
    ]
    np.testing.assert_array_equal(*some)


@each
def test_epsilon_on_worst_neighbors(name):
    # All corner changes of range 2, shifted as a whole too: only the range counts.
    _, law = MECHANISMS[name]
    worst = 0.0
    for gap in (0.0, 1.0, 20.0):
        for corner in itertools.product((-1.0, 1.0), repeat=4):
            for shift in (0.0, 1.0, 7.0):
                scores = np.array([0.0, gap, gap / 2, gap])
                after = law(scores + np.array(corner) + shift, EPSILON / 2)
                ratios = np.log(after) - np.log(law(scores, EPSILON / 2))
                worst = max(worst, np.abs(ratios).max())
    assert worst <= EPSILON * (1 + 1e-9)
    assert worst > 0.99 * EPSILON  # tight: a larger exponent would break it


def renyi(alpha, p, q):
    log_terms = alpha * np.log(p) + (1 - alpha) * np.log(q)
    return scipy.special.logsumexp(log_terms) / (alpha - 1)


def test_zcdp():
    # Two candidates that swap: D_alpha <= alpha epsilon^2 / 8 holds for the exponential
    # mechanism at every gap, and fails for permute-and-flip.
    sharpness, excess = EPSILON / 2, {"exponential": [], "permute_and_flip": []}
    for gap in np.linspace(-4, 4, 161):
        scores, after = np.array([0.0, gap]), np.array([1.0, gap - 1])
        for name, (_, law) in MECHANISMS.items():
            for alpha in (1.01, 1.5, 2, 4, 16):
                divergence = renyi(alpha, law(after, sharpness), law(scores, sharpness))
                excess[name].append(divergence / (alpha * EPSILON**2 / 8))
    assert 0.9 < max(excess["exponential"]) <= 1 + 1e-9
    assert 1.1 < max(excess["permute_and_flip"]) <= 4


@pytest.mark.quick(1)
@each
def test_nan_is_the_lowest_score_and_only_minus_infinity_is_out(name, key):
    mechanism, _ = MECHANISMS[name]
    nan, inf = jnp.nan, jnp.inf
    keys = jax.random.split(key, 1000)
    choose = partial(mechanism, epsilon=1.0, sensitivity_range=1.0)
    choose = jax.jit(jax.vmap(choose, (0, None)))

    def counts(*scores):
        indices = choose(jax.random.clone(keys), jnp.array(scores))
        return np.bincount(indices, minlength=4)

    assert counts(nan, -1e30, -1e30, -inf)[[0, 3]].sum() == 0  # NaN is the lowest
    assert counts(-inf, nan, -inf, nan)[[1, 3]].min() > 400  # but -inf is out
    assert counts(0.0, inf, 1e30, inf)[[1, 3]].min() > 400
    assert counts(-inf, -inf, -inf, -inf)[0] == 1000
    assert counts(nan, nan, nan, nan).min() > 150


@pytest.mark.quick(1)
@each
def test_extreme_constants_never_choose_what_is_out(name):
    # Zero and infinity are what 1e-300 and 1e300 become in float32.
    mechanism, _ = MECHANISMS[name]
    scores = jnp.array([-jnp.inf, 3e38, -3e38, 1.0, jnp.nan, -jnp.inf])
    chunks = scores.reshape(3, 2)

    @jax.jit
    def choose(key, epsilon, sensitivity_range):
        options = {"epsilon": epsilon, "sensitivity_range": sensitivity_range}
        first, second = jax.random.split(key)
        return mechanism(first, scores, **options), mechanism(
            second, lambda i: chunks[i], num_chunks=3, **options
        )

    extremes = [jnp.float32(x) for x in (0, 1e-30, 1e30, np.inf)]
    for seed, constants in enumerate(itertools.product(extremes, repeat=2)):
        for index in choose(jax.random.key(seed), *constants):
            assert 1 <= int(index) <= 4


@pytest.mark.quick(1)
@each
def test_large_scores_keep_their_law(name, key):
    # Near 2^23 the noise alone would be rounded to whole numbers.
    mechanism, law = MECHANISMS[name]
    scores = 2.0**23 + np.array([0.0, 1, 2, 1, 3])
    counts = draw(mechanism, key, jnp.asarray(scores, jnp.float32))
    assert not rejects(counts, law(scores - 2.0**23, EPSILON / RANGE))


@each
def test_scores_that_do_not_fit_are_named(name, key):
    mechanism, _ = MECHANISMS[name]
    for scores, num_chunks, argument in [
        (lambda i: jnp.zeros((2, 3)), 2, "scores"),
        (lambda i: jnp.zeros(2**20), 2**11, "scores"),
        (lambda i: jnp.zeros(3), None, "num_chunks"),
        (lambda i: jnp.zeros(3), 0, "num_chunks"),
        (lambda i: jnp.zeros(3), 2.0, "num_chunks"),
        (jnp.zeros(3), 1, "num_chunks"),
    ]:
        options = {"epsilon": 1.0, "sensitivity_range": 1.0, "num_chunks": num_chunks}
        with pytest.raises(ValueError, match=f"^{argument} must be"):
            mechanism(key, scores, **options)
