"""Kernels of convolutions, held as patches and cotangents: means, and bounds."""

import hypothesis
import jax
import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from jax import lax

from dpjax.estimators import Clipping, SmoothedTruncation, Winsorization
from dpjax.gradients import explain
from tests.privacy.gradients.test_factored_attacks import (
    P,
    Q,
    each_dtype,
    farthest_move_of_positions,
)
from tests.unit.gradients.test_factored import assert_same_mean, numbers

pytestmark = pytest.mark.optimized

ORDERS = {
    1: [("NHC", "HIO", "NHC"), ("NCH", "OIH", "HCN")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "WOHI", "CNWH")],
    3: [("NDHWC", "DHWIO", "NDHWC")],
}


@pytest.fixture
def held(monkeypatch):
    """Has all factors held, though they are no smaller."""
    monkeypatch.setattr("dpjax._sums.samples.SAVING", 0)


@st.composite
def convolutions(draw):
    """The parameters of a convolution, and the shapes of images and kernel."""
    ndim = draw(st.integers(1, 3))

    def each(least, most):
        return draw(st.tuples(*[st.integers(least, most)] * ndim))

    sizes, window, dilation, holes = each(2, 6), each(1, 3), each(1, 2), each(1, 2)
    padding = [draw(st.tuples(*[st.integers(-1, 2)] * 2)) for _ in range(ndim)]
    groups, images = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    into, out = draw(st.integers(1, 3)), draw(st.integers(1, 2)) * groups
    lengths = [hole * (n - 1) + 1 for n, hole in zip(sizes, holes, strict=True)]
    reach = [d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True)]
    around = [  # a window fits in at least once
        (low, max(high, k - n - low))
        for (low, high), n, k in zip(padding, lengths, reach, strict=True)
    ]
    options = {
        "window_strides": each(1, 3),
        "padding": around,
        "lhs_dilation": holes,
        "rhs_dilation": dilation,
        "feature_group_count": groups,
        "dimension_numbers": draw(st.sampled_from(ORDERS[ndim])),
    }
    return options, (images, groups * into, *sizes), (out, into, *window)


def in_order(order, names, shape):
    """Returns a shape (first two, space) in the order of its letters."""
    space = [x for x in "DHW" if x in order]
    sizes = dict(zip([*names, *space], shape, strict=True))
    return [sizes[x] for x in order]


@pytest.mark.parametrize("num_cases", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_convolutions_of_a_family(num_cases, held):
    def check(case):
        options, image, kernel = case
        images, kernels, _ = options["dimension_numbers"]
        w = 0.3 * numbers(*in_order(kernels, "OI", kernel), seed=1)
        batch = numbers(3, *in_order(images, "NC", image), seed=2)

        def loss_fn(w, x):
            y = jnp.sin(lax.conv_general_dilated(x, w, **options))
            return jnp.sum(y * jnp.arange(1.0, y.size + 1).reshape(y.shape))

        (row,) = explain(loss_fn, w, batch).rows
        assert row.way in ("matrix product", "outer product")
        assert_same_mean(loss_fn, w, batch, 1e-4, [Winsorization(0.05)])
        # Where few numbers cancel, norms from Gram matrices are raised by more.
        assert_same_mean(loss_fn, w, batch, 5e-3, [Clipping(0.3)])

    settings = hypothesis.settings(
        max_examples=num_cases, derandomize=True, deadline=None, database=None
    )
    settings(hypothesis.given(convolutions())(check))()


def layer(x, w):
    return lax.conv_general_dilated(
        x, w, (1,), "SAME", None, None, ("NHC", "HIO", "NHC")
    )


def in_turn(p, x):
    return lax.scan(lambda x, w: (jnp.tanh(layer(x, w)), None), x, p["each"])[0]


def several_times(p, x):
    def turn(x, _):
        return jnp.tanh(layer(x, p["w"])), None

    return lax.scan(jax.checkpoint(turn), layer(x, p["w"]), None, 2)[0]


def half(p, x):
    narrow = (x.astype(jnp.bfloat16) for x in (x, p["w"]))
    return layer(*narrow).astype(jnp.float32)


USES = {
    in_turn: ({"each": (2, 3, 4, 4)}, "10 patches: 12 and 4 numbers"),
    several_times: ({"w": (3, 4, 4)}, "15 patches: 12 and 4 numbers"),
    half: ({"w": (3, 4, 4)}, "5 patches: 12 and 4 numbers"),
}


@pytest.mark.parametrize("function", USES)
def test_kernels_in_loops_and_in_half_precision(function, held):
    shapes, why = USES[function]
    params = {name: 0.3 * numbers(*shape) for name, shape in shapes.items()}
    batch = numbers(7, 1, 5, 4, seed=3)

    def loss_fn(params, x):
        return jnp.sum(jnp.sin(function(params, x)))

    (row,) = explain(loss_fn, params, batch).rows
    assert (row.way, row.why) == ("matrix product", "multiplied by " + why)
    rtol, estimators = (0.02, [Clipping(0.3)]) if function is half else (1e-4, None)
    assert_same_mean(loss_fn, params, batch, rtol, *filter(None, [estimators]))


@pytest.mark.parametrize(
    ("channels", "size", "why"),
    [
        (128, 4, "16 patches: 1152 and 128 numbers"),
        (128, 5, "25 patches"),
        (8, 1, "one patch: 72 and 8 numbers"),
    ],
)
def test_patches_are_held_where_they_are_much_smaller(channels, size, why):
    """By six times, half as much again as vectors that need not be cut out."""
    image, kernel = (size, size, channels), (3, 3, channels, channels)
    batch, w = (jax.ShapeDtypeStruct(x, "float32") for x in ((5, *image), kernel))

    def loss_fn(w, x):
        order = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x[None], w, (1, 1), "SAME", None, None, order
        ).sum()

    (row,) = explain(loss_fn, w, batch).rows
    is_held = "numbers" in why
    held = size**2 * 10 * channels if is_held else 9 * channels**2
    assert (row.why, row.num_bytes) == (f"multiplied by {why}", 4 * held)
    assert (row.way != "written out") == is_held


def test_kernels_that_are_no_parameter_of_one_product_are_written_out():
    def mixed(w, x):  # as a kernel, and as a matrix
        return jnp.sum(layer(x, w)) + jnp.sum(jnp.tanh(x[0] @ w[0]))

    def as_image(w, x):
        return jnp.sum(layer(w, x[:, :4].swapaxes(1, 2)))

    for loss_fn, why in ((mixed, "used 2 times"), (as_image, "conv_general_dilated")):
        w, batch = numbers(3, 4, 4), numbers(3, 1, 5, 4, seed=3)
        (row,) = explain(loss_fn, w, batch).rows
        assert row.way == "written out"
        assert row.why.endswith(why)
        assert_same_mean(loss_fn, w, batch, 1e-4)


@each_dtype
@pytest.mark.parametrize("estimator", [Clipping(1.0), SmoothedTruncation(0.5)], ids=str)
@pytest.mark.parametrize("num_positions", [3, pytest.param(64, marks=pytest.mark.slow)])
def test_no_record_moves_the_mean_too_far(estimator, num_positions, dtype, held):
    """Positions that cancel, entries of 1e30 beside 1e-30, NaN: in patches of three."""

    def loss_fn(w, example):
        x, y = example
        return jnp.sum(layer(x[None], w) * y[None, None]).astype(jnp.float32)

    w = jnp.zeros((3, P, Q), dtype)
    farthest = farthest_move_of_positions(loss_fn, w, estimator, num_positions)
    assert farthest > 0.9 or not isinstance(estimator, Clipping)
