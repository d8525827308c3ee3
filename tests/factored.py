"""Uses of parameters and their means: what tests of factored gradients share."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.estimators import Clipping, Truncation, Winsorization
from dpjax.gradients import per_sample_grad, robust_grad

FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}
WIDTH, VOCABULARY, LENGTH = 40, 300, 3
ESTIMATORS = (Clipping(0.3), Winsorization(0.05))


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def assert_same_mean(loss_fn, params, batch, rtol=1e-5, estimators=ESTIMATORS):
    """Compares with estimators of gradients that are written out."""
    grads_fn = jax.jit(per_sample_grad(loss_fn), compiler_options=FAST_TO_COMPILE)
    grads = grads_fn(params, batch)

    def both(params, batch):
        return [(robust_grad(loss_fn, e)(params, batch), e(grads)) for e in estimators]

    pairs = jax.jit(both, compiler_options=FAST_TO_COMPILE)(params, batch)
    # Two programs round a sum of many terms by its size before an influence cuts it.
    largest = max(float(np.abs(x).max()) for x in jax.tree.leaves(grads))
    for estimator, (mean, expected) in zip(estimators, pairs, strict=True):
        # A cast may move an entry over the threshold.
        is_cut = rtol > 1e-3 and isinstance(estimator, Truncation)
        for x, y in zip(*map(jax.tree.leaves, (mean, expected)), strict=True):
            assert x.dtype == y.dtype
            if not is_cut:
                atol = rtol * float(estimator.limit) + 1e-6 * largest
                np.testing.assert_allclose(x, y, rtol=0, atol=atol)


class Use(NamedTuple):
    """What is made of parameters by name, or of one, and of an example of its group."""

    function: Any
    shapes: Any
    way: str  # of all parameters
    why: str  # a part of the reason that is stated
    rtol: float = 1e-4  # by which the mean may differ

    def params(self):
        if isinstance(self.shapes, tuple):
            return 0.2 * numbers(*self.shapes, seed=5)
        return {n: 0.2 * numbers(*s, seed=5) for n, s in self.shapes.items()}

    def loss_fn(self, params, x):
        y = self.function(params, x).astype(jnp.float32)
        return jnp.sum(jnp.sin(y) * jnp.arange(1.0, y.size + 1).reshape(y.shape))


# -- Loops: of a sequence of vectors, (LENGTH, WIDTH) --------------------------------
def recurrent(p, x):
    def step(h, x):
        h = jnp.tanh(x @ p["w"] + h @ p["v"])
        return h, h

    return lax.scan(step, x[0], x, reverse=True)[1]


def layers_over_time(p, x):
    def step(h, x):
        h = lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h + x @ p["v"], p["g"])[0]
        return h, h

    return lax.scan(step, x[0], x)[1]


SQUARE, NHC = (WIDTH, WIDTH), ("NHC", "HIO", "NHC")
TWO, PAIR = (2, *SQUARE), {"w": SQUARE, "v": SQUARE}
MATRICES, BY_3 = "matrix product", "multiplied by 3 vectors"
LOOPS = {
    "dense": Use(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"].T, PAIR, MATRICES, BY_3),
    "heads": Use(
        lambda p, x: jnp.einsum("ti,hij->thj", x, p["h"]).reshape(len(x), -1),
        *({"h": TWO}, MATRICES, BY_3),
    ),
    "grouped": Use(
        lambda p, x: jnp.einsum("tgi,gij->tgj", jnp.stack([x, -x], 1), p["g"]).sum(1),
        *({"g": TWO}, MATRICES, "multiplied by 6 vectors"),
    ),
    "recurrent": Use(recurrent, PAIR, MATRICES, BY_3),
    "over time": Use(layers_over_time, {"g": TWO, "v": SQUARE}, MATRICES, "vectors"),
    "several": Use(
        lambda p, x: jnp.tanh(jnp.tanh(x[0] @ p["w"]) @ p["w"] + x[1] @ p["w"])[None],
        *({"w": SQUARE}, MATRICES, BY_3),
    ),
}


# -- Branches: of a vector of WIDTH --------------------------------------------------
def chosen(p, x):
    branches = (lambda p, x: jnp.tanh(x @ p["w"]), lambda p, x: x @ p["v"].T)
    return lax.cond(x[0] > 0, *branches, p, x)


def skipped(p, x):
    """A layer, or none: half of the records have the gradient zero by it."""
    return lax.cond(x[0] > 0, lambda p: jnp.tanh(x @ p["w"]), lambda _: x, p)


def in_all(p, x):
    """The same parameter in three branches, at one of which it stands twice."""
    branches = (
        lambda w: x @ w,
        lambda w: jnp.tanh(x @ w.T) @ w,
        lambda w: -jnp.sin(jax.jit(lambda w: w)(w).T @ x),
    )
    return lax.switch(jnp.int32(3 * jax.nn.sigmoid(x[0])), branches, p["w"])


def of_rows(p, x):
    """Rows of a table, of which the branch that is not chosen would read others."""
    first = jnp.int32(5 * jax.nn.sigmoid(x[:3]))
    return lax.cond(x[0] > 0, lambda t: t[first].sum(axis=0), lambda _: x, p["t"])


def in_a_loop(p, x):
    @jax.checkpoint
    def layer(x, w):
        y = lax.cond(x[0] > 0, lambda w, v: x @ w + x @ v, lambda w, v: x, w, p["v"])
        return jnp.tanh(y), None

    return lax.scan(layer, x, p["g"])[0]


def nested(p, x):
    def inner(w):
        return lax.cond(x[1] > 0, lambda w: x @ w, lambda w: x, w)

    return jnp.tanh(lax.cond(x[0] > 0, inner, lambda w: x, p["w"]))


BRANCHES = {
    "chosen": Use(chosen, PAIR, "outer product", "one vector"),
    "skipped": Use(skipped, {"w": SQUARE}, "outer product", "one vector"),
    "in all": Use(in_all, {"w": SQUARE}, MATRICES, "4 vectors"),
    "of rows": Use(of_rows, {"t": (50, WIDTH)}, "table rows", "3 of 50 rows"),
    "in a loop": Use(in_a_loop, {"g": TWO, "v": SQUARE}, MATRICES, "2 vectors"),
    "nested": Use(nested, {"w": SQUARE}, "outer product", "one vector"),
}


# -- Tables with several uses, of tokens ---------------------------------------------
def tied(p, tokens):
    return jnp.tanh(p[tokens].mean(axis=0)) @ p.T


def in_half(p, tokens):
    p = p.astype(jnp.bfloat16)
    return jnp.tanh(jnp.float32(p[tokens].mean(axis=0)) @ jnp.float32(p.T))


def filled(p, tokens):
    rows = p.at[tokens + VOCABULARY - 60].get(mode="fill", fill_value=0)
    return rows.mean(axis=0) @ p.T


def _of_a_token(tokens):
    return jnp.sin(jnp.float32(tokens[0]) * jnp.arange(1.0, WIDTH + 1))


def turned(p, tokens):
    def turn(x, _):
        return jnp.tanh(p.T @ (p @ x)), None

    return lax.scan(turn, _of_a_token(tokens), None, 2)[0]


TABLE = (VOCABULARY, WIDTH)
ONE_HOT = "6 vectors, one-hot where its rows are read: 300 and 40 numbers"
TABLES = {
    "tied": Use(tied, TABLE, MATRICES, ONE_HOT),
    "by einsum": Use(
        lambda p, tokens: jnp.einsum("vd,td->tv", p, jnp.tanh(p[tokens[:2]])),
        *(TABLE, MATRICES, ONE_HOT.replace("6", "4")),
    ),
    "transposed": Use(
        lambda p, tokens: jnp.tanh(p.T[tokens].mean(axis=0)) @ p,
        *(TABLE[::-1], MATRICES, "40 and 300 numbers"),
    ),
    "in half": Use(in_half, TABLE, MATRICES, ONE_HOT, 0.02),
    "filled": Use(filled, TABLE, MATRICES, ONE_HOT),
    "two reads": Use(
        lambda p, tokens: p[tokens[0]] * p[tokens[1:]].sum(axis=0),
        *(TABLE, "table rows", "5 of 300 rows are read"),
    ),
    "autoencoder": Use(
        lambda p, tokens: jnp.tanh(p[:] @ _of_a_token(tokens)) @ p,
        *(TABLE, MATRICES, "2 vectors: 300 and 40 numbers"),
    ),
    "in a loop": Use(turned, TABLE, MATRICES, "4 vectors: 300 and 40 numbers"),
}


# -- Kernels: of an image (1, 5, 4), where all factors are held ----------------------
def convolved(x, w):
    return lax.conv_general_dilated(x, w, (1,), "SAME", None, None, NHC)


def in_turn(w, x):
    return lax.scan(lambda x, w: (jnp.tanh(convolved(x, w)), None), x, w)[0]


def kernel_several_times(w, x):
    def turn(x, _):
        return jnp.tanh(convolved(x, w)), None

    return lax.scan(jax.checkpoint(turn), convolved(x, w), None, 2)[0]


KERNEL = (3, 4, 4)
KERNELS = {
    "in turn": Use(in_turn, (2, *KERNEL), MATRICES, "10 patches: 12 and 4 numbers"),
    "several": Use(kernel_several_times, KERNEL, MATRICES, "15 patches: 12 and 4"),
    "half": Use(
        lambda w, x: convolved(*(x.astype(jnp.bfloat16) for x in (x, w))),
        *(KERNEL, MATRICES, "5 patches: 12 and 4 numbers", 0.02),
    ),
}
# Uses, and a batch for them.
_TOKENS = np.random.default_rng(1).integers(0, VOCABULARY, (8, 5)).astype(np.int32)
_TOKENS[:, 3] = _TOKENS[:, 1]  # a row that is read twice
GROUPS = {
    "loops": (LOOPS, numbers(8, LENGTH, WIDTH, seed=6)),
    "branches": (BRANCHES, numbers(8, WIDTH, seed=6)),
    "tables": (TABLES, _TOKENS),
    "kernels": (KERNELS, numbers(8, 1, 5, 4, seed=3)),
}
USES = [(group, name) for group, (uses, _) in GROUPS.items() for name in uses]
