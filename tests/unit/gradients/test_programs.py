"""Programs of every make, streamlined or not, have the same values and gradients."""

import re
from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpjax import per_sample_grad, robust_grad
from dpjax.estimators import Clipping, Mean, Winsorization
from dpjax.gradients._loss import streamlined
from tests.factored import FAST_TO_COMPILE

TOLERANCES = {jnp.bfloat16: 2**-6, jnp.float32: 1e-4, jnp.complex64: 1e-4}
DTYPES = {  # and those that products may be summed up in
    jnp.float64: [None],
    jnp.float32: [None, jnp.float32, jnp.float64],
    jnp.bfloat16: [None, jnp.bfloat16, jnp.float32],
    jnp.complex64: [None, jnp.complex128],
    jnp.int8: [None, jnp.int32],
    jnp.bool_: [None],
}


@pytest.fixture(autouse=True)
def keys_may_be_used_again():
    """The check takes a batched condition for a second use of its key."""
    with jax.debug_key_reuse(False):
        yield


def search(request, check, *strategies, few, many):
    """Checks a few examples of strategies; with `--all-cases` many."""
    num_examples = many if request.config.getoption("--all-cases") else few
    limits = {"max_examples": num_examples, "deadline": None, "database": None}
    settings = hypothesis.settings(derandomize=True, **limits)
    settings(hypothesis.given(*strategies)(check))()


def assert_same(run, *args):
    """Compares `run(streamlined, *args)` with `run(plainly, *args)`."""

    def both(*args):
        return run(streamlined, *args), run(lambda function: function, *args)

    assert_equal(*jax.jit(both, compiler_options=FAST_TO_COMPILE)(*args))


def assert_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert x.aval == y.aval
        limit = TOLERANCES.get(y.dtype.type, 1e-11)
        limit *= np.abs(y).max(initial=0).astype(float)
        np.testing.assert_allclose(x, y, rtol=0, atol=limit)


def assert_same_operation(function, *args, expected=None):
    """Compares a function of arrays, its gradients, and those of a batch."""

    def run(change, *args):
        is_plain = change is not streamlined
        operation = expected if expected is not None and is_plain else function

        def loss_fn(*args):
            return jnp.sum(jnp.sin(operation(*args)))

        values = change(operation)(*args)
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in args):
            return values
        grad_fn = change(jax.value_and_grad(loss_fn, tuple(range(len(args)))))
        batch = [jnp.stack([x, 2 * x]) for x in args]
        return values, grad_fn(*args), jax.vmap(grad_fn)(*batch)

    assert_same(run, *args)


def numbers(shape, dtype, seed):
    """Values that no rounding of a sum or product changes by much."""
    values = np.random.default_rng(seed).uniform(-2.0, 2.0, shape)
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * values[..., ::-1] if shape else values + 1j
    return jnp.asarray(4 * values if dtype == np.int8 else values).astype(dtype)


@st.composite
def dots(draw):
    """Two shapes, which of their axes are summed over and shared, and dtypes."""
    num_shared, num_summed = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    sizes = {axis: draw(st.integers(1, 3)) for axis in "abcdef"}
    common = "abcd"[: num_shared + num_summed]
    left, right = (
        draw(st.permutations(common + own[: draw(st.integers(0, 1))])) for own in "ef"
    )
    order = draw(st.permutations(common))
    places = [tuple(x.index(axis) for axis in order) for x in (left, right)]
    axes = [tuple(x[part] for x in places) for part in np.s_[num_shared:, :num_shared]]
    dtype = draw(st.sampled_from(list(DTYPES)))
    shapes = [tuple(sizes[axis] for axis in x) for x in (left, right)]
    return shapes, axes, dtype, draw(st.sampled_from(DTYPES[dtype]))


def test_products_of_any_two_arrays_are_the_same_streamlined(request):
    def check(program):
        (shapes, axes, dtype, summed_in), is_flipped = program

        def dot(x, y):
            product = lax.dot_general(x, y, axes, preferred_element_type=summed_in)
            return product.T if is_flipped else product

        args = [numbers(shape, dtype, i) for i, shape in enumerate(shapes)]
        assert_same_operation(dot, *args)

    with jax.enable_x64(True):
        search(request, check, st.tuples(dots(), st.booleans()), few=5, many=500)


# Layers: functions of (params, key, x) that return an x of the same shape, (3,).
def convolved(params, key, x):
    kernel, image = params["matrix"][None, :2], x[None, :, None]
    return lax.conv_general_dilated(
        image, kernel, (1,), [(1, 0)], dimension_numbers=("CHN", "IHO", "HCN")
    )[:, 0].sum(1)


