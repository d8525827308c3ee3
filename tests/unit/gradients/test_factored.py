"""Factored gradients: which parameters have them, and the same mean for any model."""

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import dpjax
from dpjax.estimators import (
    Clipping,
    MedianOfMeans,
    SmoothedClipping,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.gradients import check_model

ESTIMATORS = (Clipping(0.3), Winsorization(0.05))
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
WIDTH, VOCABULARY = 20, 60


def numbers(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def assert_same_on_two_devices(loss_fn, params, batch):
    """Clipping has the same mean of a batch whose rows are on two devices."""
    mesh = jax.make_mesh((2,), ("rows",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    grad_fn = jax.jit(dpjax.robust_grad(loss_fn, Clipping(0.5)))
    found, expected = (grad_fn(params, x) for x in (jax.device_put(batch, rows), batch))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-6)


def ways(loss_fn, params, batch):
    """Each parameter's way and the reason, by name."""
    return {x.name: (x.way, x.why) for x in check_model(loss_fn, params, batch).rows}


# Parameters that an example's vector meets once: f(w, x), and the shape of w.
PRODUCTS = {
    "x @ w": (lambda w, x: x @ w, (20, 12)),
    "w @ x": (lambda w, x: w @ x, (12, 20)),
    "one row": (lambda w, x: x[None] @ w, (20, 12)),
    "transposed": (lambda w, x: w.T @ x, (20, 12)),
    "cast": (lambda w, x: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16), (20, 12)),
    "heads": (lambda w, x: jnp.einsum("i,ihk->hk", x, w), (20, 3, 4)),
    "heads, summed": (
        lambda w, x: jnp.einsum("hi,hik->k", x.reshape(4, 5), w),
        (4, 5, 12),
    ),
    "between": (lambda w, x: jnp.einsum("i,hik->hk", x, w), (3, 20, 4)),
    "reshaped": (lambda w, x: x @ w.reshape(20, 12), (4, 5, 3, 4)),
    "squeezed": (lambda w, x: x @ w[0].reshape(20, 12), (1, 240)),
    "broadcast": (lambda w, x: (x @ w[None])[0], (20, 12)),
    "in a jit": (lambda w, x: jax.jit(lambda w: x @ w)(w), (20, 12)),
    "in a checkpoint": (lambda w, x: jax.checkpoint(lambda w: x @ w)(w), (20, 12)),
    "out of a jit": (lambda w, x: x @ jax.jit(lambda w: w.T)(w), (12, 20)),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_one_vector(name):
    function, shape = PRODUCTS[name]

    def loss_fn(w, x):
        return jnp.sum(jnp.tanh(function(w, x).astype(jnp.float32)))

    w, batch = 0.1 * numbers(*shape), numbers(9, 20, seed=1)
    (way,) = ways(loss_fn, w, batch).values()
    assert way == ("outer product", "multiplied by one vector: 20 and 12 numbers")
    assert_same_mean(loss_fn, w, batch, rtol=0.02 if name == "cast" else 1e-5)


LOOKUPS = {
    "index": lambda w, t: w[t],
    "take": lambda w, t: jnp.take(w, t, axis=0),
    "clipped": lambda w, t: jnp.take(w, t, axis=0, mode="clip"),
    "filled": lambda w, t: w.at[t].get(mode="fill", fill_value=0),
    "a table of rows": lambda w, t: w.reshape(60, 2, 4)[t.reshape(1, 5)],
    "a row": lambda w, t: w[t[0]],
    "rows by slices": lambda w, t: jax.vmap(lambda i: w[i])(t),
    "entries": lambda w, t: w.T.reshape(-1)[t],
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", LOOKUPS)
def test_rows_that_are_looked_up(name):
    def loss_fn(w, tokens):
        rows = LOOKUPS[name](w, tokens)
        each = jnp.arange(1.0, rows.size + 1).reshape(rows.shape)
        return jnp.sum(jnp.sin(rows) * each)

    w = 0.1 * numbers(60, 8)
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 60, (9, 5)), jnp.int32)
    tokens = tokens.at[:, 3].set(tokens[:, 1])  # a row that is read twice
    (way,) = ways(loss_fn, w, tokens).values()
    assert way[0] == "table rows"
    if name in ("clipped", "filled"):
        tokens = tokens.at[2, 0].set(99)
    assert_same_mean(loss_fn, w, tokens)


# What has no rule, and what the table says of it: losses of a matrix and a vector.
OTHERS = {
    "used by add": lambda w, x: jnp.sum((w + x[:, None]) ** 2),
    "used by sin": lambda w, x: jnp.sum(x @ jnp.sin(w)),
    "used 2 times": lambda w, x: jnp.sum((x @ w) ** 2) + jnp.sum(jnp.cos(x @ w)),
    "multiplied by 2 vectors": lambda w, x: jnp.sum((jnp.stack([x, -x]) @ w) ** 2),
    "used inside scan": lambda w, x: jnp.sum(
        x @ jax.lax.scan(lambda w, _: (jnp.tanh(w), None), w, None, length=2)[0]
    ),
    "returned from remat2": lambda w, x: jnp.sum(
        x @ jax.checkpoint(lambda w: w.T)(w).T
    ),
    "used inside custom_jvp_call": lambda w, x: jnp.sum(x) * jnp.sum(jax.nn.relu(w)),
    "not used: zero": lambda w, x: jnp.sum(x**2),
    "used by reduce_sum": lambda w, x: jnp.sum(x) * jnp.sum(w),
    "most of its rows are read": lambda w, x: jnp.sum(w[jnp.arange(20)] * x[:, None]),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("why", OTHERS)
def test_other_parameters_are_written_out(why):
    w, batch = 0.1 * numbers(20, 12), numbers(9, 20, seed=1)
    (way,) = ways(OTHERS[why], w, batch).values()
    assert way == ("none" if why.startswith("not used") else "written out", why)
    assert_same_mean(OTHERS[why], w, batch)


@pytest.mark.quick(2)
@pytest.mark.parametrize("kinds", ["44", "48", "84", "88"])
def test_floats_of_both_widths(kinds):
    """Of the parameter, and of what it is used as."""
    with jax.enable_x64(True):
        dtype, used_as = ({"4": jnp.float32, "8": jnp.float64}[x] for x in kinds)

        def loss_fn(params, x):
            w, t = (params[name].astype(used_as) for name in "wt")
            y = jnp.sum(t[jnp.int32(x[0] > 0)].reshape(4, 5) ** 2)
            return jnp.sum(jnp.tanh(x.astype(used_as) @ w)) + y

        params = {"w": 0.1 * numbers(20, 12), "t": 0.1 * numbers(30, 20)}
        params = jax.tree.map(lambda x: x.astype(dtype), params)
        found = ways(loss_fn, params, numbers(9, 20, seed=1))
        is_factored = [way != "written out" for way, _ in found.values()]
        assert all(is_factored) == any(is_factored) == (dtype == used_as)
        assert_same_mean(loss_fn, params, numbers(9, 20, seed=1))


def test_a_product_with_one_number_is_one():
    def loss_fn(w, x):
        return (x @ w) ** 2

    (way,) = ways(loss_fn, jnp.ones(20), jnp.ones((3, 20))).values()
    assert way == ("outer product", "multiplied by one vector: 20 and 1 numbers")


def assert_same_mean(loss_fn, params, batch, rtol=1e-5, estimators=ESTIMATORS):
    """Compares with estimators of gradients that are written out."""
    grads_fn = jax.jit(dpjax.per_sample_grad(loss_fn), compiler_options=FAST_TO_COMPILE)
    grads = grads_fn(params, batch)

    def both(params, batch):
        return [
            (dpjax.robust_grad(loss_fn, e)(params, batch), e(grads)) for e in estimators
        ]

    pairs = jax.jit(both, compiler_options=FAST_TO_COMPILE)(params, batch)
    # Two programs round a sum of many terms differently: by its size before an
    # influence cuts it.
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(grads))
    for estimator, (found, expected) in zip(estimators, pairs, strict=True):
        # A cast may move an entry over the threshold.
        is_cut = rtol > 1e-3 and isinstance(estimator, Truncation)
        for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            assert x.dtype == y.dtype
            if not is_cut:
                atol = rtol * float(estimator.limit) + 1e-6 * largest
                np.testing.assert_allclose(x, y, rtol=0, atol=atol)


# Layers of a vector or of a sequence of vectors: (parameters, f(parameters, x)).
def attention(p, x):
    q, k, v = (x @ p[name] for name in "qkv")
    return x + jax.nn.softmax(q @ k.T / WIDTH**0.5) @ v


def convolution(p, x):
    out = jax.lax.conv_general_dilated(
        x[None], p["k"], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
    )
    return out[0]


def normalized(p, x):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt((x**2).mean(axis=-1, keepdims=True) + 1e-3)
    scale, shift = (jnp.broadcast_to(p[name], x.shape) for name in "sb")
    return x * scale + shift


def repeated(p, x):
    return jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, p["w"])[0]


def recurrent(p, x):
    def step(h, x):
        h = jnp.tanh(x @ p["w"] + h @ p["v"])
        return h, h

    return jax.lax.scan(step, jnp.zeros(WIDTH), x)[1]


def kept_by_layer(p, x):
    @jax.checkpoint
    def layer(x, w):
        return x + jnp.tanh(x @ w.T), None

    return jax.lax.scan(layer, x, p["w"])[0]


SQUARE = {"w": (WIDTH, WIDTH)}
LAYERS = {
    "dense": (SQUARE, lambda p, x: x @ p["w"]),
    "dense, out first": (SQUARE, lambda p, x: x @ p["w"].T),
    "bias": ({"b": (WIDTH,)}, lambda p, x: x + jnp.broadcast_to(p["b"], x.shape)),
    "scale and shift": ({"s": (WIDTH,), "b": (WIDTH,)}, normalized),
    "low rank": (
        {"a": (WIDTH, 8), "b": (8, WIDTH)},
        lambda p, x: x + x @ p["a"] @ p["b"],
    ),
    "heads": (
        {"w": (WIDTH, 4, 5)},
        lambda p, x: jnp.tensordot(x, p["w"], 1).reshape(x.shape),
    ),
    "half": (
        SQUARE,
        lambda p, x: (x.astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16)).astype(
            jnp.float32
        ),
    ),
    "twice": (SQUARE, lambda p, x: jnp.tanh(x @ p["w"]) @ p["w"]),
    "in a jit": (SQUARE, lambda p, x: jax.jit(lambda w: x @ w)(p["w"])),
    "checkpoint": (SQUARE, lambda p, x: jax.checkpoint(lambda w: x @ w)(p["w"])),
    "scan": ({"w": (2, WIDTH, WIDTH)}, repeated),
    "checkpoints": ({"w": (2, WIDTH, WIDTH)}, kept_by_layer),
    "cond": (
        SQUARE,
        lambda p, x: jax.lax.cond(
            x.sum() > 0, lambda w: x @ w, lambda w: x - x @ w, p["w"]
        ),
    ),
    "gelu": ({}, lambda p, x: jax.nn.gelu(x)),
    "relu": ({}, lambda p, x: jax.nn.relu(x)),
}
OF_SEQUENCES = {
    "attention": ({name: (WIDTH, WIDTH) for name in "qkv"}, attention),
    "recurrent": ({"w": (WIDTH, WIDTH), "v": (WIDTH, WIDTH)}, recurrent),
    "convolution": ({"k": (3, WIDTH, WIDTH)}, convolution),
}


