"""A batch in pieces: what one record moves, beside the noise that counts rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import Winsorization
from dpjax.transforms import accumulate, privatize


@pytest.mark.parametrize("relation", [dpjax.REPLACE_ONE, dpjax.ADD_OR_REMOVE_ONE])
def test_a_record_moves_the_sum_by_the_sensitivity_at_most(relation):
    n, num_pieces, estimator, means = 4096, 64, Winsorization(1.0), []
    for value in (1e6, -1e6 if relation is dpjax.REPLACE_ONE else 0.0):
        rows = np.where(np.arange(n) % 3 == 0, 0.7, -0.4)[:, None] * np.ones((1, 5))
        rows[n // 2] = value
        private = privatize(
            estimator, noise_multiplier=0.0, normalize_by=n, key=jax.random.key(1)
        )
        optimizer = accumulate(private, num_pieces=num_pieces)
        update, state = jax.jit(optimizer.update), optimizer.init(jnp.zeros(5))
        for piece in np.split(np.float32(rows), num_pieces):
            mean, state = update(piece, state)
        means.append(np.float64(mean))
    moved = np.abs(means[0] - means[1]).max()
    slack = 2**-20 + 9 * n * (num_pieces * 2**-24) ** 2  # by which noise is larger
    bound = estimator.sensitivity(n, 5, relation).linf * (1 + slack)
    assert 0.99 * bound < moved <= bound