def written_to(params, key, x):
    jax.debug.callback(lambda x: None, x)
    return x.at[1].add(params["vector"][0]) + jnp.sort(x)


LAYERS = {
    "dense": lambda params, key, x: jnp.tanh(x @ params["matrix"]),
    "outer": lambda params, key, x: jnp.sin(jnp.outer(params["vector"], x)) @ x,
    "flipped": lambda params, key, x: jnp.outer(x, params["vector"]).T @ jnp.cos(x),
    "entries": lambda params, key, x: jnp.einsum("i,i->i", params["vector"], x),
    "rows": lambda params, key, x: jax.vmap(jnp.dot)(params["matrix"], jnp.outer(x, x)),
    "gelu": lambda params, key, x: jax.nn.gelu(x) + params["vector"],
    "one": lambda params, key, x: jnp.ones_like(x),
    "convolved": convolved,
    "dropped out": lambda params, key, x: jnp.where(
        jax.random.bernoulli(key, 0.6, x.shape), x, 0.5
    ),
    "written to": written_to,
}


def with_rule(layer):
    def backward(args, cotangent):
        params, key, x = args
        pull = jax.vjp(lambda params, x: layer(params, key, x), params, x)[1]
        grads = jax.tree.map(lambda g: 3 * g, pull(cotangent))
        return grads[0], None, grads[1]

    ruled = jax.custom_vjp(layer)
    ruled.defvjp(lambda *args: (layer(*args), args), backward)
    return ruled


def with_tangent(layer):
    ruled = jax.custom_jvp(layer)

    @ruled.defjvp
    def rule(primals, tangents):
        value, tangent = jax.jvp(layer, primals, tangents)
        return value, 3 * tangent

    return ruled


def without_gradient(layer):
    def looped(params, key, x):
        fixed, start = lax.stop_gradient((params, x))
        return x * lax.while_loop(
            lambda x: jnp.abs(x).max() > 1,
            lambda x: jnp.tanh(layer(fixed, key, x)) / 2,
            start,
        )

    return looped


def of_x(run):
    """A wrapper of layers by `run(f, x)`, for f a layer as a function of x alone."""
    return lambda layer: lambda params, key, x: run(lambda x: layer(params, key, x), x)


WRAPPERS = {
    "jit": jax.jit,
    "inlined": partial(jax.jit, inline=True),
    "donated": partial(jax.jit, donate_argnums=2),
    "closed over": of_x(
        lambda f, x: jax.jit(lambda x: f(x) + jnp.asarray(np.arange(3.0), x.dtype))(x)
    ),
    "checkpoint": jax.checkpoint,
    "rule": with_rule,
    "tangent": with_tangent,
    "scan": of_x(
        lambda f, x: lax.scan(lambda x, s: (s * f(x), None), x, jnp.ones(2, x.dtype))[0]
    ),
    "while": without_gradient,
    "loop": of_x(lambda f, x: lax.fori_loop(0, 2, lambda i, x: f(x), x)),
    "cond": lambda layer: (
        lambda params, key, x: lax.cond(x[0] > 0, layer, LAYERS["gelu"], params, key, x)
    ),
    "rows": of_x(lambda f, x: jax.vmap(f)(jnp.stack([x, -x])).sum(0)),
}


def built(program):
    """A layer from a name, (wrapper, layer) or ("then", layer, layer)."""
    if isinstance(program, str):
        return LAYERS[program]
    name, *layers = program
    if name != "then":
        return WRAPPERS[name](built(*layers))
    first, second = map(built, layers)
    return lambda params, key, x: second(params, key, first(params, key, x))


PROGRAMS = st.recursive(
    st.sampled_from(list(LAYERS)),
    lambda layers: (
        st.tuples(st.sampled_from(list(WRAPPERS)), layers)
        | st.tuples(st.just("then"), layers, layers)
    ),
    max_leaves=4,
)
# Some of which are always tried: with rules, constants, branches and loops.
ALWAYS = [
    ("then", "outer", ("rule", "dense")),
    ("then", ("closed over", "entries"), ("cond", ("tangent", "outer"))),
    ("then", ("checkpoint", "dense"), ("while", ("scan", "written to"))),
]
# How rows of a table w are read, by indices i of shape (3,).
MODES = ("clip", "fill", "promise_in_bounds")


def test_layers_in_and_after_each_other_are_the_same_streamlined(request):
    def check(program):
        def loss_fn(params, key, x):
            return jnp.sum(jnp.sin(built(program)(params, key, x)))

        def run(change, params, keys, x):
            grad_fn = change(jax.value_and_grad(loss_fn))
            alone = grad_fn(params, keys[0], x[0])
            return alone, jax.vmap(grad_fn, (None, 0, 0))(params, keys, x)

        shapes = enumerate([(3, 3), (3,), (2, 3)])
        matrix, vector, x = (numbers(shape, jnp.float64, i) for i, shape in shapes)
        params = {"matrix": matrix, "vector": vector, "none": None}
        assert_same(run, params, jax.random.split(jax.random.key(3), 2), x)

    with jax.enable_x64(True):
        for program in ALWAYS:
            check(program)
        search(request, check, PROGRAMS, few=2, many=250)