@st.composite
def architectures(draw):
    """Names of layers before and after a sequence's mean; tokens or not; its length.

    Of two positions matrices are held, of five they are not.
    """
    before = st.lists(st.sampled_from([*LAYERS, *OF_SEQUENCES]), max_size=2)
    after = st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=3)
    return draw(before), draw(after), draw(st.booleans()), draw(st.sampled_from([2, 5]))


def model(architecture, num_rows):
    """The loss of an architecture, parameters and a batch."""
    before, after, has_tokens, length = architecture
    layers = [(LAYERS | OF_SEQUENCES)[name] for name in (*before, *after)]
    shapes = [shapes for shapes, _ in layers] + [{"embed": (VOCABULARY, WIDTH)}]
    flat, tree = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
    params = jax.tree.unflatten(
        tree, [0.2 * numbers(*shape, seed=i) for i, shape in enumerate(flat)]
    )
    rng = np.random.default_rng(5)
    tokens = jnp.asarray(rng.integers(0, VOCABULARY, (num_rows, length)), jnp.int32)
    vectors = numbers(num_rows, length, WIDTH, seed=6)

    def loss_fn(params, example):
        tokens, x = example
        if has_tokens:
            x = params[-1]["embed"][tokens]
        for i, (_, layer) in enumerate(layers):
            if i == len(before):
                x = x.mean(axis=0)
            x = layer(params[i], x)
        return jnp.sum(jnp.sin(x) * jnp.arange(1.0, WIDTH + 1) / WIDTH)

    return loss_fn, params, (tokens, vectors)


