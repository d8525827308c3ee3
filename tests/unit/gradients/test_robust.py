"""The streaming robust mean against the estimator of all per-sample gradients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.gradients import per_sample_grad, robust_grad

pytestmark = pytest.mark.optimized

N = 70  # more than one block of 64, no multiple of anything

ESTIMATORS = {
    "mean": Mean(),
    "clipping": Clipping(0.8),
    "truncation": Truncation(0.8),
    "winsorization": Winsorization(0.8),
    "smoothed-9": SmoothedTruncation(0.8, 9.21),
    "smoothed-50": SmoothedTruncation(0.8, 50.0),
    "median": MedianOfMeans(Winsorization(0.8), 4),
}
PARAMS = {"w": jnp.array([0.3, -0.2, 0.5]), "b": jnp.float32(0.1)}

each = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)


def quickly(name):
    """Each estimator, but in the default run the one that compiles faster."""
    return pytest.mark.parametrize(
        "estimator",
        [
            pytest.param(x, id=other, marks=() if other == name else pytest.mark.slow)
            for other, x in ESTIMATORS.items()
        ],
    )


def loss_fn(params, example):
    return 0.5 * jnp.square(example["x"] @ params["w"] + params["b"] - example["y"])


def loss_with_aux(params, example):
    return loss_fn(params, example), {"y": example["y"], "double": 2 * example["x"]}


@jax.jit
def applied(estimator, params, batch, *mask):
    """The estimator of all per-sample gradients: a program for each type."""
    return estimator(per_sample_grad(loss_fn)(params, batch), *mask)


@pytest.fixture
def batch(key):
    features, targets = jax.random.split(key)
    return {
        "x": jax.random.normal(features, (N, 3)),
        "y": jax.random.normal(targets, (N,)),
    }


@pytest.mark.quick(1)
@each
def test_it_is_the_estimator_of_per_sample_gradients(estimator, batch):
    expected = applied(estimator, PARAMS, batch)
    for size in (None, 1, 3, 64, 1000):
        grad_fn = robust_grad(loss_fn, estimator, microbatch_size=size)
        grads = jax.jit(grad_fn)(PARAMS, batch)
        # Gradients in chunks of another size round differently, by some 2^-24 of 10.
        chex.assert_trees_all_close(grads, expected, rtol=0, atol=2e-6)
        assert jax.tree.map(jnp.shape, grads) == {"w": (3,), "b": ()}


@quickly("clipping")
def test_masks_and_divisors(estimator, batch):
    mask = jnp.arange(N) % 3 == 0
    masked = jax.jit(robust_grad(loss_fn, estimator))(PARAMS, batch, mask)
    expected = applied(estimator, PARAMS, batch, mask)
    chex.assert_trees_all_close(masked, expected, rtol=0, atol=2e-6)
    # Whatever padding holds counts for nothing.
    spoiled = jax.tree.map(
        lambda x: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), jnp.nan, x), batch
    )
    same = jax.jit(robust_grad(loss_fn, estimator, microbatch_size=3))
    chex.assert_trees_all_equal(same(PARAMS, spoiled, mask), same(PARAMS, batch, mask))
    if isinstance(estimator, MedianOfMeans):
        with pytest.raises(ValueError, match="normalize_by must be"):
            robust_grad(loss_fn, estimator, normalize_by=35)(PARAMS, batch)
        return
    halves = jax.jit(robust_grad(loss_fn, estimator, normalize_by=2 * N))
    halves = halves(PARAMS, batch)
    expected = jax.tree.map(lambda x: x / 2, applied(estimator, PARAMS, batch))
    chex.assert_trees_all_close(halves, expected, rtol=0, atol=2e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["clipping", "median"])
@pytest.mark.parametrize("microbatch_size", [None, 3, 64])
def test_values_and_aux_come_per_sample_and_in_order(name, microbatch_size, batch):
    estimator = ESTIMATORS[name]
    values = jax.vmap(loss_fn, (None, 0))(PARAMS, batch)
    expected = applied(estimator, PARAMS, batch)
    sizes = dict(microbatch_size=microbatch_size)

    def compute(loss_fn, **options):
        grad_fn = robust_grad(loss_fn, estimator, **sizes, **options)
        return jax.jit(grad_fn)(PARAMS, batch)

    def check(grads, found_values=None, found_aux=None):
        chex.assert_trees_all_close(grads, expected, rtol=0, atol=2e-6)
        if found_values is not None:
            np.testing.assert_allclose(found_values, values, rtol=1e-5, atol=1e-6)
        if found_aux is not None:
            np.testing.assert_array_equal(found_aux["y"], batch["y"])
            np.testing.assert_array_equal(found_aux["double"], 2 * batch["x"])

    check(compute(loss_fn))
    check(*compute(loss_fn, return_values=True))
    grads, aux = compute(loss_with_aux, has_aux=True)
    check(grads, None, aux)
    grads, (found, aux) = compute(loss_with_aux, has_aux=True, return_values=True)
    check(grads, found, aux)


@pytest.mark.quick(1)
@each
def test_half_precision_parameters_give_float32_gradients(estimator, batch):
    params, halved = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (PARAMS, batch))
    grads = jax.jit(robust_grad(loss_fn, estimator))(params, halved)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    expected = applied(estimator, params, halved)
    # Two programs may round single gradients differently, by 2^-8 of themselves.
    chex.assert_trees_all_close(grads, expected, rtol=0, atol=2e-2)


@quickly("winsorization")
def test_vmap_over_params(estimator, batch):
    grad_fn = jax.jit(robust_grad(loss_fn, estimator))
    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x, -x]), PARAMS)
    together = jax.jit(jax.vmap(grad_fn, (0, None)))(several, batch)
    for i in range(3):
        chex.assert_trees_all_close(
            jax.tree.map(lambda x, i=i: x[i], together),
            grad_fn(jax.tree.map(lambda x, i=i: x[i], several), batch),
            rtol=0,
            atol=3e-6,
        )


@pytest.mark.slow
@each
def test_a_traced_estimator_compiles_once(estimator, batch):
    @jax.jit
    @chex.assert_max_traces(1)
    def grads(estimator, params, batch):
        return robust_grad(loss_fn, estimator)(params, batch)

    chex.clear_trace_counter()
    for factor in (1.0, 0.9, 0.8):
        scaled = jax.tree.map(lambda x, f=factor: f * x, estimator)
        expected = applied(scaled, PARAMS, batch)
        found = grads(scaled, PARAMS, batch)
        chex.assert_trees_all_close(found, expected, rtol=0, atol=3e-6)


@pytest.mark.slow
@each
def test_derivatives_in_params_and_hyperparameters(estimator, batch):
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(jnp.float64), batch)
        estimator = jax.tree.map(jnp.float64, estimator)
        point = (jax.tree.map(lambda x: x.astype(jnp.float64), PARAMS), estimator)
        rng = np.random.default_rng(0)
        tangent = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), point)

        def total(point):
            params, estimator = point
            grads = robust_grad(loss_fn, estimator)(params, wide)
            return (grads["w"] * jnp.array([1.0, -2.0, 0.5])).sum() + grads["b"]

        @jax.jit
        def derivatives(point):
            value, forward = jax.jvp(total, (point,), (tangent,))
            return value, forward, jax.grad(total)(point)

        _, forward, gradient = derivatives(point)
        step = 1e-6
        up, down = (
            derivatives(jax.tree.map(lambda x, t, h=h: x + h * t, point, tangent))[0]
            for h in (step, -step)
        )
        np.testing.assert_allclose(forward, (up - down) / (2 * step), atol=1e-6)
        backward = sum(
            (g * t).sum()
            for g, t in zip(
                jax.tree.leaves(gradient), jax.tree.leaves(tangent), strict=True
            )
        )
        np.testing.assert_allclose(backward, forward, rtol=1e-10)


@pytest.mark.quick(1)
@each
def test_lowers_for_every_platform(estimator, batch):
    grad_fn = robust_grad(loss_fn, estimator, return_values=True)
    exported = jax.export.export(jax.jit(grad_fn), platforms=["cpu", "cuda", "tpu"])(
        PARAMS, batch, jnp.zeros(N, bool)
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")
    grads, values = exported.call(PARAMS, batch, jnp.zeros(N, bool))
    expected = jax.jit(grad_fn)(PARAMS, batch)[0]
    chex.assert_trees_all_close(grads, expected, rtol=0, atol=2e-6)
    assert values.shape == (N,)


def test_bad_arguments_are_named(batch):
    for bad in (0, -3, 2.5, True):
        with pytest.raises(ValueError, match="microbatch_size must be"):
            robust_grad(loss_fn, Clipping(1.0), microbatch_size=bad)
    for bad in (0.0, -1, np.nan, np.inf):
        with pytest.raises(ValueError, match="normalize_by must be"):
            robust_grad(loss_fn, Clipping(1.0), normalize_by=bad)
    with pytest.raises(ValueError, match="estimator must be"):
        robust_grad(loss_fn, 1.0)
    grad_fn = robust_grad(loss_fn, Clipping(1.0))
    with pytest.raises(ValueError, match="batch must be"):
        grad_fn(PARAMS, {"x": batch["x"], "y": batch["y"][:-1]})
    with pytest.raises(ValueError, match=r"^params\['c'\] must be real.*complex64"):
        grad_fn({**PARAMS, "c": jnp.ones(2, jnp.complex64)}, batch)
    with pytest.raises(ValueError, match="is_padding_example must be"):
        grad_fn(PARAMS, batch, jnp.zeros(N))
    with pytest.raises(ValueError, match="is_padding_example must be"):
        grad_fn(PARAMS, batch, jnp.zeros(N - 1, bool))
    with pytest.raises(ValueError, match="samples must be at least num_groups"):
        robust_grad(loss_fn, MedianOfMeans(Mean(), N + 1))(PARAMS, batch)
    many = jax.tree.map(lambda x: jnp.resize(x, (5000, *x.shape[1:])), batch)
    with pytest.raises(ValueError, match="normalize_by must be"):
        robust_grad(loss_fn, Clipping(1.0), normalize_by=10)(PARAMS, many)
