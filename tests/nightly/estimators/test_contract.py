"""What takes long: derivatives of all, single operations, batches of gigabytes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from dpjax.estimators import Clipping
from tests.unit.estimators.test_contract import ALL, ROWS, each


@each(ALL)
def test_a_call_is_what_each_operation_by_itself_gives(estimator):
    with jax.disable_jit():
        eager = estimator(ROWS)
    np.testing.assert_allclose(estimator(ROWS), eager, rtol=2e-6, atol=2e-6)


@each(ALL)
def test_derivatives_in_samples_and_hyperparameters(estimator):
    with jax.enable_x64(True):
        rows = np.random.default_rng(5).standard_cauchy(size=(11, 2))
        # Away from beta = 1, where one polynomial hands over to another.
        values, treedef = jax.tree.flatten(estimator)
        values = [jnp.float64(0.9 * x) for x in values]
        estimate = jax.jit(lambda values, rows: treedef.unflatten(values)(rows))
        # The series' own error, 3e-7, has a derivative too, in beta.
        check_grads(
            estimate, (values, jnp.asarray(rows)), order=1, atol=1e-6, rtol=1e-5
        )


def test_a_traced_divisor_of_a_million_is_covered():
    num_coordinates, divisor, num_rows = 256, 953_250, 7_654_597
    mean = jax.jit(lambda x, mask, n: Clipping(1.0)(x, mask, normalize_by=n))
    samples = np.ones((num_rows, num_coordinates), np.float32)
    mask = np.arange(num_rows) >= 7_645_072
    first = np.asarray(mean(samples, mask, divisor), np.float64)
    samples[0] = -1
    gap = first - np.asarray(mean(samples, mask, divisor), np.float64)
    stated = Clipping(1.0).sensitivity(divisor, num_coordinates)
    assert np.sqrt((gap**2).sum()) <= stated.l2
