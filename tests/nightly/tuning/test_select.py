"""A private search finds the rate that learns."""

import jax
import jax.numpy as jnp

from dpjax import accounting, losses, solvers, tuning
from dpjax.estimators import Clipping


def test_it_finds_the_rate_that_learns(key):
    features = jax.random.normal(jax.random.key(1), (3_000, 2))
    targets = features @ jnp.array([1.0, -2.0])
    each = accounting.tuning_budget(4.0, 1e-5, mean_trials=6)
    cost = accounting.gaussian_epsilon(each.noise_multiplier, 1e-5, sensitivity=1.0)

    def train(rate, key):
        return solvers.dp_gradient_descent(
            losses.squared, jnp.zeros(2), (features[:2_000], targets[:2_000]),
            key=key, epsilon=cost, delta=1e-5, estimator=Clipping(3.0),
            learning_rate=rate, num_steps=8,
        )  # fmt: skip

    score = tuning.clipped_loss(
        losses.squared, (features[2_000:], targets[2_000:]), limit=4.0, epsilon=cost,
        delta=1e-5,
    )  # fmt: skip
    solution = tuning.dp_select(
        train, jnp.array([1e-3, 0.5]), key=jax.random.key(5), epsilon=4.0, delta=1e-5,
        score=score, mean_trials=6, num_parallel=4,
    )  # fmt: skip
    assert solution.stats["candidate"] == 1
    assert jnp.linalg.norm(solution.params - jnp.array([1.0, -2.0])) < 0.5
    assert 3.9 < solution.privacy.epsilon <= 4.0
