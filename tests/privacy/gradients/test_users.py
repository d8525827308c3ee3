"""Users: what one of them can move, and what the guarantee says of them."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import losses
from dpjax.batching import Poisson
from dpjax.estimators import Clipping
from dpjax.gradients import by_user, robust_grad
from dpjax.solvers import dp_gradient_descent


def test_one_user_moves_the_mean_by_no_more_than_the_sensitivity():
    # Records of user 0 come, go and are replaced, those of others stay; ids and values
    # are whatever floats and integers there are, and nothing raises.
    rng = np.random.default_rng(2)
    estimator = Clipping(1.0)
    bound = estimator.sensitivity(3, 2).l2

    @jax.jit
    def mean(x, ids):
        grad_fn = robust_grad(
            lambda w, x: w @ x, estimator, user_ids=ids, num_users=3, records_per_user=4
        )
        return grad_fn(jnp.zeros(2), x)

    odd = [0.0, 1.0, -1.0, 1e30, -1e30, 3e38, 1e-40, np.nan, np.inf, -np.inf]
    theirs = np.array([[1.0, 2], [-3, 4], [5e20, 0]], np.float32)
    ends = []
    for _ in range(300):
        mine = rng.choice(odd, (6, 2)).astype(np.float32)
        my_ids = rng.choice([0, 0, 0, -7, 3, 2**31 - 1], 6)
        x = jnp.asarray(np.concatenate([mine[:3], theirs, mine[3:]]))
        ids = jnp.asarray(np.concatenate([my_ids[:3], [1, 2, 1], my_ids[3:]]), "int32")
        ends.append(np.asarray(mean(x, ids)))
    ends = np.array(ends)
    assert np.isfinite(ends).all()
    farthest = np.linalg.norm(ends[:, None] - ends[None], axis=-1).max()
    assert 0.9 * bound < farthest <= bound


def test_users_are_drawn_and_the_guarantee_says_so(key):
    data, ids = (jnp.ones((60, 2)), jnp.ones(60)), jnp.arange(60) % 20
    solution = dp_gradient_descent(
        losses.squared,
        jnp.zeros(2),
        by_user(data, ids, num_users=20, records_per_user=3),
        **{"key": key, "epsilon": 2.0, "delta": 1e-5, "estimator": Clipping(1.0)},
        **{"learning_rate": 0.1, "num_steps": 4, "batching": Poisson(5.0)},
    )
    assert str(solution.privacy).startswith("Replacing any one of the 20 users changes")
