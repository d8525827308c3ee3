"""Scales of coordinates: ratios, bounds under attack, noise in proportion."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    Mean,
    MedianOfMeans,
    Normalization,
    Scaled,
    SmoothedTruncation,
    TrimmedMean,
    Truncation,
    Winsorization,
)
from dpjax.mechanisms import BandedToeplitz
from dpjax.transforms import privatize, scale_by_dp_adam
from tests.unit.estimators.test_normwise import (
    WILD,
    check_moves,
    network,
    rows_of_one,
    tree_of,
)
from tests.unit.refusals import refused

pytestmark = pytest.mark.optimized

# From one end of their range to the other: ratios overflow, and turn to zero.
SCALES = np.float32([2e-20, 5e29, 1e-3, 0.7, 1e3])
ESTIMATORS = {
    "truncation": Truncation(1.5),
    "winsorization": Winsorization(0.7),
    "smoothed": SmoothedTruncation(1.0, 9.21),
    "clipping": Clipping(2.0),
    "normalization": Normalization(0.1),
}
each = pytest.mark.parametrize("name", ESTIMATORS)


def scales_of(row):
    return jax.tree.map(lambda x: x[0], tree_of(row[None]))


@pytest.mark.quick(1)
@each
def test_it_estimates_ratios(name):
    inner = ESTIMATORS[name]
    ratios = np.random.default_rng(0).standard_t(1.5, (9, 5)).astype(np.float32)
    mask = jnp.arange(9) == 4
    scaled = Scaled(inner, scales_of(SCALES))
    found = scaled.measured(tree_of(ratios * SCALES), mask, normalize_by=8)
    expected = inner(tree_of(ratios), mask, normalize_by=8)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(
        scaled.restored(found),
        scales_of(np.asarray(rows_of_one(found)) * SCALES),
        rtol=1e-6,
    )


def test_a_number_stands_for_all_leaves_below_it():
    samples = tree_of(np.random.default_rng(1).normal(size=(6, 5)))
    prefix = Scaled(Winsorization(1.0), {"w": jnp.array([0.5, 2.0]), "b": 3, "c": 0.1})
    whole = Scaled(Winsorization(1.0), scales_of(np.float32([0.5, 2, 3, 0.1, 0.1])))
    chex.assert_trees_all_equal(prefix.measured(samples), whole.measured(samples))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), samples)
    one = Scaled(Winsorization(1.0), 2.0)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(one.measured(half)))


@pytest.mark.quick(2)
@each
def test_no_neighbour_moves_ratios_beyond_the_sensitivity(name):
    n, measured = 17, Scaled(ESTIMATORS[name], scales_of(SCALES)).measured
    rng = np.random.default_rng(1)
    with np.errstate(over="ignore"):
        largest = np.sign(rng.normal(size=(40, 5))) * SCALES * np.float32(0.7)
        wild = rng.choice(WILD, (80, 5)) * rng.choice([SCALES, np.ones(5)], 80)
        rows = np.concatenate([largest, 1e9 * largest, wild]).astype(np.float32)
    if name == "truncation":
        rows[:40] *= 1.5 / 0.7 * (1 - 1e-6)
    others = np.where(np.arange(len(rows))[:, None] < 90, -rows, rng.permutation(rows))
    check_moves(measured, n, rows, others, least=0.97)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["winsorization", "clipping"])
def test_gradients_of_a_network(name):
    # In factored form they are not divided: they are multiplied out.
    rng = np.random.default_rng(2)
    params = {
        "first": {"kernel": jnp.ones((6, 40)) / 9, "bias": jnp.zeros(40)},
        "last": {"kernel": jnp.float32(rng.normal(size=(40, 3)))},
    }
    targets = jnp.float32(rng.normal(size=12)).at[:2].set(jnp.array([1e25, jnp.nan]))
    batch = jnp.float32(rng.normal(size=(12, 6))), targets
    scales = jax.tree.map(lambda x: jnp.float32(rng.exponential(size=x.shape)), params)
    measured = Scaled(ESTIMATORS[name], scales).measured
    mask = jnp.arange(12) == 5

    @jax.jit
    def both(params, batch):
        grads = dpjax.per_sample_grad(network)(params, batch)
        folded = dpjax.robust_grad(network, measured, microbatch_size=4)
        ratios = jax.tree.map(lambda x, s: x / s[None], grads, scales)
        return folded(params, batch, mask), ESTIMATORS[name](ratios, mask)

    chex.assert_trees_all_close(*both(params, batch), rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("strategy", [None, BandedToeplitz.square_root(2, 2)])
def test_noise_is_in_proportion(key, strategy):
    # Of 20,000 coordinates for each scale, within six standard errors of the variance.
    size, scales = 20_000, {"w": np.float32([[1e-6], [1.0]]), "b": 1e9}
    scales["w"] = jnp.broadcast_to(scales["w"], (2, size))
    estimator = Scaled(Winsorization(1.0), scales)
    transform = privatize(estimator, noise_multiplier=3.0, key=key, noise=strategy)
    params = {"w": jnp.zeros((2, size)), "b": jnp.zeros(size)}
    grads = jax.tree.map(lambda x: jnp.zeros((4, *x.shape)), params)
    mean, _ = jax.jit(transform.update)(grads, transform.init(params))
    stddev = 3.0 * Winsorization(1.0).sensitivity(4, 3 * size).l2
    for x, scale in ((mean["w"][0], 1e-6), (mean["w"][1], 1.0), (mean["b"], 1e9)):
        found = np.std(np.asarray(x, np.float64)) / scale / stddev
        assert abs(found**2 - 1) < 6 * (2 / size) ** 0.5


def test_adam_is_told_of_every_coordinates_noise(key):
    scales = {"w": jnp.array([0.1, 10.0]), "b": 3.0}
    estimator = Scaled(Winsorization(1.0), scales)
    transform, again = (
        privatize(estimator, noise_multiplier=1.0, key=one)
        for one in (key, jax.random.clone(key))
    )
    optimizer = dpjax.chain(again, scale_by_dp_adam(b2=0.5))
    params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    grads = jax.tree.map(lambda x: jnp.zeros((4, *x.shape)), params)

    @jax.jit
    def first(grads):
        mean, _, stddev = transform.release(grads, transform.init(params), params)
        _, state = optimizer.update(grads, optimizer.init(params), params)
        return mean, stddev, state[1].nu

    mean, stddev, nu = first(grads)
    one = Winsorization(1.0).sensitivity(4, 3, rounded=False).l2
    trees = mean, stddev, nu, scales
    for x, s, v, scale in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_allclose(s, one * scale, rtol=1e-6)
        np.testing.assert_allclose(v, 0.5 * (x**2 - s**2), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.devices(4)
def test_the_same_on_several_devices():
    kinds = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2, 2), ("records", "model"), axis_types=kinds)
    rng = np.random.default_rng(3)
    grads = jnp.float32(rng.standard_t(2, (8, 4, 3)))
    scales = jnp.float32(rng.exponential(size=(4, 3)))
    spec = jax.sharding.PartitionSpec
    expected = Scaled(Winsorization(1.0), scales).measured(grads)
    for place in (spec("records"), spec("records", "model")):
        with jax.set_mesh(mesh):
            rows = jax.device_put(grads, jax.sharding.NamedSharding(mesh, place))
            here = jax.device_put(scales, jax.sharding.NamedSharding(mesh, spec()))
            found = Scaled(Winsorization(1.0), here).measured(rows, axis_name="records")
        np.testing.assert_allclose(found, expected, rtol=1e-6)


BAD = [
    (lambda: Scaled(Mean(), 1.0), "estimator must be one with Gaussian noise"),
    (lambda: Scaled(TrimmedMean(0.1, -1.0, 1.0), 1.0), "estimator must be one with"),
    (lambda: Scaled(MedianOfMeans(Truncation(1.0), 2), 1.0), "estimator must be one"),
    (lambda: Scaled(Scaled(Clipping(1.0), 1.0), 1.0), "estimator must be one with"),
    (
        lambda: Scaled(AdaptiveThreshold(Clipping(1.0), lower=0.1, upper=9.0), 1.0),
        "estimator must be one with",
    ),
    (lambda: Scaled(Clipping(1.0), {}), "scales must be numbers, or a pytree"),
    (lambda: Scaled(Clipping(1.0), {"w": 0.0}), "scales must be between"),
    (lambda: Scaled(Clipping(1.0), jnp.array([1.0, -1.0])), "scales must be between"),
    (lambda: Scaled(Clipping(1.0), [1.0, np.inf]), "scales must be between"),
    (lambda: Scaled(Clipping(1.0), np.nan), "scales must be between"),
    (lambda: Scaled(Clipping(1.0), "one"), "scales must be a number"),
]


test_bad_arguments_are_named = refused(lambda make: make(), *BAD)


def test_scales_that_do_not_fit_are_named(key):
    params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    grads = jax.tree.map(lambda x: jnp.ones((4, *x.shape)), params)
    for scales, message in [
        ({"w": 1.0}, "scales must be one leaf, or a pytree as"),
        ([1.0, 1.0], "scales must be one leaf, or a pytree as"),
        (
            {"w": np.ones(3), "b": 1.0},
            r"scales must be numbers, or arrays of the shape",
        ),
        ({"w": np.ones((4, 2)), "b": 1.0}, r"of their leaves, as \(2,\), got \(4, 2\)"),
    ]:
        estimator = Scaled(Winsorization(1.0), scales)
        transform = privatize(
            estimator, noise_multiplier=1.0, key=jax.random.clone(key)
        )
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(transform.update, grads, transform.init(params))
