"""Normalization, groups and scales: formulas, limits, norms from factors, noise."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import estimators
from dpjax.estimators import Clipping, Grouped, Normalization, Scaled, Winsorization
from dpjax.mechanisms import BandedToeplitz
from dpjax.transforms import privatize, scale_by_dp_adam
from tests.unit.estimators.test_clipping import NORM_ERROR
from tests.unit.refusals import refused

BOUNDS, GROUPS = np.array([0.7, 3.0], np.float32), ("w", ("b", "c/0"))
GROUPED = {
    "clipping": Grouped(Clipping(BOUNDS), GROUPS),
    "smoothed": Grouped(estimators.SmoothedClipping(jnp.array(BOUNDS), 9.21), GROUPS),
    "normalization": Grouped(Normalization(0.1), GROUPS),
}


def tree_of(rows):
    """Samples (n, 5) as trees: two coordinates in the first group."""
    rows = jnp.asarray(rows, jnp.float32)
    return {"w": rows[:, :2], "b": rows[:, 2], "c": [rows[:, 3:]]}


def test_normalization_is_its_formula():
    sizes = np.float32([1e-37, 1e-20, 1e-3, 1.0, 9e6, 3e37])
    rows = sizes[:, None] * np.float32([0.6, 0.0, -0.8])
    norms = np.linalg.norm(np.asarray(rows, np.float64), axis=1)
    influences = jax.jit(lambda offset: jax.vmap(Normalization(offset).influence)(rows))
    for offset in (1e-12, 1e-3, 1.0, 1e30):
        expected = rows / (norms + np.float64(np.float32(offset)))[:, None]
        expected[norms >= 2.0**63 * offset] = 0  # such samples count for nothing
        # So does what is far below float32's range beside the offset.
        ratios = influences(offset)
        np.testing.assert_allclose(ratios, expected, rtol=2e-6, atol=1e-36)
        assert np.linalg.norm(ratios, axis=1).max() <= 1 + NORM_ERROR
    # Its derivative at zero, where that of the norm does not exist.
    slope = jax.jit(jax.jacfwd(Normalization(0.1).influence))(jnp.zeros(2))
    np.testing.assert_allclose(slope, 10 * np.eye(2))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", GROUPED)
def test_groups_are_estimated_by_themselves(name):
    samples = tree_of(np.random.default_rng(0).standard_t(1.5, (9, 5)))
    grouped = GROUPED[name]
    first, second = grouped._each()

    @jax.jit
    def both(samples):
        b, c = second((samples["b"], samples["c"]))
        return grouped(samples), {"w": first(samples["w"]), "b": b, "c": c}

    chex.assert_trees_all_close(*both(samples), rtol=1e-6)


def test_the_limit_of_groups_is_the_root_of_squares():
    huge = Grouped(Clipping(jnp.array([3e29, 4e29])), ("a", "b"))
    for grouped, limit in [(GROUPED["clipping"], np.hypot(*BOUNDS)), (huge, 5e29)]:
        traced = jax.jit(lambda x: x.limit)(grouped)
        np.testing.assert_allclose([grouped.limit, traced], limit, rtol=1e-6)


def network(params, example):
    x, y = example
    hidden = jnp.tanh(x @ params["first"]["kernel"] + params["first"]["bias"])
    return (hidden @ params["last"]["kernel"]).sum() * y


def normal(*shape):
    return jnp.float32(np.random.default_rng(2).normal(size=shape))


PARAMS = {
    "first": {"kernel": normal(6, 40), "bias": normal(40)},
    "last": {"kernel": normal(40, 3)},
}
SCALES = jax.tree.map(lambda x: jnp.exp(x), PARAMS)
LAYERS, RANGE = ("first", "last"), {"lower": 0.01, "upper": 100.0}
FACTORED = {
    "normalization": Normalization(0.3),
    "two layers": Grouped(Clipping(jnp.array([0.2, 2.0])), LAYERS),
    "by leaf": Grouped(Normalization(0.3), ("first/kernel", "first/bias", "last")),
    "bias and last": Grouped(
        estimators.SmoothedClipping(jnp.array([0.2, 2.0])),
        ("first/kernel", ("last", "first")),
    ),
    # In factored form samples are not divided: they are multiplied out.
    "scaled winsorization": Scaled(Winsorization(0.7), SCALES).measured,
    "scaled clipping": Scaled(Clipping(2.0), SCALES).measured,
    "counts": estimators.AdaptiveThreshold(Clipping(7.0), **RANGE).counting,
    "layer counts": estimators.AdaptiveThreshold(
        Grouped(Clipping(7.0), LAYERS), **RANGE
    ).counting,
}
# From one end of their range to the other: ratios overflow, and turn to zero.
RANGES = np.float32([2e-20, 5e29, 1e-3, 0.7, 1e3])


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", FACTORED)
def test_norms_from_factors_are_those_of_gradients(name):
    estimator, mask = FACTORED[name], jnp.arange(12) == 5
    batch = normal(12, 6), normal(12).at[:3].set(jnp.array([0.0, 1e25, jnp.nan]))

    @jax.jit
    def both(params, batch):
        grads = dpjax.per_sample_grad(network)(params, batch)
        folded = dpjax.robust_grad(network, estimator, microbatch_size=4)
        return folded(params, batch, mask), estimator(grads, mask)

    chex.assert_trees_all_close(*both(PARAMS, batch), rtol=1e-5, atol=1e-6)


def test_groups_that_do_not_fit_are_named():
    samples = tree_of(np.ones((4, 5)))
    for groups, message in [
        (("w", "b", "c", "d"), r"groups must be names or pref.*\['d'\] fit none"),
        (("w", "c"), "groups must be names or prefixes of all leaves: add 'b', or"),
        (("w", "b", "c", ""), r"\[''\] fit none"),
        (("w", "b", "c/"), "add 'c/0', or"),
    ]:
        for apply in (lambda x: x, jax.jit):
            with pytest.raises(ValueError, match=message):
                apply(Grouped(Clipping(1.0), groups))(samples)
    assert Grouped(Clipping(1.0), ("w", ""))(samples)["b"].shape == ()


def scales_of(row):
    return jax.tree.map(lambda x: x[0], tree_of(row[None]))


@pytest.mark.parametrize(
    "inner", [estimators.Truncation(1.5), Clipping(2.0), Normalization(0.1)]
)
def test_scaled_samples_are_estimated_as_ratios(inner):
    ratios = np.random.default_rng(0).standard_t(1.5, (9, 5)).astype(np.float32)
    mask = jnp.arange(9) == 4
    scaled = Scaled(inner, scales_of(RANGES))
    mean = scaled.measured(tree_of(ratios * RANGES), mask, normalize_by=8)
    expected = inner(tree_of(ratios), mask, normalize_by=8)
    chex.assert_trees_all_close(mean, expected, rtol=1e-5, atol=1e-6)
    restored = jax.tree.map(jnp.multiply, mean, scaled.scales)
    chex.assert_trees_all_close(scaled.restored(mean), restored, rtol=1e-6)


def test_a_number_stands_for_all_leaves_below_it():
    samples = tree_of(np.random.default_rng(1).normal(size=(6, 5)))
    prefix = Scaled(Winsorization(1.0), {"w": jnp.array([0.5, 2.0]), "b": 3, "c": 0.1})
    by_leaf = Scaled(Winsorization(1.0), scales_of(np.float32([0.5, 2, 3, 0.1, 0.1])))
    chex.assert_trees_all_equal(prefix.measured(samples), by_leaf.measured(samples))
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), samples)
    one = Scaled(Winsorization(1.0), 2.0)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(one.measured(half)))


@pytest.mark.quick(1)
@pytest.mark.parametrize("strategy", [None, BandedToeplitz.square_root(2, 2)])
def test_noise_is_in_proportion_to_the_scales(key, strategy):
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
        ratio = np.std(np.asarray(x, np.float64)) / scale / stddev
        assert abs(ratio**2 - 1) < 6 * (2 / size) ** 0.5


def test_adam_is_told_of_every_coordinates_noise(key):
    scales = {"w": jnp.array([0.1, 10.0]), "b": 3.0}
    estimator = Scaled(Winsorization(1.0), scales)
    transform = privatize(estimator, noise_multiplier=1.0, key=key)
    optimizer = dpjax.chain(transform, scale_by_dp_adam(b2=0.5))
    params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    grads = jax.tree.map(lambda x: jnp.zeros((4, *x.shape)), params)
    with jax.debug_key_reuse(False):
        mean, _, stddev = transform.release(grads, transform.init(params), params)
        _, (_, adam) = optimizer.update(grads, optimizer.init(params), params)
    one, nu = Winsorization(1.0).sensitivity(4, 3, rounded=False).l2, adam.nu
    trees = mean, stddev, nu, scales
    for x, s, v, scale in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_allclose(s, one * scale, rtol=1e-6)
        np.testing.assert_allclose(v, 0.5 * (x**2 - s**2), rtol=1e-4)


SAMPLES = {"w": jnp.ones((4, 2)), "b": jnp.ones(4)}
test_scales_that_do_not_fit_are_named = refused(
    lambda scales: Scaled(Winsorization(1.0), scales).measured(SAMPLES),
    ({"w": 1.0}, "scales must be one leaf, or a pytree pre"),
    ([1.0, 1.0], "scales must be one leaf, or a pytree pre"),
    ({"w": np.ones(3), "b": 1.0}, r"the shape of scales must be \(\) or"),
    ({"w": np.ones((4, 2)), "b": 1.0}, r"\(\) or \(2,\), .*, got \(4, 2\)"),
)
