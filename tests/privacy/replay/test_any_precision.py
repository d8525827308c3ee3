"""Solvers and transforms of any precision, with x64: what they show, move and claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import registry
from tests.privacy.replay import test_solvers

DTYPES = ["float64", "float32", "bfloat16", "float16"]
# What the first record becomes, in any type: some of it overflows to infinity.
NEIGHBOURS = {
    "huge": (np.resize([1e300, -1e300, 3e38, 1e42], test_solvers.D), -1e300),
    "target": (0.0, 1e60),
    "long": (1e39, -1e39),
    "tiny": (5e-324, 1e-300),
    "NaN": (np.nan, -np.inf),
    "mixed": (np.resize([1e154, -1e19, 6e4, np.inf], test_solvers.D), 1e-310),
}
NOISY = sorted(set(registry.OF_SAMPLES) - {"aggregate"})


@pytest.fixture(autouse=True)
def wide():
    """With x64, also where callbacks run: in threads of their own."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    yield
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_numpy_dtype_promotion", "strict")


def cast(data, dtype):
    with np.errstate(over="ignore", under="ignore"):
        return jax.tree.map(lambda x: np.asarray(x).astype(jnp.dtype(dtype)), data)


# A description reads tables, and has the floats of their container.
@pytest.mark.quick(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", [x for x in test_solvers.CASES if not x.startswith("description")]
)
def test_solvers_in_any_precision(hooks, name, dtype):
    num_samples, solutions = registry.enough(name, 20), []

    def release(data, key, i, dtype=dtype):
        solutions.append(test_solvers.CASES[name](cast(data, dtype), key, i))
        return solutions[-1]

    test_solvers.refuse_interference(hooks, release, num_samples, NEIGHBOURS)
    assert len(solutions) == 1 + len(NEIGHBOURS), "none was refused"
    for solution in solutions:
        for x in jax.tree.leaves(solution.params):
            assert np.isfinite(np.asarray(x, np.float64)).all()
    data = test_solvers.table(num_samples)
    with jax.enable_x64(False):  # the guarantee is known once it is traced
        jax.eval_shape(lambda: release(data, jax.random.key(7), 0, "float32"))
    assert len({str(solution.privacy) for solution in solutions}) == 1
    assert all(solution.privacy == solutions[0].privacy for solution in solutions)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NOISY)
def test_transforms_in_any_precision(hooks, name, dtype):
    data, key = test_solvers.table(20), jax.random.key(7)
    one = registry.TRANSFORMS[name](jax.random.clone(key))
    update = jax.jit(one.update)  # all that differs is in the state

    def run(data):
        features, targets = cast(data, dtype)
        # Two types in one tree.
        updates = {"w": jnp.asarray(features.reshape(-1, 2, 3))}
        updates["b"] = jnp.asarray(cast(targets, "float32"))
        params = jax.tree.map(lambda x: jnp.ones_like(x[0]), updates)
        state = registry.TRANSFORMS[name](jax.random.clone(key)).init(params)
        if name == "accumulate":  # a piece before the one that releases
            _, state = update(jax.tree.map(jnp.zeros_like, updates), state, params)
        return update(updates, state, params)[0]

    others = [test_solvers.neighbour(data, *first) for first in NEIGHBOURS.values()]
    shown = hooks.compare(run, data, others, 2.0)  # of the noise multiplier 0.5
    assert shown[0][0] != "raised", shown
    assert hooks.recorded
    for x in jax.tree.leaves(run(data)):
        assert np.isfinite(np.asarray(x, np.float64)).all()
