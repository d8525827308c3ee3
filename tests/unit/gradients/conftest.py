"""What tests of gradients share."""

import warnings

import hypothesis
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


@pytest.fixture
def search(request):
    """Checks a few examples of strategies; with `--all-cases` many."""
    is_long = request.config.getoption("--all-cases")

    def run(check, *strategies, few, many):
        settings = hypothesis.settings(
            max_examples=many if is_long else few,
            derandomize=True,
            deadline=None,
            database=None,
        )
        settings(hypothesis.given(*strategies)(check))()

    return run
