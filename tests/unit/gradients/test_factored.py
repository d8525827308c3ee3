"""Factored gradients: which parameters have them, and the same mean for any model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax import lax

import dpjax
from dpjax.estimators import Clipping, MedianOfMeans, Truncation, Winsorization
from dpjax.gradients import check_model
from tests import factored
from tests.factored import ESTIMATORS, GROUPS, USES, assert_same_mean, numbers
from tests.unit.gradients.test_programs import assert_same_operation, search

CLIPPING = ESTIMATORS[:1]
CASES = [("branches", "chosen", 1), ("branches", "in all", 1)]  # another program
CASES += [(*use, 7) for use in USES]


def ways(loss_fn, params, batch):
    """Each parameter's way and the reason, by name."""
    return {x.name: (x.way, x.why) for x in check_model(loss_fn, params, batch).rows}


@pytest.mark.parametrize(("group", "name", "num_rows"), CASES)
def test_each_use_has_its_way_and_the_same_mean(group, name, num_rows, monkeypatch):
    if group == "kernels":  # held, though they are no smaller
        monkeypatch.setattr("dpjax._sums.samples.SAVING", 0)
    uses, batch = GROUPS[group]
    use, batch = uses[name], batch[:num_rows]
    for way, why in ways(use.loss_fn, use.params(), batch).values():
        assert way == use.way
        assert use.why in why
    estimators = ESTIMATORS if group == "branches" else CLIPPING
    assert_same_mean(use.loss_fn, use.params(), batch, use.rtol, estimators)


# Parameters that an example's vector meets once: f(w, x), and the shape of w.
PRODUCTS = {
    "x @ w": (lambda w, x: x @ w, (20, 12)),
    "w @ x": (lambda w, x: w @ x, (12, 20)),
    "one row": (lambda w, x: x[None] @ w, (20, 12)),
    "transposed": (lambda w, x: w.T @ x, (20, 12)),
    "heads": (lambda w, x: jnp.einsum("i,ihk->hk", x, w), (20, 3, 4)),
    "head sum": (lambda w, x: jnp.einsum("hi,hik->k", x.reshape(4, 5), w), (4, 5, 12)),
    "between": (lambda w, x: jnp.einsum("i,hik->hk", x, w), (3, 20, 4)),
    "reshaped": (lambda w, x: x @ w.reshape(20, 12), (4, 5, 3, 4)),
    "squeezed": (lambda w, x: x @ w[0].reshape(20, 12), (1, 240)),
    "broadcast": (lambda w, x: (x @ w[None])[0], (20, 12)),
    "in a jit": (lambda w, x: jax.jit(lambda w: x @ w)(w), (20, 12)),
    "in a checkpoint": (lambda w, x: jax.checkpoint(lambda w: x @ w)(w), (20, 12)),
    "out of a jit": (lambda w, x: x @ jax.jit(lambda w: w.T)(w), (12, 20)),
}
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


def test_products_with_one_vector_are_outer_products():
    """One loss of all of them; of bfloat16 alone; and a product that is one number."""

    def loss_fn(params, x):
        products = (f(params[name], x) for name, (f, _) in PRODUCTS.items())
        return sum(jnp.sum(jnp.tanh(product)) for product in products)

    params = {name: 0.1 * numbers(*shape) for name, (_, shape) in PRODUCTS.items()}
    batch, way = numbers(9, 20, seed=1), "multiplied by one vector: 20 and 12 numbers"
    for result in ways(loss_fn, params, batch).values():
        assert result == ("outer product", way)
    assert_same_mean(loss_fn, params, batch, estimators=CLIPPING)
    w = 0.1 * numbers(20, 12)

    def narrow(w, x):
        product = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)
        return jnp.sum(jnp.tanh(product.astype("float32")))

    assert ways(narrow, w, batch) == {"params": ("outer product", way)}
    assert_same_mean(narrow, w, batch, 0.02, CLIPPING)
    result = ways(lambda w, x: (x @ w) ** 2, jnp.ones(20), batch)
    assert result == {"params": ("outer product", way.replace("12", "1"))}


