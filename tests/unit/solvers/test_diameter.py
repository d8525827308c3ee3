"""Records from a set: as far apart as the noise is for, and no farther."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.losses import logistic
from dpjax.solvers.additive import _choice
from dpjax.solvers.linear import _bends
from dpjax.solvers.linear._kind import Bends, Examples, ModelKind
from dpjax.solvers.papers import _hard_thresholding
from dpjax.solvers.statistics import _group_means, _mean, _noisy_mean
from dpjax.solvers.statistics._group_means import Groups
from dpjax.solvers.statistics._moments import Whitening


def check_set(examples, estimator, attained):
    """Checks distances and norms as the code runs, and how close they come."""
    held = np.asarray(jax.jit(jax.vmap(estimator.influence))(examples), np.float64)
    held = np.unique(held.reshape(len(held), -1), axis=0)
    rounded = 1 + 4 * 2.0**-24
    assert np.linalg.norm(held, axis=1).max() <= rounded * estimator.limit
    squares = np.sum(held**2, axis=1)
    distances = squares[:, None] + squares[None] - 2 * held @ held.T
    largest = math.sqrt(distances.max())
    diameter = getattr(estimator, "diameter", 2.0) * estimator.limit
    assert attained * diameter <= largest <= rounded * diameter
    # One record of a mean, between any two of the most distant ones.
    first, second = held[list(np.unravel_index(distances.argmax(), distances.shape))]
    for num in (1, 7, 300):
        samples = np.float32([[x, *[held[0]] * (num - 1)] for x in (first, second)])
        means = [np.float64(estimator(x)) for x in samples]
        moved = np.linalg.norm(means[0] - means[1])
        sensitivity = estimator.sensitivity(num, held.shape[1]).l2
        assert 0.98 * largest / num <= moved <= sensitivity
        assert sensitivity <= 1.01 * diameter / num


def grid(num_columns):
    axes = [np.float32([-1e30, -3, -2, -0.5, 0, 0.02, 0.5, 1, 3])] * num_columns
    return jnp.stack([jnp.ravel(x) for x in jnp.meshgrid(*axes)], axis=1)


def squares_of_a_mean(key, d):
    z = grid(d)
    seen = SimpleNamespace(sum_of_squares=lambda low, high: 0.0)
    radii, lengths = jnp.arange(4.0), jnp.linalg.norm(z, axis=1)
    _mean._squares(key, z, lengths, seen, radii, SimpleNamespace(squares=1.0), None)


def squares_of_groups(key, num_groups):
    values = jnp.tile(grid(1)[:, 0], 2)
    indices = jnp.arange(values.size) % num_groups
    groups = Groups(values, indices, jnp.ones(num_groups, "int32"), jnp.ones(()))
    seen = SimpleNamespace(sum_of_squares=lambda low, high: 0.0, top=jnp.int32(0))
    keys = tuple(jax.random.split(key))
    place = jnp.zeros(()), jnp.ones(()), _group_means._LARGEST
    _group_means._sums.__wrapped__(keys, groups, place, seen, (1.0, 1.0, 1.0))


def rare_columns(key, k):
    features = jnp.tile(grid(k), (3, 1))
    weights = jnp.repeat(jnp.float32([1.0, 0.5, 7.0]), len(features) // 3)
    examples = Examples(features, 0 * weights, 0 * weights, weights)
    _choice.rare_columns.__wrapped__(None, examples, key, 1.0)


def moments_of_hats(key, k):
    x = jnp.concatenate([2 * grid(k), jnp.full((2, k), 4.0)])
    hats = [jnp.clip(s * x / 2, 0.0, 1.0) for s in (-1, 1)]
    functions = jnp.stack([jnp.ones_like(x), jnp.clip(x / 4, -1, 1), *hats], axis=-1)
    _choice._straightened.__wrapped__(None, functions, jnp.ones(len(x)), key, 1.0)


def moments_of_bends(key, k):
    features = 2 * grid(k)
    ones, knots = jnp.ones(len(features)), (-2.0, -1.0, 0.0, 2.0)
    kind = ModelKind(logistic, True, False, None, bends=Bends(tuple(range(k)), knots))
    examples = Examples(features, ones, ones, ones)
    white = Whitening(jnp.zeros(k), jnp.eye(k), jnp.ones(()))
    args = white, features, jnp.ones(()), key, 1.0
    _bends.with_bends.__wrapped__(kind, examples, *args)


def mean_square(key, d):
    _hard_thresholding._learning_rate.__wrapped__(None, grid(d), 2.0, key, 1.0)


# Which mean of the release, and how close two of its records come to the bound. Those
# of moments are never at a right angle: of ones the product is positive.
RELEASES = {
    squares_of_a_mean: (0, 0.99),
    squares_of_groups: (1, 0.99),
    rare_columns: (0, 0.99),
    moments_of_hats: (0, 0.85),
    moments_of_bends: (0, 0.99),
    mean_square: (0, 0.99),
}


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.__name__)
def test_noise_is_for_the_distance_of_two_records(release, key, monkeypatch):
    @jax.jit
    def averaged(key):
        means = []

        def privatize(estimator, **_):
            def update(rows, state):
                samples = rows.read_all()[0] if hasattr(rows, "read_all") else rows
                means.append((samples, estimator))
                return jnp.mean(samples, axis=0), state

            return SimpleNamespace(init=lambda params: None, update=update)

        monkeypatch.setattr(_noisy_mean, "privatize", privatize)
        radii = jnp.arange(4.0), jnp.zeros(())
        monkeypatch.setattr(_group_means, "radii_of", lambda *_: radii)
        release(key, 2)
        return means

    place, attained = RELEASES[release]
    check_set(*averaged(key)[place], attained)


def test_slopes_of_a_gain_are_as_short_as_they_count(key):
    slopes, one = jnp.full((4, 1), 1e6), jnp.float32(1)
    assert jnp.abs(_choice._centered(None, slopes, one, key, 1.0)).max() < 1e3
