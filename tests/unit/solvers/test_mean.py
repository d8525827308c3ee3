"""The private mean: its value, its noise, its neighbours, its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import accounting
from dpjax.estimators import (
    Clipping,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.solvers import dp_mean
from tests.unit.refusals import refused

ESTIMATORS = {
    "clipping": Clipping(1.0),
    "truncation": Truncation(1.0),
    "winsorization": Winsorization(1.0),
    "smoothed": SmoothedTruncation(1.0, 20.0),
    "medians": MedianOfMeans(Truncation(1.0), 4),
}
each = pytest.mark.parametrize("name", ESTIMATORS)


def settings(**changes):
    return {"key": jax.random.key(1), "epsilon": 1.0, "delta": 1e-5} | changes


@pytest.mark.quick(1)
@each
def test_noise_has_the_stated_scale(name):
    samples = {"a": jnp.zeros((20, 3)), "b": jnp.zeros(20)}

    def solve(key):
        return dp_mean(
            samples, **settings(key=key, estimator=ESTIMATORS[name], epsilon=0.7)
        )

    solutions = jax.jit(jax.vmap(solve))(jax.random.split(jax.random.key(5), 1_000))
    stats = jax.tree.map(lambda x: float(x[0]), solutions.stats)
    draws = np.concatenate([np.ravel(x) for x in jax.tree.leaves(solutions.params)])
    total = np.sum(np.square(draws, dtype=np.float64)) / stats["stddev"] ** 2
    law = scipy.stats.chi2(draws.size)  # false alarms: 1e-6
    assert law.ppf(5e-7) < total < law.isf(5e-7)
    assert total / 4 < law.ppf(5e-7)  # half the noise
    sensitivity = ESTIMATORS[name].sensitivity(20, 4, rounded=False).l2
    np.testing.assert_allclose(stats["l2_sensitivity"], sensitivity, rtol=1e-5)
    stddev = accounting.gaussian_stddev(0.7, 1e-5, sensitivity=1.0)
    np.testing.assert_allclose(stats["noise_multiplier"], stddev, rtol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, np.int32, np.float64])
def test_dtypes(dtype):
    samples = np.ones((40, 2)).astype(dtype)
    solution = dp_mean(samples, **settings(estimator=Winsorization(2.0)))
    assert solution.params.dtype == jnp.float32
    wide = dp_mean(samples.astype(np.float32), **settings(estimator=Winsorization(2.0)))
    np.testing.assert_array_equal(solution.params, wide.params)


test_bad_arguments = refused(
    lambda changes: dp_mean(jnp.zeros((8, 2)), **settings(**changes)),
    ({"estimator": MedianOfMeans(Truncation(1.0), 9)}, "at least num_groups = 9"),
)