def test_rows_that_are_looked_up_are_table_rows():
    def loss_fn(params, tokens):
        total = 0.0
        for name, lookup in LOOKUPS.items():
            places = tokens
            if name in ("clipped", "filled"):  # some of which lie outside
                places = jnp.where(tokens == 7, 99, tokens)
            rows = lookup(params[name], places)
            each = jnp.arange(1.0, rows.size + 1).reshape(rows.shape)
            total += jnp.sum(jnp.sin(rows) * each)
        return total

    params = {name: 0.1 * numbers(60, 8, seed=i) for i, name in enumerate(LOOKUPS)}
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 60, (9, 5)), jnp.int32)
    tokens = tokens.at[:, 3].set(tokens[:, 1]).at[2, 0].set(7)  # some are read twice
    for way, _ in ways(loss_fn, params, tokens).values():
        assert way == "table rows"
    assert_same_mean(loss_fn, params, tokens, estimators=CLIPPING)


# What has no rule, and what the table says of it: losses of a matrix and a vector.
OTHERS = {
    "used by add": lambda w, x: jnp.sum((w + x[:, None]) ** 2),
    "used by sin": lambda w, x: jnp.sum(x @ jnp.sin(w)),
    "used 2 times": lambda w, x: jnp.sum((x @ w) ** 2) + jnp.sum(jnp.cos(x @ w)),
    "multiplied by 2 vectors": lambda w, x: jnp.sum((jnp.stack([x, -x]) @ w) ** 2),
    "used inside scan": lambda w, x: jnp.sum(
        x @ lax.scan(lambda w, _: (jnp.tanh(w), None), w, None, length=2)[0]
    ),
    "returned from remat2": lambda w, x: (x @ jax.checkpoint(lambda w: w.T)(w).T).sum(),
    "used inside custom_jvp_call": lambda w, x: jnp.sum(x) * jnp.sum(jax.nn.relu(w)),
    "not used: zero": lambda w, x: jnp.sum(x**2),
    "used by reduce_sum": lambda w, x: jnp.sum(x) * jnp.sum(w),
    "most of its rows are read": lambda w, x: jnp.sum(w[jnp.arange(20)] * x[:, None]),
}


def test_other_parameters_are_written_out():
    def loss_fn(params, x):
        return sum(function(params[why], x) for why, function in OTHERS.items())

    params = {why: 0.1 * numbers(20, 12, seed=i) for i, why in enumerate(OTHERS)}
    batch = numbers(9, 20, seed=1)
    for name, (way, why) in ways(loss_fn, params, batch).items():
        assert name == f"[{why!r}]"
        assert way == ("none" if why.startswith("not used") else "written out")
    assert_same_mean(loss_fn, params, batch, estimators=CLIPPING)


def returned(w, x):
    return jnp.sum(x @ lax.cond(x[0] > 0, lambda w: w, lambda w: -w, w))


def for_platforms(w, x):
    other = lax.platform_dependent(w, cpu=lambda w: x @ w, default=lambda w: x @ w)
    return jnp.sum(jnp.sin(other))


# Losses, the reason, and the shapes of the parameter and of an example; or tokens.
REASONS = [
    (returned, "used 2 times", (40, 40), (40,)),
    (for_platforms, "inside cond", (40, 40), (40,)),
    # Ten vectors save too little.
    (lambda p, x: jnp.sum(p[x] @ p.T), "used 2 times", (300, 40), None),
    (lambda p, x: jnp.sum(p[x] @ p.T) + p.sum(), "used 3 times", (300, 40), None),
    (
        lambda p, x: jnp.sum(p[jnp.arange(40)] * p[jnp.arange(40, 80)]),
        *("most of its rows are read", (300, 40), None),
    ),
    # A kernel that is a matrix, too; and that is an image.
    (
        lambda w, x: jnp.sum(factored.convolved(x, w)) + jnp.sum(jnp.tanh(x[0] @ w[0])),
        *("used 2 times", (3, 4, 4), (1, 5, 4)),
    ),
    (
        lambda w, x: jnp.sum(factored.convolved(w, x[:, :4].swapaxes(1, 2))),
        *("conv_general_dilated", (3, 4, 4), (1, 5, 4)),
    ),
]
PATCHES = [(128, 4, "16 patches: 1152 and 128 numbers"), (128, 5, "25 patches")]
PATCHES += [(8, 1, "one patch: 72 and 8 numbers")]


