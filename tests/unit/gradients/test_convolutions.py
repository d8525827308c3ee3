"""Kernels of convolutions of all parameters, held as patches: the same means."""

from functools import partial

import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

from dpjax.estimators import Clipping, Winsorization
from dpjax.gradients import check_model
from tests.factored import assert_same_mean, numbers
from tests.unit.gradients.test_programs import assert_same_operation

ORDERS = {
    1: [("NHC", "HIO", "NHC"), ("NCH", "OIH", "HCN")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "WOHI", "CNWH")],
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
    space = [x for x in "DHW" if x in order]
    sizes = dict(zip([*names, *space], shape, strict=True))
    return [sizes[x] for x in order]


def test_convolutions_of_any_parameters(search):
    """Rewritten, they have the same values and gradients, of other types too."""

    def check(case, dtype):
        options, *shapes = case
        args = [numbers(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]
        assert_same_operation(partial(lax.conv_general_dilated, **options), *args)

    dtypes = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.complex64])
    search(check, convolutions(), dtypes, few=2, many=250)


def test_convolutions_of_a_family(search, monkeypatch):
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

    search(check, convolutions(), few=1, many=20)
