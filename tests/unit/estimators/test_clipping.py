"""Clipping really clips: in half precision, at 1e30, and in a million coordinates."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._sums.samples import FactoredSamples
from dpjax.estimators import Clipping, Normalization, SmoothedClipping
from dpjax.estimators._shared import clip_to_norm

# What sensitivity() allows for: a clipped sample is at most this much longer.
NORM_ERROR = 2.0**-13


def exact_norm(tree):
    return np.sqrt(
        sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(tree))
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_trees_are_clipped(dtype):
    # In bfloat16 the factor C / norm itself would be off by 2^-9, hence the length.
    tree = {"w": jnp.full((64, 8), 0.11, dtype), "b": jnp.full(3, -7.0, dtype)}
    clipped = clip_to_norm(tree, 0.3)
    assert {leaf.dtype for leaf in jax.tree.leaves(clipped)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(exact_norm(clipped), 0.3, rtol=1e-6)


def test_norm_is_global_over_the_tree():
    tree = {"a": jnp.array([3.0]), "b": (jnp.array([[4.0]]), jnp.float32(12.0))}
    clipped = clip_to_norm(tree, 6.5)
    expected = jax.tree.map(lambda x: x / 2, tree)
    chex.assert_trees_all_close(clipped, expected, rtol=1e-6)
    # A short sample keeps every bit.
    chex.assert_trees_all_equal(clip_to_norm(tree, 13.1), tree)


@pytest.mark.quick(6)
@pytest.mark.parametrize("limit", [1e-12, 1e-6, 1.2, 1e30])
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1e-5, 1.0, 1e19, 1e30, 3.4e38])
@pytest.mark.parametrize("d", [1, 2, 300])
def test_norm_of_any_size_is_clipped(d, size, limit):
    sample = np.full(d, size, np.float32)
    together = jax.vmap(clip_to_norm, (0, None))(sample[None], limit)[0]
    for clipped in (clip_to_norm(sample, limit), together):
        norm = exact_norm(clipped)
        assert norm <= limit * (1 + NORM_ERROR)
        # Denormals may count as zero, and so do 2^63 limits; nothing else is lost.
        is_measured = exact_norm(sample) < 2.0**63 * limit
        expected = min(limit, exact_norm(sample)) * is_measured
        if size >= 1e-37:
            np.testing.assert_allclose(norm, expected, rtol=1e-5)


@pytest.mark.parametrize("d", [1_000_000, 1_000_001])
def test_norm_of_a_million_equal_entries(d):
    entry = np.float32(1.1e-3)
    sample = np.full(d, entry)
    # A flat float32 sum of squares drifts by 2^-13 of itself and more, one way.
    flat = jax.lax.fori_loop(0, d, lambda i, s: s + sample[0] ** 2, jnp.float32(0))
    exact = d * float(entry) ** 2
    assert abs(float(flat) / exact - 1) > 2 * NORM_ERROR
    clipped = clip_to_norm(sample, 1.0)
    assert abs(exact_norm(clipped) - 1) < NORM_ERROR / 64


@pytest.mark.quick(2)
@pytest.mark.parametrize("d", [255, 256, 257, 65_537])
def test_norm_error_stays_within_what_sensitivity_allows(d, key):
    normal = jax.random.normal(key, (d,))
    for power in (0.0, 3.0):
        sample = normal * jnp.arange(1.0, d + 1) ** -power
        assert exact_norm(clip_to_norm(sample, 1e-3)) <= 1e-3 * (1 + NORM_ERROR)


@pytest.mark.slow
def test_the_norm_of_many_leaves_errs_by_few_roundings():
    # One after the other, each small square is rounded away beside the first: the norm
    # errs by 2.4e-4. (Not as one program: it would take minutes to compile.)
    small = np.float32(2.0**-12.01)
    leaves = [jnp.float32(1.0), *[jnp.float32(small)] * 7999]
    exact = 1 + 7999 * float(small) ** 2
    assert exact**0.5 - 1 > NORM_ERROR
    squares = FactoredSamples(leaves).squared_norm(jnp.float32(1))
    assert abs(float(squares) / exact - 1) < 14 * 2**-24


def test_nan_and_infinity_count_as_zero_entry_by_entry():
    sample = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3.0, 4.0])
    np.testing.assert_allclose(clip_to_norm(sample, 10.0), [0, 0, 0, 3, 4])
    np.testing.assert_allclose(
        clip_to_norm(sample, 1.0), [0, 0, 0, 0.6, 0.8], rtol=1e-6
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("limit", [0.1, 1.0, 10.0])
def test_derivative_inside_the_ball_is_the_identity(limit):
    # At zero too, where the norm has no derivative.
    for sample in (jnp.zeros(2), jnp.array([0.03, -0.04])):
        derivative = jax.jacrev(clip_to_norm)(sample, limit)
        np.testing.assert_array_equal(derivative, np.eye(2))


def test_mixed_precision_trees_keep_their_dtypes():
    with jax.enable_x64(True):
        tree = {"x": jnp.array([1e-60, 0.0]), "y": jnp.zeros(2, jnp.float32)}
        clipped, pull = jax.vjp(lambda t: clip_to_norm(t, 1.0), tree)
        assert clipped["x"].dtype == jnp.float64
        assert clipped["y"].dtype == jnp.float32
        for leaf in jax.tree.leaves((clipped, pull(tree))):
            assert jnp.isfinite(leaf).all()
        tree = {"x": jnp.array([3e15]), "y": jnp.float32([4.0])}
        np.testing.assert_allclose(clip_to_norm(tree, 1.0)["x"], [1.0])


@pytest.mark.parametrize("size", [1e15, 2e19, 1.5e38, 3e38, 1e39, 1e42, 1e154, 1e300])
def test_no_size_of_a_record_passes_the_limit_where_floats_are_wide(size):
    # A float32 leaf beside float64 ones as well: it is clipped, or counts as zero.
    with jax.enable_x64(True):
        narrow = np.float32(min(size, 3e38))
        for tree in ({"x": size}, {"x": 0.5, "y": narrow}, {"x": size, "y": narrow}):
            tree = {name: jnp.full(3, x, x.dtype) for name, x in _as_arrays(tree)}
            for estimator in (Clipping(1.0), SmoothedClipping(1.0), Normalization(1.0)):
                norm = exact_norm(estimator.influence(tree))
                assert norm <= float(estimator.limit) * (1 + NORM_ERROR)
                assert (norm > 0.9 * float(estimator.limit)) == (size < 2**63)


def _as_arrays(tree):
    return [(name, np.asarray(x)) for name, x in tree.items()]
