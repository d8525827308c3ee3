"""Records of any floats, in any precision, and a million of them in any order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.estimators import (
    Clipping,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from dpjax.gradients import robust_grad
from tests import registry

DTYPES = {"single": (jnp.float32, 2), "brain": (jnp.bfloat16, 2)}
DTYPES |= {"half": (jnp.float16, 1)}
NUM_COORDINATES = 5
# The same with float64, where it is enabled.
WIDE_DTYPES = {"double": (np.float64, 2), **DTYPES, "brain": (jnp.bfloat16, 0)}
VALUES = np.float32(
    [
        *(0.0, -0.0, 1e-45, -1e-45, 1e-40, 1e-38, -1e-20, 1e-10, 6e-8),
        *(0.3, -0.7, 1.0, -1.0, 1 + 2**-23, 1 - 2**-24, -1.1, 65504.0, -65520.0),
        *(1e19, -1e19, 3e19, 1e38, -3e38, 3.4028235e38, np.inf, -np.inf, np.nan),
    ]
)
WIDE_VALUES = np.float64(
    [5e-324, -1e-310, 1e-200, 1 + 2**-52, 1e39, -1e150, 1e154, 1e200, 1.7e308]
)
ESTIMATORS = {
    **registry.bounded_estimators(1.0),
    "clipping-tiny": Clipping(1e-12),
    "clipping-huge": Clipping(1e30),
    "truncation-huge": Truncation(1e30),
    "winsorization-tiny": Winsorization(1e-20),
    "smoothed-least-beta": SmoothedTruncation(0.7, 1e-6),
    "smoothed-9": SmoothedTruncation(1e30, 9.21),
    "smoothed-most-beta": SmoothedTruncation(1e-18, 1e6),
}
MILLION = 1_000_000
HALF = 2**19  # the spacing of a float32 sum of ones doubles there, to 1/16
ABOVE_ONE = np.nextafter(np.float32(1), np.float32(2))


def as_tree(rows, dtypes=DTYPES):
    tree, first = {}, 0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for name, (dtype, size) in dtypes.items():
            tree[name] = rows[:, first : first + size].astype(dtype)
            first += size
    return tree


def largest_share(estimator, dtypes, values):
    @jax.jit
    @jax.vmap
    def estimates(sample):
        return estimator(jax.tree.map(lambda x: x[None], sample))

    rng = np.random.default_rng(0)
    rows = rng.choice(values, (4096, NUM_COORDINATES))
    # Entries near the limit too, whose squares round in all ways.
    rows[::2] = estimator.limit * (1 + rng.uniform(-0.5, 0.5, rows[::2].shape))
    rows[1::4] = rows[1::4, :1]
    leaves = jax.tree.leaves(estimates(as_tree(rows, dtypes)))
    means = np.concatenate([np.float64(x).reshape(len(rows), -1) for x in leaves], 1)
    assert np.isfinite(means).all()
    is_clipping = isinstance(estimator, Clipping)
    sizes = np.linalg.norm(means, axis=1) if is_clipping else np.abs(means)
    return sizes.max() / estimator.limit


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", [x for x in ESTIMATORS if "median" not in x.lower()])
def test_one_record_alone_is_within_the_limit(name):
    # The bound that all else rests on, at its sharpest: a batch of one record.
    estimator = ESTIMATORS[name]
    # NORM_ERROR of the clipping is 2^-13; a limit is rounded to float32.
    most = 1 + (2**-13 if isinstance(estimator, Clipping) else 2**-22)
    assert 0.999 <= largest_share(estimator, DTYPES, VALUES) <= most
    with jax.enable_x64(True):
        values = np.append(VALUES.astype(np.float64), WIDE_VALUES)
        assert 0.999 <= largest_share(estimator, WIDE_DTYPES, values) <= most


def drift(every):
    """2^19 ones, and then -1/32 in every so many records.

    A sum of the ones and of 1/8 more stands still from there on, since it rounds to
    even; a sum of the ones and of one less follows every -1/32.
    """
    x = np.where(np.arange(MILLION) < HALF, 1, 0.0)
    x[HALF + every :: every] = -1 / 32
    return x


# name: records, none of them larger than 1 + 2^-23
SEQUENCES = {
    "all one": np.ones(MILLION, np.float32),
    "one and a digit": np.full(MILLION, ABOVE_ONE),
    "one and a digit, one": np.where(np.arange(MILLION) % 2, 1, ABOVE_ONE),
    "signs alternate": np.where(np.arange(MILLION) % 2, -1, ABOVE_ONE),
    "signs by block": np.where(np.arange(MILLION) // 64 % 2, -1, ABOVE_ONE),
    "signs by half": np.where(np.arange(MILLION) < MILLION // 2, ABOVE_ONE, -1),
    "ascending": np.linspace(-1, 1, MILLION),
    "descending": np.linspace(1, 0, MILLION),
    "there and back": 1 - np.abs(np.linspace(-1, 1, MILLION)),
    # Small records, which a sum of that size does not see.
    "absorbing": np.where(np.arange(MILLION) < HALF, 1, 2.0**-6),
    "quarters": np.where(np.arange(MILLION) < HALF, 1, 1 / 4),
    "drift": drift(1),
    "drift by thousands": drift(1000),
    "denormal after ones": np.where(np.arange(MILLION) < HALF, 1, 1e-41),
    "wild": np.random.default_rng(0).choice(VALUES, MILLION),
}
SEQUENCES = {name: x.astype(np.float32) for name, x in SEQUENCES.items()}
REPLACED = [63, HALF, MILLION - 1]
ENDS = [1 / 8, -1.0, ABOVE_ONE, -ABOVE_ONE]
ALL_ORDERS = [(Winsorization, None), (Winsorization, 1), (Clipping, None)]
DRIFTS = [
    *((kind, size) for kind in (Winsorization, Clipping) for size in (1, 3, 64, 1000)),
    *((Truncation, None), (SmoothedTruncation, None)),
    (lambda limit: SmoothedTruncation(limit, 50.0), None),
    (lambda limit: MedianOfMeans(Winsorization(limit), 1), None),
    (lambda limit: MedianOfMeans(Truncation(limit), 2), None),
]


def moves(mean_fn, sequence, places=REPLACED, ends=ENDS):
    largest = 0.0
    for place in places:
        values = []
        for end in ends:
            neighbour = sequence.copy()
            neighbour[place] = end
            values.append(float(mean_fn(neighbour)))
        largest = max(largest, max(values) - min(values))
    return largest


def mean_of_a_million(estimator, microbatch_size):
    grad_fn = robust_grad(jnp.multiply, estimator, microbatch_size=microbatch_size)
    return jax.jit(lambda x: grad_fn(1.0, x))


@pytest.mark.parametrize(("estimator", "microbatch_size"), ALL_ORDERS)
def test_a_million_records_in_orders_that_break_sums(estimator, microbatch_size, plan):
    estimator = estimator(float(ABOVE_ONE))
    stated = estimator.sensitivity(MILLION, 1).linf
    mean = mean_of_a_million(estimator, microbatch_size)
    for name, sequence in SEQUENCES.items():
        assert 0.9 * stated <= moves(mean, sequence) <= stated, name


@pytest.mark.quick(4)
@pytest.mark.parametrize(("estimator", "microbatch_size"), DRIFTS)
def test_a_million_records_that_drift(estimator, microbatch_size, plan):
    estimator = estimator(1.0)
    mean = mean_of_a_million(estimator, microbatch_size)
    for name in ("all one", "drift", "quarters"):
        moved = moves(mean, SEQUENCES[name], places=[HALF], ends=ENDS[:2])
        assert moved <= estimator.sensitivity(MILLION, 1).linf, name


def test_the_orders_break_sums_that_are_not_exact():
    def sequential(x):
        return np.add.accumulate(x)[-1] / MILLION

    def in_two_levels(x):
        blocks = np.add.accumulate(x.reshape(1000, 1000), axis=1)[:, -1]
        return np.add.accumulate(blocks)[-1] / MILLION

    stated = Winsorization(float(ABOVE_ONE)).sensitivity(MILLION, 1).linf
    assert moves(sequential, SEQUENCES["drift"]) > 1000 * stated
    assert moves(in_two_levels, SEQUENCES["drift by thousands"]) > 5 * stated
