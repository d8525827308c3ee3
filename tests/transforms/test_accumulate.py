"""A batch in pieces is one release: one noise, one threshold, an exact sum."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.estimators import (
    AdaptiveThreshold,
    Clipping,
    Grouped,
    MedianOfMeans,
    Scaled,
    TrimmedMean,
    Winsorization,
)
from dpjax.gradients import streamed_grad
from dpjax.mechanisms import BandedToeplitz
from dpjax.transforms import accumulate, dp_sgd, privatize
from dpjax.transforms._pieces import PieceSum

N, K, WIDTH = 24, 4, 3
RNG = np.random.default_rng(0)
FEATURES = jnp.asarray(RNG.standard_normal((N, WIDTH)), jnp.float32)
BATCH = FEATURES, jnp.asarray(RNG.standard_t(2, N), jnp.float32)
MASK = jnp.arange(N) % 5 == 4
PARAMS = {"w": jnp.zeros(WIDTH), "b": jnp.zeros(())}
CLIPPING = Clipping(1.0)


@pytest.fixture
def their_promotion():
    """That of optax, which mixes dtypes: adam's count is an int32."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def loss_fn(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


def private(estimator=CLIPPING, multiplier=0.7, normalize_by=N, **kwargs):
    return privatize(
        estimator,
        noise_multiplier=multiplier,
        normalize_by=normalize_by,
        key=jax.random.key(1),
        **kwargs,
    )


def pieces():
    """Yields the pieces of the batch and their masks."""
    for rows in np.split(np.arange(N), K):
        yield jax.tree.map(lambda x, rows=rows: x[rows], (BATCH, MASK))


def slack(normalize_by, num_pieces):
    """By how much the noise of a batch in pieces is larger, for few rows."""
    share = 2.25 * max(normalize_by, 4096) * 2**-24
    return share * (1 + 1 / num_pieces)


ADAPTIVE = AdaptiveThreshold(
    Grouped(CLIPPING, ("w", "b")), lower=1e-3, upper=1e3, learning_rate=2.0
)
OPTIMIZERS = {
    "clipping": (CLIPPING, {}, ()),
    "by coordinate, adam": (Winsorization(0.5), {}, (optax.adam(0.1),)),
    "adaptive": (ADAPTIVE, {}, (optax.sgd(0.1, momentum=0.9),)),
    "scaled": (Scaled(CLIPPING, {"w": 0.1, "b": 10.0}), {}, ()),
    "correlated": (CLIPPING, {"noise": BandedToeplitz(4, (1.0, 0.5))}, ()),
    "noise is known": (CLIPPING, {}, (dpjax.transforms.scale_by_dp_adam(),)),
}


def made(name, multiplier):
    estimator, options, others = OPTIMIZERS[name]
    return dpjax.chain(private(estimator, multiplier, **options), *others)


@pytest.mark.usefixtures("their_promotion")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pieces_make_the_step_of_the_whole_batch(name):
    optimizer = made(name, 0.7 * (1 + slack(N, K)))  # the same noise
    in_pieces = accumulate(made(name, 0.7), num_pieces=K)

    @jax.jit
    def by_batch(params, state):
        stream = streamed_grad(loss_fn)(params, BATCH)
        updates, state = optimizer.update(
            stream, state, params, is_padding_example=MASK
        )
        return optax.apply_updates(params, updates), state

    @jax.jit
    def by_piece(params, state, piece, mask):
        stream = streamed_grad(loss_fn)(params, piece, mask)
        updates, state = in_pieces.update(stream, state, params)
        return optax.apply_updates(params, updates), state

    whole = PARAMS, optimizer.init(PARAMS)
    split = PARAMS, in_pieces.init(PARAMS)
    for _ in range(3):
        whole = by_batch(*whole)
        before = split
        for i, piece in enumerate(pieces()):
            split = by_piece(*split, *piece)
            if i < K - 1:  # nothing moves, and no key is used
                chex.assert_trees_all_equal(split[0], before[0])
                chex.assert_trees_all_equal(split[1].optimizer, before[1].optimizer)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    chex.assert_trees_all_close(split[0], whole[0], **tolerance)
    keyless = [
        [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.number)]
        for state in (split[1].optimizer, whole[1])
    ]
    chex.assert_trees_all_close(*keyless, **tolerance)
    assert not any(x.any() for x in jax.tree.leaves(split[1].total))


@pytest.mark.parametrize(("normalize_by", "num_pieces"), [(24, 4), (20_000, 8)])
def test_the_noise_counts_the_rounding_of_the_sum(normalize_by, num_pieces):
    params = jnp.zeros(1000)
    plain = private(multiplier=1.0, normalize_by=normalize_by)
    whole, _ = plain.update(jnp.zeros((6, 1000)), plain.init(params))
    again = private(multiplier=1.0, normalize_by=normalize_by)
    optimizer = accumulate(again, num_pieces=num_pieces)
    state = optimizer.init(params)
    for _ in range(num_pieces):
        split, state = optimizer.update(jnp.zeros((6, 1000)), state)
    ratio = float(jnp.linalg.norm(split) / jnp.linalg.norm(whole))
    assert ratio - 1 == pytest.approx(slack(normalize_by, num_pieces), rel=0.02)


