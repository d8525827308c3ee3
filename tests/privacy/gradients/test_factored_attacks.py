"""Searches for a record that moves a factored mean farther than its sensitivity."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax.estimators import Clipping, SmoothedClipping, SmoothedTruncation, Truncation
from tests.factored import convolved

P, Q, VOCABULARY = 24, 16, 200  # a table is large for a sum, of more than 4,096


def dense(params, x, tokens, y):
    return (x[0] @ params["w"]) @ y


def positions(params, x, tokens, y):
    return jnp.sum((x @ params["w"]) * y[None])


def loop(params, x, tokens, y):
    return jnp.sum(jax.lax.scan(lambda _, x: (_, (x @ params["w"]) @ y), 0, x)[1])


def table(params, x, tokens, y):
    return jnp.sum(params["t"][tokens] @ jnp.concatenate([y, y[: P - Q]]))


def single(params, x, tokens, y):
    return (x[0] @ params["v"]) * y[0]


def bias(params, x, tokens, y):
    return y @ params["b"] + x[0, 0] * params["c"]


def all_of(params, x, tokens, y):
    return sum(f(params, x, tokens, y) for f in (dense, table, single, bias))


def branch(params, x, tokens, y):
    """A record may change its branch: the other's numbers are zeros, not NaN."""
    w = params["w"]
    z = jax.lax.cond(x[0, 0] > 0, lambda w: x @ w, lambda w: x[::-1] @ w, w)
    z = jax.lax.cond(x[0, 1] > 0, lambda w: z + x @ w, lambda w: z, w)
    return jnp.sum(z * y[None])


def kernel(params, x, tokens, y):
    return jnp.sum(convolved(x[None], params["k"]) * y[None, None])


def tied(params, x, tokens, y):
    """Rows that are read cancel products, and may be 1e30 beside 1e-30."""
    few = params["s"]
    return jnp.sum(few @ x.T) - 3 * jnp.sum(few[tokens % 9] @ x[:2].T)


FUNCTIONS = (dense, positions, loop, table, single, bias, all_of)
FUNCTIONS += (branch, kernel, tied)
MODELS = {f.__name__: f for f in FUNCTIONS} | {"held": positions}  # as two matrices
HELD = ("held", "loop", "branch", "kernel", "tied")  # though no smaller
LEAVES = {"branch": "w", "kernel": "k", "tied": "s"}  # of them all


def params_of(dtype=jnp.float32, p=P, q=Q):
    shapes = {"w": (p, q), "t": (VOCABULARY, P), "v": (P,), "b": (Q,), "c": ()}
    shapes |= {"k": (3, p, q), "s": (9, p)}
    return {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()}


def loss_of(model):
    return lambda params, example: MODELS[model](params, *example).astype(jnp.float32)


def attacks(rng, n, num_positions, p=P, q=Q):
    sizes = (n, num_positions, p)
    same = np.ones(sizes) + 1e-3 * rng.standard_normal(sizes)
    signs = np.where(np.arange(num_positions) % 2, -1.0, 1.0)[None, :, None]
    heavy = rng.standard_t(1.5, sizes)
    y = np.ones((n, q)) + 1e-3 * rng.standard_normal((n, q))
    tokens = rng.integers(0, VOCABULARY, (n, 6))
    tokens[:, 3] = tokens[:, 0]
    for x in (10 * same, heavy, 10 * same * signs * (1 + 1e-3 * heavy)):
        first, target = x[0].copy(), y[0].copy()
        records = [(first, target), (-first, target), (0 * first, target)]
        for value in (1e30, 1e-30, np.nan, np.inf, 3e19):
            changed = first.copy()
            changed[..., 0] = value
            records += [(changed, target), (changed, 0 * target + value)]
        yield x, tokens, y.copy(), records