def test_what_cannot_be_read_is_written_out():
    tokens = jnp.ones((5, 5), jnp.int32)
    shapes = [shape for *_, shape in REASONS]
    batch = [tokens if s is None else numbers(5, *s, seed=6) for s in shapes]
    params = [numbers(*shape) for _, _, shape, _ in REASONS]

    def loss_fn(params, examples):
        each = zip(REASONS, params, examples, strict=True)
        return sum(loss(w, x) for (loss, *_), w, x in each)

    rows = ways(loss_fn, params, batch).values()
    for (way, why), (_, reason, *_) in zip(rows, REASONS, strict=True):
        assert way == "written out"
        assert why.endswith(reason)
    assert_same_mean(loss_fn, params, batch, 1e-4, CLIPPING)


def test_blocks_of_a_large_slab_have_the_same_mean():
    """Of a table and two dense layers, all of them factored, and a bias."""
    shapes = {"table": (60, 40), "first": (40, 40), "bias": (40,), "last": (40, 40)}
    params = {n: 0.2 * numbers(*s, seed=i) for i, (n, s) in enumerate(shapes.items())}
    tokens = np.random.default_rng(5).integers(0, 60, (600, 5)).astype(np.int32)

    def loss_fn(params, tokens):
        x = params["table"][tokens].mean(axis=0) @ params["first"] + params["bias"]
        return jnp.sum(jnp.sin(jax.nn.gelu(x) @ params["last"]))

    estimators = Clipping(0.5), Truncation(0.02), MedianOfMeans(Clipping(0.5), 3)
    assert_same_mean(loss_fn, params, tokens, estimators=estimators)


def test_a_loop_adds_nothing_up_where_matrices_are_no_smaller():
    """Of a narrow recurrent layer: its gradient is one product after the loop."""
    params = {name: 0.3 * numbers(8, 8, seed=5) for name in "wv"}
    batch = numbers(9, 6, 8, seed=6)

    def loss_fn(params, x):
        return jnp.sum(jnp.sin(factored.recurrent(params, x)))

    rows = check_model(loss_fn, params, batch).rows
    result = [(row.way, row.num_bytes, row.why) for row in rows]
    assert result == [("written out", 256, "multiplied by 6 vectors")] * 2
    assert_same_mean(loss_fn, params, batch, estimators=CLIPPING)
    product = "f32[9,1,8,8] = dot_general"
    grad_fns = dpjax.robust_grad(loss_fn, Clipping(1.0)), dpjax.per_sample_grad(loss_fn)
    for grad_fn, is_there in zip(grad_fns, (True, False), strict=True):
        assert (product in str(jax.make_jaxpr(grad_fn)(params, batch))) == is_there


@pytest.mark.parametrize(("channels", "size", "why"), PATCHES)
def test_patches_are_held_where_they_are_much_smaller(channels, size, why):
    """By six times, half as much again as vectors that need not be cut out."""
    image, kernel = (size, size, channels), (3, 3, channels, channels)
    batch, w = (jax.ShapeDtypeStruct(x, "float32") for x in ((5, *image), kernel))

    def loss_fn(w, x):
        where = (1, 1), "SAME", None, None, ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x[None], w, *where).sum()

    (row,) = check_model(loss_fn, w, batch).rows
    is_held = "numbers" in why
    size_of_factors = size**2 * 10 * channels if is_held else 9 * channels**2
    assert (row.why, row.num_bytes) == (f"multiplied by {why}", 4 * size_of_factors)
    assert (row.way != "written out") == is_held


def test_parameters_used_in_another_width_are_written_out():
    """Of the parameter, and of what it is used as."""
    with jax.enable_x64(True):
        dtypes = {"4": jnp.float32, "8": jnp.float64}

        def loss_fn(params, x):
            total = 0.0
            for kind, leaves in params.items():
                used_as = dtypes[kind[1]]
                w, t = (leaves[name].astype(used_as) for name in "wt")
                y = jnp.sum(t[jnp.int32(x[0] > 0)].reshape(4, 5) ** 2)
                total += jnp.float64(jnp.sum(jnp.tanh(x.astype(used_as) @ w)) + y)
            return total

        both = {"w": 0.1 * numbers(20, 12), "t": 0.1 * numbers(30, 20)}
        params = {
            kind: jax.tree.map(lambda x, k=kind: x.astype(dtypes[k[0]]), both)
            for kind in ("44", "48", "84", "88")
        }
        for name, (way, _) in ways(loss_fn, params, numbers(9, 20, seed=1)).items():
            assert (way != "written out") == name.startswith(("['44']", "['88']"))
        assert_same_mean(loss_fn, params, numbers(9, 20, seed=1), 1e-5, CLIPPING)


