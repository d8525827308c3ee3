"""What tests of gradients share."""

import warnings

import jax
import pytest


@pytest.fixture
def their_promotion():
    """Packages of networks mix dtypes and ranks, and use keys again."""
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.debug_key_reuse(False),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
