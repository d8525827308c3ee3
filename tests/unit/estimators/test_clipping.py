"""Clipping really clips: in half precision, at 1e30, and in a million coordinates."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.estimators import Clipping, Normalization, SmoothedClipping
from dpjax.estimators._clipping import clip_to_norm

# What sensitivity() allows for: a clipped sample is at most this much longer.
NORM_ERROR = 2.0**-13


def exact_norm(tree):
    leaves = [np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)]
    return np.linalg.norm(np.concatenate(leaves))


def test_norm_is_global_over_the_tree():
    tree = {"a": jnp.array([3.0]), "b": (jnp.array([[4.0]]), jnp.float32(12.0))}
    clipped = clip_to_norm(tree, 6.5)
    chex.assert_trees_all_close(clipped, jax.tree.map(lambda x: x / 2, tree), rtol=1e-6)
    # A short sample keeps every bit, and its derivative is the identity: at zero too.
    chex.assert_trees_all_equal(clip_to_norm(tree, 13.1), tree)
    for sample in (jnp.zeros(2), jnp.array([0.03, -0.04])):
        slope = jax.jit(jax.jacrev(clip_to_norm))(sample, 0.1)
        np.testing.assert_array_equal(slope, np.eye(2))
    # In bfloat16 the factor C / norm itself would be off by 2^-9.
    half = {"w": jnp.full((64, 8), 0.11, "bfloat16"), "b": jnp.full(3, -7.0, "float16")}
    clipped = clip_to_norm(half, 0.3)
    assert {leaf.dtype for leaf in jax.tree.leaves(clipped)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_allclose(exact_norm(clipped), 0.3, rtol=1e-6)
    # NaN and infinities count as zero, entry by entry.
    clipped = clip_to_norm(jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3.0, 4.0]), 1.0)
    np.testing.assert_allclose(clipped, [0, 0, 0, 0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("d", [1, 2, 300])
def test_norm_of_any_size_is_clipped(d):
    sizes = np.float32([1e-45, 1e-38, 1e-30, 1e-5, 1.0, 1e19, 1e30, 3.4e38])
    samples = np.repeat(sizes[:, None], d, axis=1)
    lengths = np.linalg.norm(samples.astype(np.float64), axis=1)
    alone, together = jax.jit(clip_to_norm), jax.jit(jax.vmap(clip_to_norm, (0, None)))
    for limit in (1e-12, 1e-6, 1.2, 1e30):
        rows = np.stack([alone(x, limit) for x in samples])
        for clipped in (rows, together(samples, limit)):
            norms = np.linalg.norm(np.asarray(clipped, np.float64), axis=1)
            assert (norms <= limit * (1 + NORM_ERROR)).all()
            # Denormals may count as zero, and so do 2^63 limits; nothing else is lost.
            expected = np.minimum(limit, lengths) * (lengths < 2.0**63 * limit)
            np.testing.assert_allclose(norms[2:], expected[2:], rtol=1e-5)


def test_norm_of_a_million_equal_entries():
    # A flat float32 sum of these squares drifts by 2^-13 of itself and more, one way.
    clipped = clip_to_norm(np.full(1_000_001, 1.1e-3, np.float32), 1.0)
    assert abs(exact_norm(clipped) - 1) < NORM_ERROR / 64


@pytest.mark.parametrize("d", [255, 257, 65_537])
def test_norm_error_stays_within_what_sensitivity_allows(d, key):
    normal = jax.random.normal(key, (d,))
    for power in (0.0, 3.0):
        sample = normal * jnp.arange(1.0, d + 1) ** -power
        assert exact_norm(clip_to_norm(sample, 1e-3)) <= 1e-3 * (1 + NORM_ERROR)


def test_no_size_of_a_record_passes_the_limit_where_floats_are_wide():
    # A float32 leaf beside float64 ones as well: it is clipped, or counts as zero.
    estimators = Clipping(1.0), SmoothedClipping(1.0), Normalization(1.0)
    with jax.enable_x64(True):
        sizes = np.array([1e15, 2e19, 1.5e38, 3e38, 1e39, 1e42, 1e154, 1e300])
        x = jnp.repeat(jnp.asarray(sizes)[:, None], 3, axis=1)
        y = jnp.minimum(x, 3e38).astype(jnp.float32)
        trees = {"x": x * 0 + 0.5, "y": y}, {"x": x, "y": y}
        influences = jax.jit(
            lambda trees: [jax.vmap(e.influence)(x) for e in estimators for x in trees]
        )(trees)
        limits = [float(e.limit) for e in estimators for _ in trees]
        for limit, tree in zip(limits, influences, strict=True):
            norms = np.linalg.norm(np.concatenate(list(tree.values()), axis=1), axis=1)
            assert (norms <= limit * (1 + NORM_ERROR)).all()
            np.testing.assert_array_equal(norms > 0.9 * limit, sizes < 2**63)
