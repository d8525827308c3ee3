"""What holds for every estimator, and takes long: derivatives, single operations."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

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
