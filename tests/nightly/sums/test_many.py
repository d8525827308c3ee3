"""A million samples, and samples of thousands of leaves."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._sums.samples import FactoredSamples
from dpjax.estimators import Truncation
from tests.unit.sums.test_fold import many_leaves
from tests.unit.sums.test_order_statistics import check


def test_many_samples():
    # Four digits in the sum, and a search of many words.
    rng = np.random.default_rng(0)
    samples = rng.standard_t(2, (2**20 + 3, 1)).astype(np.float32)
    with jax.enable_x64(True):
        check(samples, 5000)
        check(np.abs(samples), 2**19)


def test_the_norm_of_many_leaves_errs_by_few_roundings():
    # One after the other, each small square is rounded away beside the first: the norm
    # errs by 2.4e-4. (Not as one program: it would take minutes to compile.)
    small = np.float32(2.0**-12.01)
    leaves = [jnp.float32(1.0), *[jnp.float32(small)] * 7999]
    exact = 1 + 7999 * float(small) ** 2
    assert exact**0.5 - 1 > 2.0**-13  # what sensitivity() allows for
    squares = FactoredSamples(leaves).squared_norm(jnp.float32(1))
    assert abs(float(squares) / exact - 1) < 14 * 2**-24


def test_many_shapes_are_summed_without_a_loop():
    # A loop that carries a sum for each of 2,000 leaves would compile for minutes.
    samples = many_leaves(16, range(1, 71))
    assert "while" not in jax.jit(Truncation(0.5)).lower(samples).as_text()
