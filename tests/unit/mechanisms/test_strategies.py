"""Strategies of correlated noise: their matrices, their noise, and what moves them."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.mechanisms import BandedToeplitz, BufferedToeplitz

T = 9
STRATEGIES = {
    "one band": BandedToeplitz(T, (2.0,)),
    "three bands": BandedToeplitz.square_root(T, 3),
    "all bands": BandedToeplitz.square_root(T, T),
    "flat bands": BandedToeplitz(T, (1.0, 1.0, 1.0, 0.0)),
    "buffers": BufferedToeplitz(T, decays=(0.9, 0.25, 1.0), scales=(0.3, 0.2, 0.1)),
    "one step": BandedToeplitz(1, (1.0,)),
}
each = pytest.mark.parametrize("name", STRATEGIES)
LONG = [BandedToeplitz.square_root(4096, 8), BandedToeplitz(4096, (1.0,) * 4)]
LONG += [BufferedToeplitz(4096, decays=(0.999, 0.5), scales=(0.3, 0.4))]


def noise_of(strategy, z):
    """Rows of C^-1 z, step by step, for z a pytree with leaves (T, ...)."""
    zeros = jax.tree.map(lambda x: jnp.zeros_like(x[0]), z)

    def one(buffers, inputs):
        step, row = inputs
        noise, buffers = strategy.next_noise(row, buffers, step)
        return buffers, noise

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
    size = strategy.num_steps
    z = {"a": rng.standard_normal((size, 2, 3)), "b": rng.standard_normal(size)}
    noise = noise_of(strategy, jax.tree.map(lambda x: jnp.asarray(x, "float32"), z))
    for name, x in z.items():
        expected = np.linalg.solve(matrix, x.reshape(size, -1))
        rows = noise[name].reshape(size, -1)
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", LONG)
def test_rounding_is_as_if_the_independent_noise_were_rounded(strategy):
    # C x = z + e, with e a few units in the last place of the largest z or x in play,
    # after 4,096 steps as after one; of buffers their decay, 0.999, adds up to 1,000.
    z = np.random.default_rng(1).standard_normal((4096, 4)).astype(np.float32)
    x = np.asarray(jax.jit(lambda z: noise_of(strategy, z))(z), np.float64)
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
def test_no_pattern_of_participations_passes_the_sensitivity(name):
    # Vectors of one direction are the worst for |X_ij|, and attain the sensitivity.
    strategy = STRATEGIES[name]
    matrix = strategy.matrix()
    rng = np.random.default_rng(2)
    for most, apart in itertools.product((1, 2, 3, 9), (1, 2, 3, 9)):
        bound = strategy.sensitivity(max_participations=most, min_separation=apart)
        worst = 0.0
        for steps in patterns(strategy.num_steps, most, apart):
            worst = max(worst, np.linalg.norm(matrix[:, steps].sum(axis=1)))
            u = rng.standard_normal((len(steps), 2))
            u /= np.linalg.norm(u, axis=1, keepdims=True)
            assert np.linalg.norm(matrix[:, steps] @ u) <= bound
        assert worst <= bound <= worst * (1 + 1e-8)


def test_without_jax_privacy_the_best_are_not_found(monkeypatch):
    for name in ("jax_privacy", "jax_privacy.matrix_factorization"):
        monkeypatch.setitem(sys.modules, name, None)
    for kind, options in ((BandedToeplitz, {"num_bands": 2}), (BufferedToeplitz, {})):
        with pytest.raises(ImportError, match=r"pip install \"dpjax\[correlated\]"):
            kind.optimal(4, **options)