def gathered(mode, w, i):
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.gather(w, i[:, None], numbers, (1, w.shape[1]), mode=mode)


LOOKUPS = {
    "index": lambda w, i: w[i],
    "one index": lambda w, i: w[i[0]],
    "take": lambda w, i: jnp.take(w, i, axis=0),
    "wrap": lambda w, i: jnp.take(w, i, axis=0, mode="wrap"),
    "slice": lambda w, i: lax.dynamic_index_in_dim(w, i[0]),
    "slices": jax.vmap(lax.dynamic_index_in_dim, (None, 0)),
    "shared": lambda w, i: jnp.take(w, i, axis=0) + jnp.take(w, i[::-1], axis=0),
    "added to": lambda w, i: w.at[i].add(w[:3], mode="drop")[:4],
    "one set": lambda w, i: w.at[i[0]].set(w[0], mode="clip"),
    **{f"get, {m}": lambda w, i, m=m: w.at[i].get(mode=m) for m in MODES},
    **{f"gather, {mode}": partial(gathered, mode) for mode in MODES},
}
INDEX_TYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


@st.composite
def lookups(draw):
    """How rows are read, of how many, by which indices, and types of floats."""
    size = draw(st.sampled_from([5, 127, 128, 129, 200, 255, 256, 257, 300]))
    info = np.iinfo(draw(st.sampled_from(INDEX_TYPES)))
    edges = {0, 1, size - 1, size, size + 1, -1, -size, -size - 1, 127, 128, 255, 256}
    edges |= {info.min, info.max, 2**31, 2**32, 2**32 + 1}
    edges = [x for x in sorted(edges) if info.min <= x <= info.max]
    index = st.sampled_from(edges) | st.integers(0, min(size - 1, info.max))
    indices = draw(st.lists(index, min_size=12, max_size=12))
    name = draw(st.sampled_from(list(LOOKUPS)))
    dtypes = draw(st.sampled_from(FLOATS[2:])), draw(st.sampled_from(FLOATS))
    return name, size, np.array(indices, info.dtype).reshape(4, 3), *dtypes


def test_rows_read_by_any_index_have_the_same_gradients(request):
    """Against gradients that are written out; and one record for another."""
    estimators = Clipping(0.5), Winsorization(0.5), Mean()

    def check(program):
        name, size, indices, dtype, type_of_divisor = program
        w, n = numbers((size, 2), dtype, 0), jnp.asarray(3, type_of_divisor)

        def loss_fn(w, indices):
            rows = LOOKUPS[name](w, indices)
            each = jnp.arange(1, rows.size + 1, dtype=rows.dtype)
            return jnp.sum(jnp.sin(rows.reshape(-1)) + each * rows.reshape(-1))

        try:
            jax.eval_shape(loss_fn, w, indices[0])
        except OverflowError:  # by JAX: no index of this type is from the end
            hypothesis.reject()

        @partial(jax.jit, compiler_options=FAST_TO_COMPILE)
        def means(batch, n):
            grads = per_sample_grad(loss_fn)(w, batch)
            options = {"microbatch_size": 1, "normalize_by": n}
            stream = [robust_grad(loss_fn, x, **options)(w, batch) for x in estimators]
            return stream, [x(grads, normalize_by=n) for x in estimators]

        pair = means(indices[:3], n), means(indices[[3, 1, 2]], n)
        for streamed, expected in pair:
            assert_equal(streamed, expected)
        for estimator, *both in zip(estimators, pair[0][0], pair[1][0], strict=True):
            stated, gap = estimator.sensitivity(n, w.size), np.subtract(*both)
            assert np.linalg.norm(gap) <= stated.l2
            assert np.abs(gap).max() <= stated.linf

    with jax.enable_x64(True):
        search(request, check, lookups(), few=3, many=400)


# -- What else a program may hold, and what is gained ----------------------------------
def test_outer_products_are_multiplied_out_as_they_are_read(key):
    args = jax.random.normal(key, (4, 3)), jnp.arange(4.0)
    grad_fn = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) * jnp.arange(3.0)))
    np.testing.assert_array_equal(streamlined(grad_fn)(*args), grad_fn(*args))
    for function, count in ((streamlined(grad_fn), 1), (grad_fn, 2)):
        # The forward pass is left alone.
        assert jax.jit(function).lower(*args).as_text().count("dot_general") == count


