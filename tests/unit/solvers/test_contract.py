"""What every solver owes: jit, sweeps, types, platforms, values that do no harm."""

import functools
import logging

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import batching, estimators
from tests import registry


def descent(kind, estimator):
    options = {"batching": kind, "estimator": estimator}
    return functools.partial(registry.released, "dp_gradient_descent", **options)


SOLVERS = registry.SOLVERS | {
    "poisson": descent(batching.Poisson(5.0), estimators.Winsorization(1.0)),
    "fixed size": descent(batching.WithoutReplacement(5), estimators.Clipping(1.0)),
    "trimmed": descent(batching.Full(), estimators.TrimmedMean(0.2, -1.0, 1.0)),
    "truncated": descent(batching.Full(), estimators.Truncation(1.0)),
}
each = pytest.mark.parametrize("name", SOLVERS)
WITHOUT_NOISE = "robust_gradient_descent"


def table(name, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.standard_t(3, (registry.enough(name, 40), 6))
    return rows, rows[:, 0] + rng.standard_t(3, len(rows))


def narrow_table(name, seed=0):
    return jax.tree.map(lambda x: jnp.asarray(x, "float32"), table(name, seed))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", registry.SOLVERS)
def test_a_sweep_over_epsilon_scale_and_step_size_compiles_once(name, caplog):
    # Other tests call the same programs, but with the numbers of the first run alone.
    data = jax.tree.map(lambda x: x[:400], narrow_table(name))  # phases depend on more
    release = functools.partial(registry.SOLVERS[name], data)
    keys = list(jax.random.split(jax.random.key(5), 4))
    first = release(keys[0], 0)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        later = [release(key, i + 1) for i, key in enumerate(keys[1:])]
    assert not [x for x in caplog.messages if "Compiling" in x]
    if name != WITHOUT_NOISE:
        epsilons = [solution.privacy.epsilon for solution in (first, *later)]
        np.testing.assert_allclose(epsilons, [0.5, 0.6, 0.7, 0.8])


@pytest.mark.quick(1)
@each
def test_jit_and_vmap_are_the_call_as_it_is(name):
    tables = [narrow_table(name, seed) for seed in range(3)]

    def solve(seed, data):
        return SOLVERS[name](data, jax.random.key(seed), 0)

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *tables)
    mapped = jax.jit(jax.vmap(solve))(jnp.arange(3), stacked)
    jitted = jax.jit(solve)
    for i, data in enumerate(tables):
        plain, compiled = solve(i, data), jitted(i, data)
        of_many = jax.tree.map(lambda x, i=i: x[i], mapped.params)
        for params in (compiled.params, of_many):
            chex.assert_trees_all_close(params, plain.params, rtol=1e-4, atol=1e-5)
        assert plain.privacy == compiled.privacy == mapped.privacy


@pytest.mark.quick(1)
@each
def test_lowers_for_every_platform_and_keeps_the_type_of_its_data(name):
    def solve(words, data):
        return SOLVERS[name](data, jax.random.wrap_key_data(words), 0).params

    words = jax.ShapeDtypeStruct((2,), jnp.uint32)
    shapes = jax.eval_shape(lambda: narrow_table(name))
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(jax.jit(solve), platforms=platforms)(words, shapes)
    assert exported.platforms == platforms
    # Types are known once it is traced; `replay/test_any_precision` runs it.
    with jax.enable_x64(True):  # numbers of the host are then float64
        for dtype, integer in (("float32", "int32"), ("float64", jnp.integer)):
            data = jax.tree.map(lambda x, to=dtype: jnp.asarray(x, to), table(name))
            for leaf in jax.tree.leaves(jax.eval_shape(solve, words, data)):
                assert leaf.dtype == dtype or jnp.issubdtype(leaf.dtype, integer)


@pytest.mark.quick(2)
@pytest.mark.parametrize("epsilon", [1e9, 1e300])
@pytest.mark.parametrize("name", [x for x in registry.SOLVERS if x != WITHOUT_NOISE])
def test_a_huge_epsilon_is_affordable_or_refused_by_name(name, epsilon):
    def solve(data):
        return registry.released(name, data, jax.random.key(0), epsilon=epsilon)

    data = narrow_table(name)
    if name == "dp_one_pass_sco, pure" and epsilon > 1e20:
        with pytest.raises(ValueError, match="epsilon must be between 1e-20 and 1e"):
            solve(data)
    else:
        assert 0 < jax.eval_shape(solve, data).privacy.epsilon <= epsilon


@pytest.mark.quick(3)
@each
def test_private_values_never_raise(name):
    rows, targets = (np.float32(x) for x in table(name))
    wild = [[np.nan, np.inf, -np.inf] * 2, [3e38, -3e38, 1e-45] * 2]
    rows[:] = np.resize(wild, rows.shape)
    for target in (np.nan, np.inf, -3e38):
        data = jnp.asarray(rows), jnp.full(targets.shape, target)
        if name == WITHOUT_NOISE:
            data = data[0], jnp.zeros(targets.shape)
        chex.assert_tree_all_finite(SOLVERS[name](data, jax.random.key(0), 0).params)
