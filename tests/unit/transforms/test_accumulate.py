"""A batch in pieces is one release: one noise, one threshold, an exact sum."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import estimators, gradients, mechanisms
from dpjax.transforms import accumulate, privatize, scale_by_dp_adam
from dpjax.transforms._chain import PieceSum
from tests.unit.refusals import refused

N, K, WIDTH = 24, 4, 3
RNG = np.random.default_rng(0)
FEATURES = jnp.asarray(RNG.standard_normal((N, WIDTH)), jnp.float32)
BATCH = FEATURES, jnp.asarray(RNG.standard_t(2, N), jnp.float32)
MASK = jnp.arange(N) % 5 == 4
PARAMS = {"w": jnp.zeros(WIDTH), "b": jnp.zeros(())}
CLIPPING = estimators.Clipping(1.0)
ADAPTIVE = estimators.AdaptiveThreshold(
    estimators.Grouped(CLIPPING, ("w", "b")), lower=1e-3, upper=1e3, learning_rate=2.0
)
ADAM = scale_by_dp_adam(), optax.scale(-0.1)
# An estimator, the options of privatize, and what follows.
OPTIMIZERS = {
    "adaptive": (ADAPTIVE, {}, (optax.sgd(0.1, momentum=0.9),)),
    "correlated": (CLIPPING, {"noise": mechanisms.BandedToeplitz(4, (1.0, 0.5))}, ()),
    "noise is known": (estimators.Winsorization(0.5), {}, ADAM),
}


def private(estimator=CLIPPING, multiplier=0.7, n=N, **options):
    options = {"normalize_by": n, "key": jax.random.key(1)} | options
    return privatize(estimator, noise_multiplier=multiplier, **options)


def slack(n, num_pieces):
    """By how much the noise of a batch in pieces is larger."""
    return 2**-20 + 9 * max(n, 4096) * (num_pieces * 2**-24) ** 2


def loss_fn(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


def pieces():
    """Yields the pieces of the batch and their masks."""
    for rows in np.split(np.arange(N), K):
        yield jax.tree.map(lambda x, rows=rows: x[rows], (BATCH, MASK))


def stepping(optimizer):
    @jax.jit
    def step(params, state, batch, mask):
        stream = gradients.streamed_grad(loss_fn)(params, batch, mask)
        updates, state = optimizer.update(stream, state, params)
        return optax.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pieces_make_the_step_of_the_whole_batch(name):
    estimator, options, following = OPTIMIZERS[name]

    def made(multiplier):
        return dpjax.chain(private(estimator, multiplier, **options), *following)

    optimizer = made(0.7 * (1 + slack(N, K)))  # the same noise
    in_pieces = accumulate(made(0.7), num_pieces=K)
    by_batch, by_piece = stepping(optimizer), stepping(in_pieces)
    at_once = PARAMS, optimizer.init(PARAMS)
    split = PARAMS, in_pieces.init(PARAMS)
    with jax.numpy_dtype_promotion("standard"):  # of optax
        for _ in range(3):
            at_once, before = by_batch(*at_once, BATCH, MASK), split
            for i, piece in enumerate(pieces()):
                split = by_piece(*split, *piece)
                if i < K - 1:  # nothing moves, and no key is used
                    now, then = ((p, s.optimizer) for p, s in (split, before))
                    chex.assert_trees_all_equal(now, then)
    numbers = [
        [x for x in jax.tree.leaves(each) if jnp.issubdtype(x.dtype, jnp.number)]
        for each in ((split[0], split[1].optimizer), at_once)
    ]
    chex.assert_trees_all_close(*numbers, rtol=1e-4, atol=1e-5)
    assert not any(x.any() for x in jax.tree.leaves(split[1].total))


def test_schedules_count_batches_and_not_pieces():
    def make(noise_multiplier, learning_rate):
        noisy = private(CLIPPING, noise_multiplier)
        return dpjax.chain(noisy, optax.sgd(learning_rate))

    def injected(more):
        schedules = (lambda t: more * (8 - jnp.float32(t)), lambda t: jnp.float32(t))
        return optax.inject_hyperparams(make)(*schedules)

    optimizer = injected(1 + slack(N, K))  # the same noise
    in_pieces = accumulate(injected(1.0), num_pieces=K)
    state, split = optimizer.init(PARAMS), in_pieces.init(PARAMS)
    by_batch, by_piece = stepping(optimizer), stepping(in_pieces)
    with jax.numpy_dtype_promotion("standard"):  # of optax
        for step in range(3):
            expected, state = by_batch(PARAMS, state, BATCH, MASK)
            for piece in pieces():
                params, split = by_piece(PARAMS, split, *piece)
            chex.assert_trees_all_close(params, expected, rtol=1e-4)
            hyperparams = split.optimizer.hyperparams
            assert hyperparams == {"noise_multiplier": 8 - step, "learning_rate": step}


@pytest.mark.parametrize(("n", "num_pieces"), [(24, 4), (10**6, 64)])
def test_the_noise_counts_the_rounding_of_the_sum(n, num_pieces):
    zeros, sizes = jnp.zeros((6, 1000)), []
    for count in (1, num_pieces):
        optimizer = private(multiplier=1.0, n=n)
        if count > 1:
            optimizer = accumulate(optimizer, num_pieces=count)
        update, state = jax.jit(optimizer.update), optimizer.init(zeros[0])
        for _ in range(count):
            noise, state = update(zeros, state)
        sizes.append(np.linalg.norm(np.float64(noise)))
    more = pytest.approx(slack(n, num_pieces), rel=0.02, abs=2e-7)
    assert sizes[1] / sizes[0] - 1 == more


def test_sums_are_rounded_once():
    rows = np.float32(RNG.standard_t(1, (300, 50)) * 1e-9)
    limit = float(np.abs(rows).sum(axis=0).max())
    add, total = jax.jit(PieceSum.plus), PieceSum.zero(jnp.zeros(50))
    for row in rows:
        total = add(total, estimators.Winsorization(limit).unrounded(row[None]), limit)
    exact = np.float32([math.fsum(map(float, column)) for column in rows.T])
    assert (total.value(limit).plus(jnp.zeros(50)) == exact).all()
    assert (np.cumsum(rows, axis=0)[-1] != exact).any()  # as plain sums are not


def in_two(optimizer=None):
    return accumulate(optimizer or private(), num_pieces=2)


def updated(optimizer, num_rows=6):
    optimizer, params = in_two(optimizer), jnp.zeros(2)
    return optimizer.update(jnp.zeros((num_rows, 2)), optimizer.init(params), params)


def injected(make):
    """An optimizer whose number is injected."""
    return optax.inject_hyperparams(lambda rate: make(rate))(rate=0.1)


test_what_does_not_fit_accumulate_is_named = refused(
    lambda call: call(),
    (lambda: updated(optax.sgd(0.1)), "optimizer must be made by privatize"),
    (lambda: dpjax.chain(in_two(), optax.adam(0.1)), r"\[0\] must be privatize"),
    (lambda: updated(private(n=None)), "normalize_by must be given to privatize insid"),
    (
        lambda: updated(private(n=5_000), num_rows=5_000),
        "normalize_by must be at least .* 10000 rows",
    ),
    (
        lambda: updated(private(estimators.MedianOfMeans(CLIPPING, 2), sampled=False)),
        "estimator must be no MedianOfMeans .* got Median",
    ),
    (
        lambda: updated(injected(lambda x: optax.chain(private(), optax.sgd(x)))),
        "optax.chain must not stand inside accumulate",
    ),
    (lambda: updated(injected(optax.sgd)), "must be .* optax.inject_hyperparams of"),
)
test_what_must_not_stand_around_accumulate_is_named = refused(
    lambda wrapped: wrapped(in_two()).init(PARAMS),
    (lambda x: injected(lambda _: x), "hyperparams must not stand around accumulate"),
    (
        lambda x: optax.chain(x, optax.sgd(0.1)),
        "chain must not stand around accumulate",
    ),
    (lambda x: optax.apply_if_finite(x, 3), "apply_if_finite must not stand around"),
)