@pytest.mark.parametrize("num_models", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_models_of_a_family(num_models):
    estimators = (Clipping(0.5), Winsorization(0.02))[: 1 + (num_models > 1)]

    def check(architecture, num_rows):
        loss_fn, params, batch = model(architecture, num_rows)
        before, after, *_ = architecture
        if "half" in (*before, *after):
            # The rounding of bfloat16 depends on what is fused, and grows with depth.
            assert_same_mean(loss_fn, params, batch, 0.1, estimators[:1])
        else:
            assert_same_mean(loss_fn, params, batch, 2e-4, estimators)

    settings = hypothesis.settings(
        max_examples=num_models, derandomize=True, deadline=None, database=None
    )
    rows = st.sampled_from([1, 2, 17, 33])
    settings(hypothesis.given(architectures(), rows)(check))()


def dense_model(num_rows):
    """Two dense layers and a table, all of them factored; a bias."""
    return model(([], ["dense", "bias", "relu", "dense"], True, 5), num_rows)


@pytest.mark.quick(2)
@pytest.mark.parametrize("estimator", [Clipping(0.5), Winsorization(0.02)], ids=str)
@pytest.mark.parametrize("microbatch_size", [1, 7, 16, 40])
def test_masks_and_microbatches(estimator, microbatch_size, plan):
    loss_fn, params, batch = dense_model(40)
    mask = jnp.arange(40) % 3 == 1

    def written_out(params, batch):
        grads = dpjax.per_sample_grad(loss_fn)(params, batch)
        losses = jax.vmap(loss_fn, (None, 0))(params, batch)
        return estimator(grads, mask, normalize_by=30), losses

    def masked(params, batch):
        grad_fn = dpjax.robust_grad(
            loss_fn,
            estimator,
            microbatch_size=microbatch_size,
            normalize_by=30,
            return_values=True,
        )
        return grad_fn(params, batch, mask)

    expected, losses = jax.jit(written_out, compiler_options=FAST_TO_COMPILE)(
        params, batch
    )
    found, values = jax.jit(masked)(params, batch)
    chex.assert_trees_all_close(
        found, expected, rtol=0, atol=1e-5 * float(estimator.limit)
    )
    np.testing.assert_allclose(values, losses, rtol=1e-5)


@pytest.mark.slow
def test_blocks_of_a_large_slab(plan):
    loss_fn, params, batch = dense_model(600)
    grads_fn = jax.jit(dpjax.per_sample_grad(loss_fn), compiler_options=FAST_TO_COMPILE)
    grads = grads_fn(params, batch)
    for estimator in (Clipping(0.5), Truncation(0.02)):
        found = jax.jit(dpjax.robust_grad(loss_fn, estimator))(params, batch)
        expected = jax.jit(estimator, compiler_options=FAST_TO_COMPILE)(grads)
        chex.assert_trees_all_close(
            found, expected, rtol=0, atol=1e-5 * float(estimator.limit)
        )


def test_medians_of_means_and_aux_are_as_before():
    loss_fn, params, batch = dense_model(12)
    estimator = MedianOfMeans(Clipping(0.5), 3)
    assert_same_mean(loss_fn, params, batch, estimators=(estimator,))

    def with_aux(params, example):
        return loss_fn(params, example), example[1].sum()

    grad_fn = dpjax.robust_grad(with_aux, Clipping(0.5), has_aux=True)
    grads, aux = jax.jit(grad_fn, compiler_options=FAST_TO_COMPILE)(params, batch)
    np.testing.assert_allclose(aux, batch[1].sum(axis=(1, 2)), rtol=1e-5)
    assert jax.tree.structure(grads) == jax.tree.structure(params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [Clipping(0.5), SmoothedClipping(0.5), SmoothedTruncation(0.02)]
)
@pytest.mark.parametrize(
    "architecture",
    [([], ["dense", "bias", "relu", "dense"], True, 5), (["heads"], ["bias"], True, 2)],
    ids=["vector", "sequence"],
)
def test_the_mean_has_derivatives(estimator, architecture):
    loss_fn, params, batch = model(architecture, 5)
    grads_fn = dpjax.per_sample_grad(loss_fn)
    grad_fn = dpjax.robust_grad(loss_fn, estimator)

    def size(grad):
        return sum(jnp.sum(jnp.sin(50 * x)) for x in jax.tree.leaves(grad))

    def derivative(mean):
        of_size = jax.grad(lambda params: size(mean(params)))
        return jax.jit(of_size, compiler_options=FAST_TO_COMPILE)(params)

    found = derivative(lambda params: grad_fn(params, batch))
    expected = derivative(lambda params: estimator(grads_fn(params, batch)))
    chex.assert_trees_all_close(found, expected, rtol=0.001, atol=1e-4)