# -- Kernels of convolutions of all parameters, held as patches ------------------------
ORDERS = {
    1: [("NHC", "HIO", "NHC"), ("NCH", "OIH", "HCN")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "HOWI", "CNWH")],
    3: [("NDHWC", "DHWIO", "NDHWC")],
}


@st.composite
def convolutions(draw):
    """The options of a convolution, and the shapes of images and kernel."""
    ndim = draw(st.integers(1, 3))

    def each(least, most):
        return draw(st.tuples(*[st.integers(least, most)] * ndim))

    sizes, window, dilation, holes = each(2, 6), each(1, 3), each(1, 2), each(1, 2)
    padding = [draw(st.tuples(*[st.integers(-1, 2)] * 2)) for _ in range(ndim)]
    groups, of_batch = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
    images, into = draw(st.integers(1, 2)) * of_batch, draw(st.integers(1, 3))
    out = draw(st.integers(1, 2)) * groups * of_batch
    lengths = [hole * (n - 1) + 1 for n, hole in zip(sizes, holes, strict=True)]
    reach = [d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)]
    around = [  # a window fits in at least once
        (low, max(high, k - n - low))
        for (low, high), n, k in zip(padding, lengths, reach, strict=True)
    ]
    orders = draw(st.sampled_from(ORDERS[ndim]))
    options = {
        "window_strides": each(1, 3),
        "padding": around,
        "lhs_dilation": holes,
        "rhs_dilation": dilation,
        "feature_group_count": groups,
        "batch_group_count": of_batch,
        "dimension_numbers": orders,
    }
    image, kernel = (images, groups * into, *sizes), (out, into, *window)
    return options, in_order(orders[0], "NC", image), in_order(orders[1], "OI", kernel)


def in_order(order, names, shape):
    """Returns a shape (first two, space) in the order of its letters."""
    sizes = dict(zip([*names, *[x for x in "DHW" if x in order]], shape, strict=True))
    return [sizes[x] for x in order]


def test_convolutions_of_any_parameters_are_the_same_rewritten(request):
    """Rewritten, they have the same values and gradients, of other types too."""

    def check(case, dtype):
        options, *shapes = case
        args = [numbers(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]
        convolve = partial(lax.conv_general_dilated, **options)

        def expected(*args):  # of floats XLA reads beyond the edge: openxla/xla#48713
            result = convolve(*(x.astype(jnp.complex64) for x in args))
            return (result if dtype == jnp.complex64 else result.real).astype(dtype)

        assert_same_operation(convolve, *args, expected=expected)

    dtypes = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.complex64])
    search(request, check, convolutions(), dtypes, few=2, many=250)


def test_convolutions_of_one_group_are_factored(request, monkeypatch):
    """Held, though patches are no smaller."""
    monkeypatch.setattr("dpjax._sums.samples.SAVING", 0)

    def check(case):
        options, image, kernel = case
        w, batch = 0.3 * numbers(*kernel, seed=1), numbers(3, *image, seed=2)

        def loss_fn(w, x):
            y = jnp.sin(lax.conv_general_dilated(x, w, **options))
            return jnp.sum(y * jnp.arange(1.0, y.size + 1).reshape(y.shape))

        (row,) = check_model(loss_fn, w, batch).rows
        is_factored = row.way in ("matrix product", "outer product")
        assert is_factored == (options["batch_group_count"] == 1)
        assert_same_mean(loss_fn, w, batch, 1e-4, [Winsorization(0.05)])
        # Where few numbers cancel, norms from Gram matrices are raised by more.
        assert_same_mean(loss_fn, w, batch, 5e-3, [Clipping(0.3)])

    search(request, check, convolutions(), few=1, many=20)
