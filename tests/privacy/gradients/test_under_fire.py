"""Gradients that cancel and round: every fast path of the stream keeps to its bounds.

If a compiler computed a gradient twice, for its norm and for the sum, the two could
disagree by more than any limit where it is a difference of large terms, or rounded.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from dpjax.estimators import Clipping, MedianOfMeans, Truncation
from dpjax.gradients import per_sample_grad, robust_grad

# Two blocks of 132 rows, four of which are written out, and a row too few.
N, PLACE = 263, 131
# name: (estimator, whether gradients are streamed or made all at once)
MEANS = {
    "clipping": (Clipping(1.0), robust_grad),
    "truncation": (Truncation(1.0), robust_grad),
    "median": (MedianOfMeans(Clipping(1.0), 3), robust_grad),
    "clipping of all": (
        Clipping(1.0),
        lambda loss_fn, estimator: lambda *x: estimator(per_sample_grad(loss_fn)(*x)),
    ),
}


def shared_layer(rows, columns):
    """Two uses of one layer: the gradient is a sum of two outer products."""

    def loss_fn(params, example):
        x, y = example
        return sum((x[i] @ params["w"] + params["b"]) @ y[i] for i in range(2))

    params = {"w": jnp.ones((rows, columns)), "b": jnp.ones(columns)}
    return loss_fn, params, [(2, rows), (2, columns)], opposed


def shared_kernel(channels):
    def loss_fn(kernel, example):
        x, y = example
        where = (1, 1), "SAME", None, None, ("NHWC", "HWIO", "NHWC")
        return (jax.lax.conv_general_dilated(x, kernel, *where) * y).sum()

    shapes = [(2, 5, 5, 2), (2, 5, 5, channels)]
    return loss_fn, jnp.ones((3, 3, 2, channels)), shapes, opposed


def regression(shape):
    """Residuals of two examples, times their features; or of two numbers."""

    def loss_fn(w, example):
        x, y = example
        residuals = [(x[i] * w).sum() - y[i] for i in range(2)]
        return 0.5 * residuals[0] ** 2 + 0.5 * residuals[1] ** 2

    return loss_fn, jnp.ones(shape), [(2, *shape), (2,)], fitted


def opposed(x, y, share):
    """The second term takes the first away, but for a share of it."""
    return np.stack([x[0], x[0] * (1 + share)]), np.stack([y[0], -y[0]])


def fitted(x, y, share):
    """The targets lie at the predictions, but for a share of them."""
    predictions = x.reshape(2, -1).sum(axis=1) / y[0]
    return x, predictions * (1 + share) * y[0]


# name: (loss_fn, params, shapes of an example, how its terms cancel)
MODELS = {
    "shared layer": shared_layer(9, 5),
    "large shared layer": shared_layer(110, 90),
    "shared kernel": shared_kernel(4),
    "regression": regression((3,)),
    "one coordinate": regression(()),
}
SETTINGS = [
    *((model, "float32") for model in MODELS),
    *((model, "bfloat16") for model in ("shared layer", "large shared layer")),
    ("regression", "bfloat16"),
    ("shared layer", "float16"),
]
SHARES = [0, *(2.0**-k for k in (24, 23, 22, 12, 11, 9, 8, 7, 1))]
SPECIAL = [0.0, 1e-45, 1e-38, 1.0, -1.0, 1e19, -3e19, 1e38, np.inf, -np.inf, np.nan]


def record(rng, shapes, cancel, dtype):
    """An example whose gradient's terms cancel, at any size; some entries are wild."""
    x, y = (rng.normal(size=shape) for shape in shapes)
    if rng.random() < 0.4:
        # All entries alike, so that all their products round in one direction.
        x[:], y[:] = rng.uniform(1, 2, 2)
    x, y = cancel(x, y, rng.choice(SHARES))
    most = 6 if dtype == "float16" else 40
    x = x * 2.0 ** rng.integers(-most, most)
    y = y * 2.0 ** rng.integers(-most, most)
    if cancel is fitted:
        x, y = cancel(x, y, rng.choice(SHARES))
    if rng.random() < 0.2:
        x.flat[rng.integers(x.size)] = rng.choice(SPECIAL)
        y.flat[rng.integers(y.size)] = rng.choice(SPECIAL)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return [z.astype(dtype) for z in (x, y)]


