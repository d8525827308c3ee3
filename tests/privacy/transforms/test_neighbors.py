"""The choice of a vertex, counted; and a batch in pieces: what one record moves."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.constraints import Simplex
from dpjax.estimators import Winsorization
from dpjax.transforms import accumulate, aggregate, frank_wolfe, privatize


@pytest.mark.parametrize("mechanism", ["exponential", "permute_and_flip"])
def test_two_candidates_attain_epsilon_and_never_pass_it(mechanism):
    """One record decides which of two vertices is ahead: false alarm 1e-6."""
    estimator, num_samples, num_draws = Winsorization(1.0), 8, 2**18
    epsilon, step, counts = 2.0, aggregate(estimator), []
    # Permute-and-flip is at its worst where the scores tie, the other about a tie.
    tie = 1.0 if mechanism == "permute_and_flip" else 0.0
    for sign in (1.0, -1.0):
        data = np.zeros((num_samples, 2), np.float32)
        data[0], data[1] = (sign, -sign), (tie, -tie)
        mean = step.update(jnp.asarray(data), step.init(None))[0]

        def choose(key, mean=mean):
            sensitivity = estimator.sensitivity(num_samples, 2).linf
            options = {"epsilon": epsilon, "sensitivity": sensitivity, "key": key}
            options |= {"limit": 1.0, "learning_rate": 1.0, "mechanism": mechanism}
            step_of, params = frank_wolfe(Simplex(1.0), **options), jnp.zeros(2)
            return step_of.update(mean, step_of.init(params), params)[0][0] > 0.5

        keys = jax.random.split(jax.random.key(7), num_draws)
        counts.append(int(jax.jit(jax.vmap(choose))(keys).sum()))
    p, q = (np.array([c, num_draws - c]) / num_draws for c in counts)
    log_ratio = np.abs(np.log(p / q)).max()
    deviation = math.sqrt((1 / np.concatenate([p, q])).max() * 2 / num_draws)
    assert log_ratio <= epsilon + 5 * deviation
    assert log_ratio >= (0.97 if mechanism == "permute_and_flip" else 0.45) * epsilon


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