def test_sums_are_rounded_once():
    rng = np.random.default_rng(3)
    rows = np.float32(rng.standard_t(1, (300, 50)) * 1e-9)
    limit = float(np.abs(rows).sum(axis=0).max())
    add = jax.jit(lambda total, x: total.plus(x, limit))
    total = PieceSum.zero(jnp.zeros(50))
    for row in rows:
        total = add(total, row)
    exact = np.float32([math.fsum(map(float, column)) for column in rows.T])
    assert (total.value(limit) == exact).all()
    assert (np.cumsum(rows, axis=0)[-1] != exact).any()  # as plain sums are not
    assert (jnp.abs(total.value(1e-9)) <= np.float32(1e-9)).all()


@pytest.mark.parametrize("relation", [dpjax.REPLACE_ONE, dpjax.ADD_OR_REMOVE_ONE])
def test_a_record_moves_the_sum_by_the_sensitivity_at_most(relation):
    n, num_pieces, value = 4096, 64, 1.0
    rows = np.where(np.arange(n) % 3 == 0, 0.7, -0.4)[:, None] * np.ones((1, 5))
    other = rows.copy()
    rows[n // 2] = value * 1e6
    other[n // 2] = -value * 1e6 if relation is dpjax.REPLACE_ONE else 0.0
    estimator = Winsorization(value)
    found = []
    for data in (rows, other):
        optimizer = private(estimator, multiplier=0.0, normalize_by=n)
        optimizer = accumulate(optimizer, num_pieces=num_pieces)
        update, state = jax.jit(optimizer.update), optimizer.init(jnp.zeros(5))
        for piece in np.split(np.float32(data), num_pieces):
            mean, state = update(piece, state)
        found.append(np.float64(mean))
    moved = np.abs(found[0] - found[1]).max()
    bound = estimator.sensitivity(n, 5, relation).linf * (1 + slack(n, num_pieces))
    assert 0.99 * bound < moved <= bound


@pytest.mark.devices(4)
def test_pieces_over_devices():
    mesh = jax.make_mesh((2,), ("records",), devices=jax.devices()[:2])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("records"))
    found = []
    for place in (lambda x: x, lambda x: jax.device_put(x, rows)):
        optimizer = accumulate(private(), num_pieces=K)
        state = optimizer.init(PARAMS)
        for piece, mask in map(place, pieces()):
            stream = streamed_grad(loss_fn)(PARAMS, piece, mask)
            updates, state = optimizer.update(stream, state, PARAMS)
        found.append(updates)
    chex.assert_trees_all_close(*found, rtol=1e-5)


@pytest.mark.usefixtures("their_promotion")
def test_a_training_class_takes_pieces():
    train_state = pytest.importorskip("flax.training.train_state", reason="needs flax")
    optimizer = dpjax.chain(private(), optax.adam(0.1))
    training = train_state.TrainState.create(
        apply_fn=loss_fn, params=PARAMS, tx=accumulate(optimizer, num_pieces=K)
    )

    @jax.jit
    def step(training, piece, mask):
        stream = streamed_grad(loss_fn)(training.params, piece, mask)
        return training.apply_gradients(grads=stream)

    for piece, mask in pieces():
        chex.assert_trees_all_equal(training.params, PARAMS)
        training = step(training, piece, mask)
    assert all(jnp.any(x != 0) for x in jax.tree.leaves(training.params))


BAD = {
    "optimizer": lambda: accumulate(optax.sgd(0.1), num_pieces=2),
    "optimizer must be privatize": lambda: accumulate(
        accumulate(private(), num_pieces=2), num_pieces=2
    ),
    "num_pieces must be an integer": lambda: accumulate(private(), num_pieces=2.0),
    "num_pieces must be at least 2": lambda: accumulate(private(), num_pieces=1),
    r"transforms\[0\] must be privatize": lambda: dpjax.chain(
        accumulate(private(), num_pieces=2), optax.adam(0.1)
    ),
    "normalize_by must be given to privatize inside accumulate": lambda: updated(
        private(normalize_by=None)
    ),
    "normalize_by must be at least .* 10000 rows": lambda: updated(
        private(normalize_by=5_000), num_rows=5_000
    ),
    "estimator must be one that adds influences: .* got Median": lambda: updated(
        private(MedianOfMeans(CLIPPING, 2), normalize_by=12, sampled=False)
    ),
    "estimator must be a mean of influences here, got TrimmedMean": lambda: updated(
        private(TrimmedMean(0.2, -1.0, 1.0), normalize_by=12)
    ),
}


def updated(optimizer, num_rows=6):
    optimizer = accumulate(optimizer, num_pieces=2)
    params = jnp.zeros(2)
    return optimizer.update(jnp.zeros((num_rows, 2)), optimizer.init(params), params)


@pytest.mark.parametrize("said", BAD)
def test_bad_arguments_are_named(said):
    with pytest.raises(ValueError, match=said):
        BAD[said]()


def test_wrappers_are_refused_around_it():
    optimizer = optax.apply_if_finite(
        accumulate(
            dp_sgd(0.1, CLIPPING, noise_multiplier=1.0, key=jax.random.key(0)),
            num_pieces=2,
        ),
        3,
    )
    params = jnp.zeros(2)
    with pytest.raises(ValueError, match=r"apply_if_finite must not stand"):
        optimizer.update(jnp.zeros((6, 2)), optimizer.init(params), params)
