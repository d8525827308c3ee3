"""Strategies of correlated noise: their matrices, their noise, and what moves them."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.mechanisms import BandedToeplitz, BinaryTree, BufferedToeplitz
from tests.unit.refusals import refused

T = 9
STRATEGIES = {
    "one band": BandedToeplitz(T, (2.0,)),
    "three bands": BandedToeplitz.square_root(T, 3),
    "all bands": BandedToeplitz.square_root(T, T),
    "flat bands": BandedToeplitz(T, (1.0, 1.0, 1.0, 0.0)),
    "buffers": BufferedToeplitz(T, decays=(0.9, 0.25, 1.0), scales=(0.3, 0.2, 0.1)),
    "tree": BinaryTree(T),
    "tree of a power": BinaryTree(8),
    "tree of one": BinaryTree(1),
}
each = pytest.mark.parametrize("name", STRATEGIES)


def noise_of(strategy, z):
    """Rows of C^-1 z, step by step, for z a pytree with leaves (T, ...)."""
    zeros = jax.tree.map(lambda x: jnp.zeros_like(x[0]), z)

    def one(buffers, inputs):
        step, row = inputs
        found, buffers = strategy.next_noise(row, buffers, step)
        return buffers, found

    steps = jnp.arange(strategy.num_steps)
    buffers = (zeros,) * strategy.num_buffers
    return jax.lax.scan(one, buffers, (steps, z))[1]


@each
def test_noise_is_the_inverse_of_the_matrix(name):
    strategy = STRATEGIES[name]
    matrix = strategy.matrix()
    np.testing.assert_array_equal(matrix, np.tril(matrix))
    np.testing.assert_array_equal(np.diag(matrix), 1)
    i, j = np.indices(matrix.shape)
    assert not matrix[i - j >= strategy.num_bands].any()
    rng = np.random.default_rng(0)
    z = {
        "a": rng.standard_normal((strategy.num_steps, 2, 3)),
        "b": rng.standard_normal(strategy.num_steps),
    }
    found = noise_of(strategy, jax.tree.map(lambda x: jnp.asarray(x, "float32"), z))
    for name, x in z.items():
        expected = np.linalg.solve(matrix, x.reshape(strategy.num_steps, -1))
        np.testing.assert_allclose(
            found[name].reshape(strategy.num_steps, -1), expected, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    "strategy",
    [
        BandedToeplitz.square_root(4096, 8),
        BandedToeplitz(4096, (1.0,) * 4),
        BinaryTree(4096),
        pytest.param(
            BufferedToeplitz(4096, decays=(0.999, 0.5), scales=(0.3, 0.4)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_rounding_is_as_if_the_independent_noise_were_rounded(strategy):
    # C x = z + e, with e a few units in the last place of the largest z or x in play,
    # after 4,096 steps as after one; of buffers their decay, 0.999, adds up to 1,000.
    z = np.random.default_rng(1).standard_normal((4096, 4)).astype(np.float32)
    x = np.asarray(jax.jit(lambda z: noise_of(strategy, z))(z), np.float64)
    if isinstance(strategy, BinaryTree):
        error = strategy.matrix() @ x - z
    else:
        column = strategy.toeplitz()
        error = np.stack([np.convolve(column, y)[:4096] for y in x.T], axis=1) - z
    units = np.abs(error).max() / (2.0**-24 * max(np.abs(z).max(), np.abs(x).max()))
    assert units < (1_000 if isinstance(strategy, BufferedToeplitz) else 20)


def patterns(num_steps, most, apart):
    """All sets of steps that one record may enter."""
    for count in range(1, most + 1):
        for steps in itertools.combinations(range(num_steps), count):
            if all(b - a >= apart for a, b in itertools.pairwise(steps)):
                yield list(steps)


@each
def test_sensitivity_of_every_pattern(name):
    # All patterns, with vectors of one direction and of others: for |X_ij| the former
    # are the worst. Toeplitz sensitivities are attained, a tree's are bounds.
    strategy = STRATEGIES[name]
    matrix = strategy.matrix()
    rng = np.random.default_rng(2)
    for most, apart in itertools.product((1, 2, 3, 9), (1, 2, 3, 9)):
        bound = strategy.sensitivity(max_participations=most, min_separation=apart)
        worst = 0.0
        for steps in patterns(strategy.num_steps, most, apart):
            moved = np.linalg.norm(matrix[:, steps].sum(axis=1))
            worst = max(worst, moved)
            u = rng.standard_normal((len(steps), 2))
            u /= np.linalg.norm(u, axis=1, keepdims=True)
            assert np.linalg.norm(matrix[:, steps] @ u) <= bound
        assert worst <= bound
        is_tight = not isinstance(strategy, BinaryTree) or most == 1
        if is_tight:
            assert bound <= worst * (1 + 1e-8)
        else:
            assert bound <= 1.15 * worst


@pytest.mark.slow
def test_sensitivities_are_jax_privacys():
    factorization = pytest.importorskip("jax_privacy.matrix_factorization")
    from jax_privacy.matrix_factorization import (
        buffered_toeplitz,
        sensitivity,
        toeplitz,
    )

    del factorization
    banded = BandedToeplitz.square_root(60, 10)
    buffered = BufferedToeplitz(60, decays=(0.9, 0.5), scales=(0.3, 0.2))
    tree = BinaryTree(60)
    with (
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        for most, apart in ((1, 1), (3, 20), (6, 10)):
            pattern = {"max_participations": most, "min_separation": apart}
            theirs = toeplitz.minsep_sensitivity_squared(
                jnp.asarray(banded.coefficients), apart, most, n=60
            )
            ours = banded.sensitivity(**pattern)
            np.testing.assert_allclose(ours**2, theirs, rtol=1e-8)
            theirs = sensitivity.get_sensitivity_banded(
                jnp.asarray(banded.matrix()), max(apart, 10), most
            )
            if apart >= 10:
                np.testing.assert_allclose(ours, theirs, rtol=1e-8)
            blt = buffered_toeplitz.BufferedToeplitz.build(
                list(buffered.decays), list(buffered.scales)
            )
            theirs = toeplitz.minsep_sensitivity_squared(
                blt.toeplitz_coefs(60), apart, most
            )
            ours = buffered.sensitivity(**pattern)
            np.testing.assert_allclose(ours**2, theirs, rtol=1e-8)
            # Their bound for any matrix takes the worst of each row on its own.
            theirs = sensitivity.get_min_sep_sensitivity_upper_bound(
                jnp.asarray(tree.matrix()), apart, most
            )
            assert tree.sensitivity(**pattern) <= 1.05 * theirs


@pytest.mark.slow
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


def test_without_jax_privacy_the_best_are_not_found(monkeypatch):
    for name in ("jax_privacy", "jax_privacy.matrix_factorization"):
        monkeypatch.setitem(sys.modules, name, None)
    for find in (
        lambda: BandedToeplitz.optimal(4, 2),
        lambda: BufferedToeplitz.optimal(4),
    ):
        with pytest.raises(ImportError, match=r"pip install \"dpjax\[correlated\]"):
            find()


test_bad_strategies_are_named = refused(
    lambda make: make(),
    (lambda: BandedToeplitz(2, (1.0, 0.5, 0.1)), "coefficients must be 1 to 2"),
    (lambda: BandedToeplitz(2, ()), "coefficients must be 1 to 2"),
    (lambda: BandedToeplitz(2, (0.0, 0.0)), "coefficients must be 1 to 2"),
    (lambda: BandedToeplitz(2, (1.0, float("nan"))), "coefficients must be 1 to"),
    (lambda: BandedToeplitz(2, (1.0, 1.5)), "coefficients must be not negative"),
    (lambda: BandedToeplitz(2, (1.0, -0.5)), "coefficients must be not negative"),
    (lambda: BandedToeplitz.square_root(4, 5), "num_bands must be at most 4"),
    (lambda: BufferedToeplitz(4, (0.5,), (0.2, 0.1)), "scales must be numbers"),
    (lambda: BufferedToeplitz(4, (1.5,), (0.2,)), "decays must be numbers"),
    (lambda: BufferedToeplitz(4, (), ()), "decays must be numbers"),
    (lambda: BufferedToeplitz(4, (0.5, 0.1), (0.8, 0.3)), "scales must be at most"),
    (
        lambda: BufferedToeplitz.optimal(4, min_separation=0),
        "min_separation must be an integer",
    ),
    (
        lambda: BinaryTree(4).sensitivity(max_participations=0),
        "max_participations must be an integer",
    ),
)