def outer(x, y, **options):
    return jax.lax.dot_general(x, y, (((), ()), ((), ())), **options)


def by_a_rule_for_batches(x, y):
    @jax.custom_batching.custom_vmap
    def triple(x):
        return 3 * x

    @triple.def_vmap
    def _(axis_size, in_batched, x):
        return 5 * x, in_batched[0]

    return outer(triple(x), y)


def on_devices(x, y):
    places = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec()}
    mesh = jax.make_mesh((1,), ("axis",))
    return jax.shard_map(lambda x, y: outer(x, y).T, mesh=mesh, **places)(x, y)


@pytest.mark.parametrize("by", [lambda f: f, jax.jit, jax.vmap], ids=["", "jit", "map"])
def test_operations_beside_the_two_stay_as_they_are(by):
    def function(x, y):
        matrix, k = outer(x, y), jnp.arange(100, 103).astype(jnp.int8)
        return [
            jax.lax.transpose_p.bind(matrix, permutation=(0, 1)),  # swaps nothing
            outer(jax.lax.broadcast(2.0, (3,)), jax.lax.broadcast(3.0, (4,))),
            [jnp.linalg.svd(matrix), jnp.linalg.qr(matrix), jax.lax.top_k(y, 2)],
            [by_a_rule_for_batches(x, y), on_devices(x, y)],
            [outer(k, k), outer(k, k, preferred_element_type=jnp.int32)],
            outer(k > 101, k > 0),
        ]

    args = jnp.linspace(-1.0, 1.0, 3), jnp.linspace(0.5, 2.0, 4)
    if by is jax.vmap:
        args = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), args)
    actual, expected = by(streamlined(function))(*args), by(function)(*args)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for x, y in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert x.aval == y.aval
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def assert_same_sharding(function, *args):
    actual, expected = streamlined(function)(*args), function(*args)
    assert actual.sharding == expected.sharding
    np.testing.assert_array_equal(actual, expected)
    return actual.sharding


def test_what_states_its_sharding_keeps_it(key):
    mesh = jax.make_mesh((1,), ("axis",), axis_types=(AxisType.Explicit,))
    dealt = NamedSharding(mesh, PartitionSpec("axis"))
    x, placed = jnp.arange(1.0, 5.0), jax.jit(jnp.sin, out_shardings=dealt)
    assert assert_same_sharding(lambda x: placed(x), x) == dealt
    with jax.set_mesh(mesh):
        by_rows = partial(outer, out_sharding=PartitionSpec("axis", None))
        x = jax.device_put(x, dealt)  # an outer product cannot be dealt out twice
        assert_same_sharding(lambda x: by_rows(x, x), x)
        options = {"out_sharding": PartitionSpec("axis", None, None)}
        options |= {"window_strides": (1,), "padding": "SAME"}
        convolve = partial(lax.conv_general_dilated, **options)
        images = jax.device_put(jnp.ones((2, 2, 5)), dealt)
        assert_same_sharding(convolve, images, jax.random.normal(key, (3, 2, 2)))


def test_a_product_spelled_out_keeps_its_marks():
    def marked(x):
        with set_xla_metadata(mark="this"):
            return outer(x, x)

    text = jax.jit(streamlined(marked)).lower(jnp.ones(3)).as_text()
    assert re.search('multiply.*mark = "this"', text)


def test_each_callback_is_called_once():
    calls = []

    def loss_fn(w, x):
        jax.debug.callback(calls.append, x)
        jax.debug.callback(calls.append, -x, ordered=True)
        return jnp.sum(outer(w, x) ** 2)

    jax.block_until_ready(streamlined(jax.value_and_grad(loss_fn))(*jnp.ones((2, 3))))
    jax.effects_barrier()
    assert sorted(call[0].item() for call in calls) == [-1, 1]


def test_a_closed_over_number_keeps_its_derivative_through_vmap_and_jit():
    def total(s):
        def closed(w, x):
            return jnp.sum(jnp.sin(s * w * x))

        grads = jax.vmap(streamlined(jax.grad(closed)), (None, 0))
        return jnp.sum(jax.jit(grads)(w, jnp.ones((2, 6))) ** 2)

    s, w = 0.7, np.linspace(-1.0, 1.0, 6)  # of sum (s cos(s w))^2, twice
    cosine, sine = np.cos(s * w), np.sin(s * w)
    slope = 4 * np.sum(s * cosine * (cosine - s * w * sine), dtype=np.float64)
    backward = jax.jit(jax.grad(total))(s)
    forward = jax.jit(lambda s: jax.jvp(total, (s,), (1.0,))[1])(s)
    np.testing.assert_allclose([backward, forward], slope, rtol=1e-5)