CLIPPING, SMOOTHED = Clipping(1.0), SmoothedTruncation(0.5)
SINGLE, HALF = jnp.float32, jnp.bfloat16
CASES = [(CLIPPING, model, SINGLE, 40, 3) for model in MODELS]
CASES += [(SMOOTHED, model, HALF, 40, 3) for model in MODELS]
CASES += [(CLIPPING, model, HALF, 40, 3) for model in LEAVES]
CASES += [(CLIPPING, "held", dtype, 9, 4096) for dtype in (SINGLE, HALF)]
SIZES = product(MODELS, (SINGLE, HALF), ((40, 3), (256, 7)))
SETTINGS = [(model, dtype, *sizes) for model, dtype, sizes in SIZES]
SETTINGS += [(model, SINGLE, 9, 4096) for model in ("positions", "held")]
SETTINGS += [("loop", SINGLE, 3, 4096), ("kernel", SINGLE, 40, 64)]
BOUNDED = CLIPPING, SMOOTHED, SmoothedClipping(1.0), Truncation(0.5)
MORE = [(x, *setting) for x in BOUNDED for setting in SETTINGS]
MORE = [pytest.param(*x, marks=pytest.mark.quick(0)) for x in MORE if x not in CASES]
SIZES_OF_X = (0, -126, -100, -63, -20, 0, 20, 60, 64, 100, 126)
SIZES_OF_Y = (0, -126, -70, -40, 0, 40, 63, 80, 126, 127)


@pytest.mark.parametrize(
    ("estimator", "model", "dtype", "n", "num_positions"), CASES + MORE
)
def test_no_record_moves_the_mean_too_far(
    estimator, model, dtype, n, num_positions, monkeypatch
):
    if model in HELD:  # Gram matrices of 4,096 positions are large
        saving = 0 if num_positions < 99 else 4
        monkeypatch.setattr("dpjax._sums.samples.SAVING", saving)
    p, q, most = P, Q, None
    if model == "loop" and num_positions > 99:
        # Long loops are slow: their rows are always added one by one, and what odd
        # values do to a row is seen in short ones.
        p, q, most = 3, 2, 5
    params = params_of(dtype, p, q)
    if model in LEAVES:
        params = {LEAVES[model]: params[LEAVES[model]]}
    grad_fn, farthest = jax.jit(dpjax.robust_grad(loss_of(model), estimator)), 0.0
    rng = np.random.default_rng(n)
    for x, tokens, y, records in attacks(rng, n, num_positions, p, q):
        means = []
        for x[0], y[0] in records[:most]:
            batch = jnp.asarray(x, dtype), jnp.asarray(tokens, "int32")
            batch += (jnp.asarray(y, dtype),)
            means.append(np.float64(ravel_pytree(grad_fn(params, batch))[0]))
        means = np.stack(means)
        assert np.isfinite(means).all()
        sensitivity = estimator.sensitivity(n, means.shape[1])
        moves = means[:, None] - means[None]
        assert np.abs(moves).max() <= sensitivity.linf
        farthest = max(farthest, np.linalg.norm(moves, axis=-1).max() / sensitivity.l2)
    assert farthest <= 1
    if model in LEAVES:
        (row,) = dpjax.gradients.check_model(loss_of(model), params, batch).rows
        assert row.way == "matrix product"
        assert farthest > 0.9 or estimator != CLIPPING


