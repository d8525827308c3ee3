"""What every transform owes: optax chains, jit, vmap, scan, checkpoints."""

import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from tests import registry

# What optax asks for: the numbers of each transform are tested in a file of its own.
NUM_ROWS = 8
TRANSFORMS = registry.TRANSFORMS
OPTIMIZERS = {"sgd": lambda: optax.sgd(0.1, 0.9), "adam": lambda: optax.adam(1e-2)}
# Of every kind of state: a threshold, buffers, a sum, a number of steps.
STATES = ["privatize, adaptive", "privatize, correlated", "accumulate", "frank_wolfe"]
NOISY = ["privatize", "privatize, adaptive", "privatize, trimmed mean"]


@pytest.fixture(autouse=True)
def standard_promotion():
    # optax itself mixes dtypes (its counts are int32).
    with jax.numpy_dtype_promotion("standard"):
        yield


def make_params():
    return {"w": jnp.ones((2, 3)), "b": jnp.zeros(())}


def make_updates(name, step):
    """Gradients, with the leading axis of samples where the transform wants it."""
    lead = (NUM_ROWS,) if name in registry.OF_SAMPLES else ()
    rng = np.random.default_rng(100 + step)
    return {
        "w": jnp.asarray(rng.standard_t(2, (*lead, 2, 3)), jnp.float32),
        "b": jnp.asarray(rng.standard_t(2, lead), jnp.float32),
    }


def chained(name, optimizer="adam", seed=1):
    parts = [TRANSFORMS[name](jax.random.key(seed)), OPTIMIZERS[optimizer]()]
    if name == "accumulate":  # it holds what would follow
        return parts[0]
    return optax.chain(*(parts if name in registry.OF_SAMPLES else reversed(parts)))


@functools.cache
def jitted(name, optimizer="adam"):
    """The update, compiled once for all tests; `chained` makes states of fresh keys."""
    return jax.jit(chained(name, optimizer).update)


def run(optimizer, name, num_steps, update):
    params = make_params()
    state = optimizer.init(params)
    for step in range(num_steps):
        updates, state = update(make_updates(name, step), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_continues(name, restored, state):
    grads = make_updates(name, 9)
    results = (jitted(name)(grads, x, make_params())[0] for x in (restored, state))
    chex.assert_trees_all_equal(*results)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_one_program_makes_all_steps_and_its_state_pickles(name):
    params, state = run(chained(name), name, 4, jitted(name))
    assert jitted(name)._cache_size() == 1
    chex.assert_trees_all_equal_shapes_and_dtypes(params, make_params())
    chex.assert_tree_all_finite(params)
    assert (params["w"] != 1).any()
    assert_continues(name, pickle.loads(pickle.dumps(state)), state)
    key = jax.random.key(0)
    transform = TRANSFORMS[name](key)
    with jax.debug_key_reuse(False):
        for _ in range(2):  # donated, a state leaves the optimizer's own key
            state = transform.init(params)
            jax.jit(lambda state: state, donate_argnums=0)(state)
    assert jax.random.uniform(key) >= 0  # and the caller's


@pytest.mark.parametrize("name", STATES)
def test_scans_mapped_over_runs_equal_loops(name):
    batches = [make_updates(name, step) for step in range(4)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)

    def scanned(seed):
        optimizer = chained(name, seed=seed)

        def step(carry, updates):
            params, state = carry
            updates, state = optimizer.update(updates, state, params)
            return (optax.apply_updates(params, updates), state), None

        start = make_params(), optimizer.init(make_params())
        return jax.lax.scan(step, start, stacked)[0][0]

    together = jax.jit(jax.vmap(scanned))(np.arange(2))
    for seed in range(2):
        looped, _ = run(chained(name, seed=seed), name, 4, jitted(name))
        mine = jax.tree.map(lambda x, i=seed: x[i], together)
        chex.assert_trees_all_close(mine, looped, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*NOISY, "dp_sgd", "add_gaussian_noise"])
def test_each_update_draws_anew(name):
    shape = (NUM_ROWS, 1000) if name in registry.OF_SAMPLES else (1000,)
    transform, draws = TRANSFORMS[name](jax.random.key(1)), []
    state, update = transform.init(jnp.zeros(1000)), jax.jit(transform.update)
    for _ in range(3):
        noise, state = update(jnp.zeros(shape), state, jnp.zeros(1000))
        assert len(np.unique(noise)) > 990
        draws.append(noise)
    # Ranks of independent draws have a correlation of stddev 1 / sqrt(1000).
    ranks = scipy.stats.spearmanr(np.stack(draws, axis=1)).statistic
    assert np.abs(ranks - np.eye(3)).max() < 5 / np.sqrt(1000)


# Keys are saved as their words, and wrapped again after restoring.
def without_keys(tree):
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def with_keys(tree, like):
    wrap = jax.random.wrap_key_data
    return jax.tree.map(lambda x, y: wrap(x) if is_key(y) else x, tree, like)


def is_key(x):
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


@pytest.mark.parametrize("name", ["frank_wolfe", "peel", "project", "average_iterates"])
def test_update_needs_params(name):
    transform, params = TRANSFORMS[name](jax.random.key(0)), make_params()
    with pytest.raises(ValueError, match="params must be given to update"):
        transform.update(params, transform.init(params))
