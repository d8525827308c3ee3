"""Optimal strategies of correlated noise, computed by jax_privacy."""

import contextlib

import jax
import numpy as np


def optimal_bands(num_steps: int, num_bands: int) -> np.ndarray:
    """Returns coefficients of the smallest mean squared error of prefix sums, (b,)."""
    with _settings_of_jax_privacy():
        from jax_privacy.matrix_factorization import toeplitz

        strategy = toeplitz.optimize_banded_toeplitz(num_steps, num_bands)
        return np.asarray(strategy, np.float64)


def optimal_buffers(
    num_steps: int, max_participations: int, min_separation: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns decays and scales of the smallest maximal error of prefix sums."""
    with _settings_of_jax_privacy():
        from jax_privacy.matrix_factorization import buffered_toeplitz

        strategy = buffered_toeplitz.optimize(
            n=num_steps,
            min_sep=min_separation,
            max_participations=max_participations,
            min_buffers=1,
        )
        return np.asarray(strategy.buf_decay), np.asarray(strategy.output_scale)


@contextlib.contextmanager
def _settings_of_jax_privacy():
    """The settings of JAX that it needs; an error with a hint if it is missing."""
    try:
        with (
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.debug_key_reuse(False),
        ):
            yield
    except ImportError as why:
        raise ImportError(
            'jax_privacy computes optimal strategies: pip install "dpjax[correlated]"'
        ) from why
