"""Strategies of correlated noise beside those of jax_privacy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.mechanisms import BandedToeplitz, BinaryTree, BufferedToeplitz


def test_sensitivities_are_jax_privacys():
    pytest.importorskip("jax_privacy.matrix_factorization")
    from jax_privacy.matrix_factorization import (
        buffered_toeplitz,
        sensitivity,
        toeplitz,
    )

    banded = BandedToeplitz.square_root(60, 10)
    buffered = BufferedToeplitz(60, decays=(0.9, 0.5), scales=(0.3, 0.2))
    tree = BinaryTree(60)
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        blt = buffered_toeplitz.BufferedToeplitz.build(
            list(buffered.decays), list(buffered.scales)
        )
        columns = jnp.asarray(banded.coefficients), blt.toeplitz_coefs(60)
        for most, apart in ((1, 1), (3, 20), (6, 10)):
            pattern = {"max_participations": most, "min_separation": apart}
            for ours, column in zip((banded, buffered), columns, strict=True):
                squared = toeplitz.minsep_sensitivity_squared(column, apart, most, n=60)
                expected = ours.sensitivity(**pattern) ** 2
                np.testing.assert_allclose(expected, squared, rtol=1e-8)
            # Their bound for any matrix takes the worst of each row on its own.
            theirs = sensitivity.get_min_sep_sensitivity_upper_bound(
                jnp.asarray(tree.matrix()), apart, most
            )
            assert tree.sensitivity(**pattern) <= 1.05 * theirs


def test_the_best_strategies_are_better():
    pytest.importorskip("jax_privacy")

    def errors(strategy, **pattern):
        prefix = np.tri(24) @ np.linalg.inv(strategy.matrix())
        return strategy.sensitivity(**pattern) ** 2 * (prefix**2).sum(axis=1)

    best, root = BandedToeplitz.optimal(24, 4), BandedToeplitz.square_root(24, 4)
    assert best.num_bands == 4
    assert errors(best).mean() < errors(root).mean() < errors(BinaryTree(24)).mean()
    pattern = {"max_participations": 2, "min_separation": 12}
    buffered = BufferedToeplitz.optimal(24, **pattern)
    one = BandedToeplitz(24, (1.0,))
    assert buffered.num_buffers <= 10
    assert errors(buffered, **pattern).max() < 0.7 * errors(one, **pattern).max()
