"""Adaptive thresholds: one Gaussian for mean and counts, and quantiles reached."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, estimators, transforms
from tests.unit.estimators.test_normwise import GROUPS, tree_of

INNER = {
    "clipping": estimators.Clipping(1.0),
    "smoothed": estimators.SmoothedClipping(1.0),
    "normalization": estimators.Normalization(1.0),
    "grouped": estimators.Grouped(estimators.Clipping(np.float32([0.7, 1.5])), GROUPS),
    "grouped normalization": estimators.Grouped(estimators.Normalization(0.5), GROUPS),
}


def adaptive_of(name, **settings):
    settings = {"lower": 1e-6, "upper": 1e6} | settings
    return estimators.AdaptiveThreshold(INNER[name], **settings)


def flat(tree):
    return np.float64(ravel_pytree(tree)[0])


def norms_of(name, rows):
    """The norms that thresholds are compared with, shape (n, groups)."""
    if "grouped" not in name:
        return np.linalg.norm(rows, axis=1)[:, None]
    parts = rows[:, :2], rows[:, 2:]
    return np.stack([np.linalg.norm(x, axis=1) for x in parts], axis=1)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", INNER)
def test_counts_are_of_samples_within_the_threshold_which_follows_them(name):
    rows = 0.4 * np.random.default_rng(0).standard_t(2, (40, 5))
    adaptive = adaptive_of(name)
    counting = adaptive.counting
    released = counting(tree_of(rows))
    expected = INNER[name](tree_of(rows))
    np.testing.assert_allclose(flat(released.mean), flat(expected), atol=1e-6)
    shares = (norms_of(name, rows) <= np.asarray(adaptive.thresholds)).mean(axis=0)
    assert (shares > 0).all()
    assert (shares < 1).all()
    counted = 0.5 + np.asarray(released.short) / (2 * float(counting.half))
    np.testing.assert_allclose(counted, shares, atol=1e-6)
    mean, following = adaptive.follow(released)
    np.testing.assert_array_equal(flat(mean), flat(released.mean))
    expected = adaptive.thresholds * np.exp(-0.2 * (shares - 0.5))
    np.testing.assert_allclose(following.thresholds, expected, rtol=1e-5)


@pytest.mark.parametrize("name", INNER)
def test_multipliers_of_mean_and_counts_add_up(name):
    # z^-2 = z_mean^-2 + z_counts^-2, for sensitivities under either relation.
    relations = (REPLACE_ONE, 2.0), (ADD_OR_REMOVE_ONE, 1.0)
    for share, (relation, moved) in itertools.product((0.01, 0.5), relations):
        counting = adaptive_of(name, share=share).counting
        groups = counting.num_groups
        stddev = 3.0 * counting.sensitivity(50, 5, relation).l2
        of_mean = stddev / INNER[name].sensitivity(50, 5, relation).l2
        of_counts = stddev / (moved / 50 * float(counting.half) * math.sqrt(groups))
        together = (of_mean**-2 + of_counts**-2) ** -0.5
        assert 3.0 <= together < 3.02  # and the rounding of sums
        assert of_mean == pytest.approx(3 / math.sqrt(1 - share), rel=5e-3)


def run(adaptive, rows, num_steps, **settings):
    """Returns thresholds after each update, in one scan."""
    transform = transforms.privatize(adaptive, key=jax.random.key(0), **settings)

    def body(rows):
        def step(state, _):
            _, state = transform.update(rows, state)
            return state, optax.tree.get(state, "thresholds")

        return jax.lax.scan(step, transform.init(None), length=num_steps)[1]

    return np.asarray(jax.jit(body)(rows))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", INNER)
def test_thresholds_come_to_the_quantile(name):
    # 100 times too small at first, and heavy tails, and noise.
    rows = 100 * np.random.default_rng(2).standard_t(2, (2000, 5))
    adaptive = adaptive_of(name, quantile=0.7)
    thresholds = run(adaptive, tree_of(rows), 150, noise_multiplier=2.0)
    expected = np.quantile(norms_of(name, rows), 0.7, axis=0)
    last = np.exp(np.log(thresholds[-50:]).mean(axis=0))
    np.testing.assert_allclose(last, expected, rtol=0.05)
    assert (thresholds[0] < expected / 20).all()
    # They stay in their range under any noise.
    adaptive = adaptive_of(name, lower=0.5, upper=4.0)
    thresholds = run(adaptive, tree_of(np.ones((3, 5))), 20, noise_multiplier=1e6)
    assert np.isfinite(thresholds).all()
    assert (thresholds.min(), thresholds.max()) == (0.5, 4.0)


def test_noise_is_one_gaussian_of_mean_and_counts(key):
    # Of 20,000 zero samples' means: the noise of both is what the shares say.
    adaptive = adaptive_of("clipping", share=0.2, learning_rate=0.01)
    transform = transforms.privatize(adaptive, noise_multiplier=1.5, key=key)

    def release(key):
        state = transform.init(None)._replace(key=key)
        mean, state = transform.update(jnp.zeros((4, 3)), state)
        return mean, jnp.log(state.thresholds) / -0.01 - 0.5

    keys = jax.random.split(jax.random.key(3), 20_000)
    means, counts = jax.jit(jax.vmap(release))(keys)
    stddev = 1.5 * adaptive.counting.sensitivity(4, 3).l2
    np.testing.assert_allclose(np.std(means), stddev, rtol=0.02)
    expected = stddev / (2 * float(adaptive.counting.half))
    np.testing.assert_allclose(np.std(counts), expected, rtol=0.03)
    assert expected == pytest.approx(1.5 * math.sqrt(1 / 0.2) / 4, rel=1e-2)
    correlations = np.corrcoef(np.column_stack([means, counts]).T)
    assert np.abs(correlations - np.eye(4)).max() < 0.04


def test_numbers_that_are_not_finite_count_as_zero_and_only_privatize_takes_it():
    adaptive = adaptive_of("clipping")
    samples = jnp.tile(jnp.float32([[np.nan], [np.inf], [3e38], [1e-45]]), 3)
    signs = jax.vmap(adaptive.counting.influence)(samples).short[:, 0]
    np.testing.assert_allclose(signs / adaptive.counting.half, [1, 1, -1, 1], 1e-6)
    with pytest.raises(ValueError, match="estimator must be an estimator"):
        transforms.aggregate(adaptive)
    with pytest.raises(ValueError, match="estimator must be an estimator"):
        dpjax.robust_grad(jnp.dot, adaptive)
    with pytest.raises(ValueError, match="estimator must be Clipping"):
        estimators.AdaptiveThreshold(adaptive.counting, lower=0.1, upper=10.0)
