"""The best strategies of correlated noise, as jax_privacy finds them."""

import contextlib

import jax
import numpy as np


def optimal_bands(num_steps: int, num_bands: int) -> np.ndarray:
    """Returns coefficients of the least mean squared error of prefix sums, (b,)."""
    with _as_jax_privacy_wants():
        from jax_privacy.matrix_factorization import toeplitz

        found = toeplitz.optimize_banded_toeplitz(num_steps, num_bands)
        return np.asarray(found, np.float64)


def optimal_buffers(
    num_steps: int, max_participations: int, min_separation: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns decays and scales of the least largest error of prefix sums."""
    with _as_jax_privacy_wants():
        from jax_privacy.matrix_factorization import buffered_toeplitz

        found = buffered_toeplitz.optimize(
            n=num_steps,
            min_sep=min_separation,
            max_participations=max_participations,
            min_buffers=1,
        )
        return np.asarray(found.buf_decay), np.asarray(found.output_scale)


@contextlib.contextmanager
def _as_jax_privacy_wants():
    """The settings of JAX that it is written for, and a word where it is missing."""
    try:
        with (
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.debug_key_reuse(False),
        ):
            yield
    except ImportError as why:
        raise ImportError(
            "the best strategies are found by jax_privacy: pip install "
            '"dpjax[correlated]"'
        ) from why