@pytest.mark.quick(8)
@pytest.mark.parametrize(("model", "dtype"), SETTINGS)
def test_gradients_that_cancel_stay_within_their_bounds(model, dtype, plan):
    loss_fn, params, shapes, cancel = MODELS[model]
    dtype = jnp.dtype(dtype)
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    size = sum(x.size for x in jax.tree.leaves(params))

    @jax.jit
    def means(batch):
        return {
            name: mean_fn(loss_fn, estimator)(params, batch)
            for name, (estimator, mean_fn) in MEANS.items()
        }

    def flat(batch):
        trees = means(batch).items()
        ends = {name: np.float64(ravel_pytree(tree)[0]) for name, tree in trees}
        assert all(np.isfinite(x).all() for x in ends.values())
        return ends

    rng, longest = np.random.default_rng(0), 0.0
    for _ in range(12):
        first, second, common = (record(rng, shapes, cancel, dtype) for _ in range(3))
        # Alone among records that have no gradient. Clipping's norm may err by 2^-13.
        batch = [np.zeros((N, *x.shape), x.dtype) for x in first]
        for leaf, x in zip(batch, first, strict=True):
            leaf[PLACE] = x
        share = {name: N * mean for name, mean in flat(batch).items()}
        norms = [np.linalg.norm(share[x]) for x in ("clipping", "clipping of all")]
        longest = max(longest, *norms)
        assert longest <= 1 + 2**-13 + 2**-20
        assert np.abs(share["truncation"]).max() <= 1 + 2**-20
        # One for another, among copies of a third.
        batch = [np.repeat(x[None], N, axis=0) for x in common]
        ends = []
        for row in (first, second):
            for leaf, x in zip(batch, row, strict=True):
                leaf[PLACE] = x
            ends.append(flat(batch))
        for name, (estimator, _) in MEANS.items():
            gap = np.abs(ends[0][name] - ends[1][name])
            stated = np.asarray(estimator.sensitivity(N, size))
            assert ([gap.sum(), np.linalg.norm(gap), gap.max()] <= stated).all(), name
    assert longest > 0.999  # some record was as long as it may be


# -- A convolution that XLA lets read beyond its image ---------------------------------
def padded_by_more_than_its_window(kernel, x):
    order, padding = ("NHWC", "HWIO", "NHWC"), ((0, 0), (4, 0))
    how = {"lhs_dilation": (1, 2), "dimension_numbers": order}
    return jax.lax.conv_general_dilated(x[None], kernel, (1, 1), padding, **how)


@pytest.mark.parametrize("change", [lambda layer: layer, jax.checkpoint])
def test_no_convolution_reads_the_image_of_another_record(change):
    """Plain derivatives of the last record move by 1e5 if the second is large."""
    rng = np.random.default_rng(0)
    shapes = {"a": (3, 4), "b": (1, 2, 4, 5)}
    params = {k: jnp.asarray(rng.normal(size=x), "float32") for k, x in shapes.items()}

    def loss_fn(params, x):
        layer = change(padded_by_more_than_its_window)
        return jnp.mean(jnp.sin(layer(params["b"], x @ params["a"])))

    batch = rng.normal(size=(8, 5, 6, 3)).astype("float32")
    other = batch.copy()
    other[1] = 1e6
    grads = [jax.jit(per_sample_grad(loss_fn))(params, x) for x in (batch, other)]
    one, two = (jax.tree.map(lambda g: np.delete(g, 1, 0), x) for x in grads)
    jax.tree.map(np.testing.assert_array_equal, one, two)