@pytest.mark.parametrize("n", [1, 3])  # one alone is another program
@pytest.mark.parametrize("model", ["dense", "table", "single", "bias", "all_of"])
def test_records_of_every_size_are_clipped_to_the_norm(model, n):
    """If squares over- or underflow they may be clipped to less, or count as zero."""
    params = params_of()
    grad_fn = jax.jit(dpjax.robust_grad(loss_of(model), CLIPPING))
    tokens = jnp.arange(6 * n, dtype=jnp.int32).reshape(n, 6)
    sizes = np.array(list(product(SIZES_OF_X, SIZES_OF_Y)))
    ones_x = np.linspace(1, 1.9, P, dtype=np.float32)[None, None]
    ones_y = (-1) ** np.arange(Q) * np.linspace(1, 1.9, Q, dtype=np.float32)
    xs = np.ldexp(ones_x, sizes[:, 0, None, None])
    ys = np.ldexp(ones_y[None], sizes[:, 1, None])
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda v: jnp.asarray(v, jnp.float64), params)
        gradients = jax.jit(jax.vmap(jax.grad(MODELS[model]), (None, 0, None, 0)))
        exact = gradients(wide, jnp.float64(xs), tokens[0], jnp.float64(ys))
    exact = [np.reshape(v, (len(sizes), -1)) for v in jax.tree.leaves(exact)]
    exact = np.concatenate(exact, axis=1)
    exact /= np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1) * n
    for size, first_x, first_y, expected in zip(sizes, xs, ys, exact, strict=True):
        x, y = np.zeros((n, 1, P), np.float32), np.zeros((n, Q), np.float32)
        x[0], y[0] = first_x, first_y
        mean = np.asarray(ravel_pytree(grad_fn(params, (x, tokens, y)))[0])
        if min(size) > -50 and max(*size, sum(size)) < 56:
            np.testing.assert_allclose(mean, expected, rtol=1e-3, atol=1e-7)
            continue
        norm = max(np.linalg.norm(expected), 1e-30)
        share = mean @ expected / norm**2
        assert -1e-6 <= share <= 1 + 2**-13
        np.testing.assert_allclose(mean, share * expected, rtol=1e-3, atol=1e-7)


def test_antipodal_records_come_near_the_sensitivity():
    """The attack is worth its name, and the sum is that of all records."""
    n, params = 256, params_of()
    grad_fn = jax.jit(dpjax.robust_grad(loss_of("dense"), CLIPPING))
    x, tokens = 10 * jnp.ones((n, 1, P)), jnp.zeros((n, 6), jnp.int32)
    first, second = (
        grad_fn(params, (x.at[0].multiply(sign), tokens, jnp.ones((n, Q))))["w"]
        for sign in (1, -1)
    )
    move = np.linalg.norm(np.asarray(first - second, float))
    sensitivity = float(CLIPPING.sensitivity(n, P * Q).l2)
    assert 0.995 * sensitivity < move <= sensitivity
    np.testing.assert_allclose(np.linalg.norm(first), 1, rtol=4e-4)


@pytest.mark.parametrize("factor", [2.0**-63.5, 2.0**63.5, 2.0**100])
@pytest.mark.parametrize("num_parameters", [1, 6])
@pytest.mark.parametrize("n", [1, 3])
def test_a_number_times_a_constant_is_squared_as_one_number(n, num_parameters, factor):
    """The compiler may square both apart, and lose one of them."""
    params = jnp.zeros(num_parameters)

    def one_by_one(params, x):
        return jnp.sum(jnp.broadcast_to(x * factor, params.shape) * params)

    for loss in (one_by_one, lambda params, x: x * factor * jnp.sum(params)):
        mean = jax.jit(dpjax.robust_grad(loss, Clipping(1.0)))
        for size in (1, 2):
            x = jnp.full(n, size / factor, jnp.float32)
            np.testing.assert_allclose(mean(params, x), num_parameters**-0.5, rtol=1e-3)


@pytest.mark.parametrize("n", [1, 3])
def test_a_constant_stays_in_its_factor(n):
    """The other one times the constant may be infinite, and infinity times zero NaN."""
    params = {"inner": jnp.zeros((6, 4)), "outer": jnp.zeros((4, 2))}

    def loss(params, example):
        x, y = example
        return jnp.sum((x @ params["inner"] * 2.0**120) @ params["outer"]) * y

    grad_fn = jax.jit(dpjax.robust_grad(loss, Clipping(1.0)))
    mean = grad_fn(params, (jnp.ones((n, 6)), jnp.full(n, 2.0**20)))
    for leaf in jax.tree.leaves(mean):
        np.testing.assert_array_equal(leaf, 0)
