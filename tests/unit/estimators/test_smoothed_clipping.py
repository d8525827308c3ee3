"""Smoothed clipping: the formula, its bound, far and near samples, its derivative."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from dpjax.estimators import Clipping, SmoothedClipping, SmoothedTruncation
from dpjax.estimators._catoni import _reference

SCALE = 1.5
BETAS = [1.0, 9.21, 50.0]


def tree_of(vector):
    return {"w": vector[:4].reshape(2, 2), "b": vector[4]}


def rows_of(tree):
    rows = np.asarray(tree["w"], np.float64).reshape(-1, 4)
    return np.column_stack([rows, np.asarray(tree["b"], np.float64)])


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", BETAS)
def test_the_norm_is_that_of_the_formula(beta):
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(40, 5))
    lengths = np.geomspace(1e-3, 1e4, 40)
    rows = directions * (lengths / np.linalg.norm(directions, axis=1))[:, None]
    influence = jax.jit(jax.vmap(SmoothedClipping(SCALE, beta).influence))
    found = rows_of(influence(jax.vmap(tree_of)(jnp.asarray(rows, jnp.float32))))
    expected = SCALE * _reference(lengths / SCALE, beta)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), expected, atol=2e-6)
    cosines = (found * rows).sum(axis=1) / np.linalg.norm(found, axis=1) / lengths
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_one_coordinate_is_truncated_smoothly():
    x = jnp.linspace(-9.0, 9.0, 41)[:, None]
    one, other = (
        jax.jit(jax.vmap(kind(SCALE).influence))(x)
        for kind in (SmoothedClipping, SmoothedTruncation)
    )
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", BETAS)
def test_sensitivity_is_reached_and_never_passed(beta):
    # Two opposite samples of any length, in ever more coordinates.
    estimator = SmoothedClipping(SCALE, beta)
    mean = jax.jit(estimator)
    largest = SCALE * 2 * math.sqrt(2) / 3 * math.erf(math.sqrt(beta / 2))
    for size in (1, 3, 1000):
        stated = estimator.sensitivity(4, size).l2
        assert stated == pytest.approx(2 * largest / 4, rel=3e-3)
        moves = []
        for length in (1e-30, 1.0, 30.0, 1e4, 1e19, 3e37):
            rows = np.zeros((4, size), np.float32)
            rows[2] = length / math.sqrt(size)
            gap = np.asarray(mean(rows), np.float64) - np.asarray(mean(-rows), float)
            moves.append(np.linalg.norm(gap))
        assert max(moves) <= stated
        assert max(moves) > 0.997 * stated


@pytest.mark.quick(2)
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e30])
def test_tiny_and_huge_samples_keep_their_direction(scale):
    estimator = SmoothedClipping(scale)
    influence = jax.jit(estimator.influence)
    assert not influence({"x": jnp.full(2, 1e19 * scale)})["x"].any() or scale > 1e18
    for length in (1e-35, 1e-12 * scale, 1e-3 * scale, scale, min(9e18 * scale, 3e38)):
        sample = {"x": jnp.array([0.6, -0.8]) * np.float32(length)}
        found = np.asarray(influence(sample)["x"], np.float64)
        norm = np.linalg.norm(found)
        assert norm <= min(estimator.limit, length) * (1 + 1e-6)
        if length <= 1e-3 * scale:
            np.testing.assert_allclose(norm, length, rtol=3e-6)
        np.testing.assert_allclose(found / norm, [0.6, -0.8], atol=1e-5)


def test_what_is_not_finite_counts_as_zero():
    sample = {"w": jnp.array([3.0, jnp.nan, 4.0]), "b": jnp.array(-jnp.inf)}
    found = SmoothedClipping(100.0).influence(sample)
    np.testing.assert_allclose(found["w"], [3, 0, 4], rtol=2e-3)
    assert found["b"] == 0


@pytest.mark.slow
def test_the_derivative_is_that_of_differences():
    with jax.enable_x64(True):
        sample = jnp.array([0.9, -1.7, 0.4])

        @jax.jit
        def influence(scale, x):
            return SmoothedClipping(scale, 50.0).influence(x)

        # At a beta without a series, whose error differences would see.
        for length in (1e-3, 1.0, 40.0):
            check_grads(
                influence, (1.3, sample * length), order=1, rtol=1e-5, atol=1e-6
            )
        # Of a zero sample it is the identity, where that of the norm does not exist.
        jacobian = jax.jacrev(lambda x: influence(1.3, x))(jnp.zeros(3))
        np.testing.assert_allclose(jacobian, np.eye(3))


def test_no_kink_where_clipping_has_one():
    @jax.jit
    def slope(estimator, length):
        return jax.grad(lambda x: estimator.influence(x[None])[0])(length)

    for estimator, jumps in ((Clipping(1.0), True), (SmoothedClipping(1.0), False)):
        jump = slope(estimator, 0.999) - slope(estimator, 1.001)
        assert (jump > 0.5) == jumps
