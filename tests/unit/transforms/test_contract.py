"""What every transform owes: optax chains, jit, vmap, scan, checkpoints."""

import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import scipy.stats

from tests import registry

# What optax asks for: the numbers of each transform are tested in a file of its own.
NUM_ROWS = 8

TRANSFORMS = registry.TRANSFORMS
OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(1e-2),
    "schedule": lambda: optax.sgd(optax.cosine_decay_schedule(0.1, 10)),
}
each = pytest.mark.parametrize(
    "name",
    [  # order statistics compile longest
        pytest.param(name, marks=[pytest.mark.slow] * ("trimmed" in name))
        for name in TRANSFORMS
    ],
)


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


def chained(name, optimizer, seed=1):
    parts = [TRANSFORMS[name](jax.random.key(seed)), OPTIMIZERS[optimizer]()]
    if name == "accumulate":  # it holds what would follow
        return parts[0]
    return optax.chain(*(parts if name in registry.OF_SAMPLES else reversed(parts)))


@functools.cache
def jitted(name, optimizer):
    """The update, compiled once for all tests; `chained` makes states of fresh keys."""
    return jax.jit(chained(name, optimizer).update)


def run(optimizer, name, num_steps, update):
    params = make_params()
    state = optimizer.init(params)
    for step in range(num_steps):
        updates, state = update(make_updates(name, step), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.quick(1)
@each
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_chains_and_traces_once(name, optimizer):
    update = jitted(name, optimizer)
    run(chained(name, optimizer), name, 1, update)
    num_programs = update._cache_size()
    params, _ = run(chained(name, optimizer), name, 5, update)
    assert update._cache_size() == num_programs
    chex.assert_trees_all_equal_shapes_and_dtypes(params, make_params())
    chex.assert_tree_all_finite(params)
    assert (params["w"] != 1).any()


@pytest.mark.quick(1)
@each
def test_jit_equals_eager(name):
    optimizer = chained(name, "sgd")
    eager, _ = run(optimizer, name, 2, optimizer.update)
    compiled, _ = run(chained(name, "sgd"), name, 2, jitted(name, "sgd"))
    chex.assert_trees_all_close(compiled, eager, rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@each
def test_scan_equals_a_loop(name):
    optimizer = chained(name, "sgd")
    batches = [make_updates(name, step) for step in range(4)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)

    def step(carry, updates):
        params, state = carry
        updates, state = optimizer.update(updates, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = make_params()
    (scanned, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), stacked)
    looped, _ = run(chained(name, "sgd"), name, 4, jitted(name, "sgd"))
    chex.assert_trees_all_close(scanned, looped, rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@each
def test_vmap_over_runs(name):
    batches = [make_updates(name, step) for step in range(3)]
    stacked = jax.tree.map(lambda *x: np.stack(x), *batches)

    def one(update, seed, updates):
        params, optimizer = make_params(), chained(name, "sgd", seed)
        return update(updates, optimizer.init(params), params)[0]

    mapped = jax.jit(jax.vmap(functools.partial(one, chained(name, "sgd").update)))
    single = [one(jitted(name, "sgd"), seed, x) for seed, x in enumerate(batches)]
    single = jax.tree.map(lambda *x: np.stack(x), *single)
    chex.assert_trees_all_close(
        mapped(np.arange(3), stacked), single, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "name",
    [
        *("privatize", "privatize, adaptive", "privatize, trimmed mean"),
        *("dp_sgd", "add_gaussian_noise"),
    ],
)
def test_each_update_draws_anew(name):
    shape = (NUM_ROWS, 1000) if name in registry.OF_SAMPLES else (1000,)
    transform, draws = TRANSFORMS[name](jax.random.key(1)), []
    state = transform.init(jnp.zeros(1000))
    for _ in range(3):
        noise, state = transform.update(jnp.zeros(shape), state, jnp.zeros(1000))
        assert len(np.unique(noise)) > 990
        draws.append(noise)
    # Ranks of independent draws have a correlation of stddev 1 / sqrt(1000).
    ranks = scipy.stats.spearmanr(np.stack(draws, axis=1)).statistic
    assert np.abs(ranks - np.eye(3)).max() < 5 / np.sqrt(1000)


def assert_continues(name, restored, state):
    found, expected = (
        jitted(name, "adam")(make_updates(name, 9), x, make_params())[0]
        for x in (restored, state)
    )
    chex.assert_trees_all_equal(found, expected)


@pytest.mark.quick(1)
@each
def test_state_pickles(name):
    _, state = run(chained(name, "adam"), name, 2, jitted(name, "adam"))
    assert_continues(name, pickle.loads(pickle.dumps(state)), state)


# The recipe: keys are saved as their words, which every release of orbax takes (recent
# ones take typed keys as they are), and wrapped again after restoring.
def without_keys(tree):
    return jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, tree)


def with_keys(tree, like):
    return jax.tree.map(
        lambda x, y: jax.random.wrap_key_data(x) if is_key(y) else x, tree, like
    )


def is_key(x):
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


@pytest.mark.quick(1)
@each
def test_state_survives_orbax(name, tmp_path):
    params, state = run(chained(name, "adam"), name, 2, jitted(name, "adam"))
    template = chained(name, "adam").init(params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", without_keys(state))
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", without_keys(template))
    restored = with_keys(restored, template)
    chex.assert_trees_all_equal_shapes_and_dtypes(restored, state)
    assert_continues(name, restored, state)


@pytest.mark.quick(1)
@each
def test_exports_for_every_platform(name):
    platforms, params = ("cpu", "cuda", "tpu"), make_params()
    exported = jax.export.export(jitted(name, "adam"), platforms=platforms)(
        make_updates(name, 0), chained(name, "adam").init(params), params
    )
    assert exported.platforms == platforms


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", registry.OF_SAMPLES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_gives_float32(name, dtype):
    narrow = jax.tree.map(lambda x: x.astype(dtype), make_updates(name, 0))
    found, expected = (
        run_once(name, grads) for grads in (narrow, jax.tree.map(jnp.float32, narrow))
    )
    chex.assert_trees_all_equal_dtypes(found, make_params())
    chex.assert_trees_all_equal(found, expected)


def run_once(name, updates):
    optimizer, params = TRANSFORMS[name](jax.random.key(0)), make_params()
    return optimizer.update(updates, optimizer.init(params), params)[0]


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", registry.OF_SAMPLES)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf, 1e38])
def test_wild_gradients_stay_finite(name, bad):
    updates = make_updates(name, 0)
    updates["w"] = updates["w"].at[3].set(bad)
    result = run_once(name, updates)
    chex.assert_tree_all_finite(result)
    assert float(np.abs(result["w"]).max()) < 10
