"""Selection against NumPy's sort, its sum against exact ones, its work and traffic."""

import math
import os
import re

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import NamedSharding, PartitionSpec

from dpjax._sums import order_statistics as _order_statistics
from dpjax._sums.order_statistics import median, middle_sum, order_statistics
from dpjax.estimators import MedianOfMeans, TrimmedMean, Truncation

order = jax.jit(order_statistics, static_argnums=1)
total_of = jax.jit(middle_sum, static_argnums=1)

U = 2.0**-24
LARGEST = 1e30
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
# Shapes on either side of the rule that sorts all, and of whole words of 32.
SIZES = [(1, 0), (3, 1), (33, 1), (64, 5), (100, 20), (101, 50), (1000, 50), (999, 499)]


@pytest.fixture
def rng():
    """Fresh numbers in every run; the seed stands in the report of a failure."""
    seed = int.from_bytes(os.urandom(8), "little")
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def specials(dtype):
    info = np.finfo(dtype)
    tiny = info.smallest_subnormal
    values = [0.0, -0.0, tiny, -tiny, 7 * tiny, info.tiny, -info.tiny, 1.0, -1.0]
    values += [1 + info.eps, 1 - info.epsneg, 1e30, -1e30, 1e38, -1e38]
    return np.array([*values, info.max, -info.max, np.inf, -np.inf, np.nan], dtype)


def columns(rng, num_samples, dtype):
    """Samples (n, d) with heavy tails, ties, constants, and all that is special."""
    n = num_samples
    every = specials(dtype)
    heavy = rng.standard_cauchy((n, 3))
    parts = [
        heavy,
        heavy * 10.0 ** rng.integers(-40, 30, (n, 3)),
        rng.integers(0, 3, (n, 3)),
        rng.choice([-1.0, 1.0], (n, 2)),
        np.sort(heavy, axis=0),
        -np.sort(heavy, axis=0),
        1e6 + rng.integers(0, 2, (n, 2)),
        rng.normal(size=(n, 2)) * 1e38,
    ]
    parts = [np.clip(x, -1e38, 1e38).astype(dtype) for x in parts]
    constants = np.repeat(every[None], n, axis=0)
    return np.concatenate([*parts, rng.choice(every, (n, 6)), constants], axis=1)


def ordered(samples):
    finite = np.where(np.isnan(samples), 0, samples)
    return np.sort(np.clip(finite, -LARGEST, LARGEST).astype(samples.dtype), axis=0)


def check(samples, trim_count, order=order, total_of=total_of):
    """All three statistics of one array, against its sort and exact sums."""
    n, m = len(samples), trim_count
    found = order(samples, m)
    expected = ordered(samples)
    for x in found:
        assert x.dtype == samples.dtype
    np.testing.assert_array_equal(found.low, expected[m::-1])
    np.testing.assert_array_equal(found.high, expected[n - m - 1 :])
    alone = total_of(samples, m)
    np.testing.assert_array_equal(alone, found.middle_sum)
    window = expected[m : n - m].astype(np.float64)
    for total, terms in zip(np.asarray(alone, np.float64), window.T, strict=True):
        exact, size = math.fsum(terms), len(terms) * np.abs(terms).max()
        info = np.finfo(samples.dtype)
        if samples.dtype == np.float32:
            # What `_smooth_sensitivity.py` builds on.
            error = U * abs(exact) + (2.0**-7 + 2.0**-11) * U * size
        else:
            error = 2.0**-52 * abs(exact) + 2.0**-60 * size
        assert abs(total - exact) <= error + n * float(info.tiny)


@pytest.mark.quick(1)
@both_dtypes
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_fresh_and_special_samples(n, m, dtype, rng):
    check(columns(rng, n, dtype), m)


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", [1, 250, 1000, 10**9])
def test_every_block_and_every_plan(block, rng, plan, monkeypatch):
    # Columns by one, by two with an overlap, by nine, and together.
    monkeypatch.setattr(_order_statistics, "_BLOCK", block)
    samples = rng.standard_cauchy((111, 23)).astype(np.float32)
    functions = [
        jax.jit(lambda x, m, f=f: f(x, m), static_argnums=1)
        for f in (order_statistics, middle_sum)
    ]
    check(samples, 7, *functions)
    found = jax.jit(lambda x: median(x))(samples)
    np.testing.assert_array_equal(found, np.median(samples, axis=0))


@pytest.mark.slow
def test_many_samples(rng):
    # Four digits in the sum, and a search of many words.
    samples = rng.standard_t(2, (2**20 + 3, 1)).astype(np.float32)
    check(samples, 5000)
    check(np.abs(samples), 2**19)


@hypothesis.settings(max_examples=100, deadline=None, database=None)
@hypothesis.given(
    hnp.arrays(np.float32, (40, 2), elements=st.floats(width=32)), st.randoms()
)
def test_any_samples_in_any_order(samples, random):
    check(samples, 1)
    shuffled = samples[random.sample(range(40), 40)]
    first, second = (order(x, 1) for x in (samples, shuffled))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    # x_(r) of -x is -x_(n+1-r) of x.
    negated = order(-samples, 1)
    np.testing.assert_array_equal(negated.low, -first.high)
    np.testing.assert_array_equal(negated.middle_sum, -first.middle_sum)


@pytest.mark.slow
def test_one_larger_sample_lowers_nothing(rng):
    samples = columns(rng, 50, np.float32)
    larger = samples.copy()
    larger[rng.integers(50)] = np.inf
    before, after = (order(x, 5) for x in (samples, larger))
    kept = ~np.isnan(samples).any(axis=0)  # NaN counts as zero: it may have been less
    assert (after.low >= before.low)[:, kept].all()
    assert (after.high >= before.high)[:, kept].all()


def jaxprs(jaxpr):
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from jaxprs(inner)


@pytest.mark.parametrize("function", [order_statistics, middle_sum])
def test_the_work_is_fixed(function):
    # A loop's length is part of the program, and no branch looks at the samples.
    samples = jnp.zeros((1000, 700), jnp.float32)
    program = jax.make_jaxpr(function, static_argnums=1)(samples, 50)
    equations = list(jaxprs(program.jaxpr))
    names = {equation.primitive.name for equation in equations}
    assert "while" not in names
    assert {"scan", "reduce"} <= names
    platform = {
        str(equation.outvars[0])
        for equation in equations
        if equation.primitive.name == "platform_index"
    }
    for equation in equations:
        if equation.primitive.name == "cond":
            assert str(equation.invars[0]) in platform
    lengths = [e.params["length"] for e in equations if e.primitive.name == "scan"]
    assert 32 in lengths
    sizes = [e.invars[0].aval.shape for e in equations if e.primitive.name == "sort"]
    # The sum sorts nothing, and the ends themselves alone.
    assert sizes == [] if function is middle_sum else {s[1] for s in sizes} == {50}


@pytest.mark.devices(4)
def test_on_several_devices_only_counts_travel():
    # In float32, as the module's other tests are not.
    with jax.enable_x64(False):
        estimator = TrimmedMean(0.05, -1.0, 1.0)
        seed = int.from_bytes(os.urandom(3), "little")
        mesh = jax.make_mesh((4,), ("records",), devices=jax.devices()[:4])
        x = jax.random.t(jax.random.key(seed), 2.0, (20_000, 40))
        split = jax.device_put(x, NamedSharding(mesh, PartitionSpec("records")))
        both = jax.jit(lambda x: estimator.with_smooth_sensitivity(x, 0.1))
        for run in (jax.jit(lambda x: estimator(x)), both):
            text = run.lower(split).compile().as_text()
            moved = re.findall(r"(\w+)\[([\d,]*)\]\S* all-gather", text)
            assert moved or "all-reduce" in text
            for dtype, shape in moved:
                size = np.prod([int(k) for k in shape.split(",")])
                # Counts; for the ends also which samples: bits, and counts by word.
                is_small = dtype == "pred" or 32 * size <= x.size
                assert size <= 1000 or (run is both and is_small)
            leaves = (jax.tree.leaves(run(samples)) for samples in (split, x))
            for found, expected in zip(*leaves, strict=True):
                np.testing.assert_array_equal(found, expected, f"seed {seed}")


def by_sort(samples, trim_count):
    rows = jnp.sort(jnp.where(jnp.abs(samples) <= LARGEST, samples, 0), axis=0)
    last = len(rows) - trim_count
    return rows[trim_count::-1], rows[last - 1 :], rows[trim_count:last].sum(axis=0)


@pytest.mark.slow
@both_dtypes
@pytest.mark.parametrize(("n", "m"), [(3, 1), (9, 2), (200, 10), (200, 90)])
def test_derivatives_are_those_of_the_sort(n, m, dtype, rng):
    x, dx, weights = (rng.normal(size=(n, 4)).astype(dtype) for _ in range(3))
    x[rng.integers(n), 0] = np.nan

    def weighted(y):
        return (weights[: y.size // 4] * y.reshape(-1, 4) ** 2).sum()

    def derivatives(function, x):
        def score(x):
            return sum(map(weighted, function(x, m)))

        second = jax.hessian(score)(x) if n < 10 else 0.0
        return jax.grad(score)(x), second, jax.jvp(score, (x,), (dx,))[1]

    @jax.jit
    def all_derivatives(x):
        pairs = [
            (order_statistics, by_sort),
            (lambda x, m: (middle_sum(x, m),), lambda x, m: (by_sort(x, m)[2],)),
        ]
        return [[derivatives(f, x) for f in pair] for pair in pairs]

    for mine, theirs in all_derivatives(x):
        for error, found, expected in zip(
            (1e-4, 1e-4, 1e-3), mine, theirs, strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=error, atol=error)


def test_ties_share_the_derivative():
    x = jnp.array([2.0, 0.0, 2.0, 1.0, 2.0, 9.0, 5.0])[:, None]

    @jax.jit(static_argnums=1)
    def gradient(x, m):
        return jax.grad(lambda x: total_of(x, m)[0])(x)[:, 0]

    @jax.jit
    def gradient_of_median(x):
        return jax.grad(lambda x: median(x)[0])(x)[:, 0]

    # Of three twos, as many are kept as there is room for.
    np.testing.assert_allclose(gradient(x, 1), [1, 0, 1, 1, 1, 0, 1])
    np.testing.assert_allclose(gradient(x, 3), [1 / 3, 0, 1 / 3, 0, 1 / 3, 0, 0])
    np.testing.assert_allclose(gradient(-x, 3), [1 / 3, 0, 1 / 3, 0, 1 / 3, 0, 0])
    two = jnp.array([0.0, 0.0, 0.0, 1.0, 1.0])[:, None]
    np.testing.assert_allclose(gradient(two, 1), [2 / 3] * 3 + [1 / 2] * 2)
    np.testing.assert_allclose(gradient(jnp.ones((5, 1)), 1), [3 / 5] * 5)
    halves = gradient_of_median(x[:6])
    np.testing.assert_allclose(halves, [1 / 3, 0, 1 / 3, 0, 1 / 3, 0])
    pair = gradient_of_median(x[3:])
    np.testing.assert_allclose(pair, [0, 1 / 2, 0, 1 / 2])


@pytest.mark.quick(1)
@both_dtypes
@pytest.mark.parametrize("n", [1, 2, 3, 24, 41, 100])
def test_median(n, dtype, rng):
    x = rng.standard_cauchy((n, 30)).astype(dtype)
    x[:, :5] = rng.integers(0, 2, (n, 5))
    x[:, 5] = np.finfo(dtype).max / 4  # not clipped
    found = jax.jit(median)(x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.median(x, axis=0), rtol=1e-6)
    batch = jax.jit(jax.vmap(median))(np.stack([x, -x]))
    np.testing.assert_array_equal(batch[1], -np.asarray(found))


def test_group_means_are_selected_not_sorted():
    estimator = MedianOfMeans(Truncation(1.0), 24)
    program = jax.make_jaxpr(estimator)(jnp.zeros((100, 7), jnp.float32))
    assert "sort" not in {e.primitive.name for e in jaxprs(program.jaxpr)}


@pytest.mark.slow
def test_vmap_and_no_columns(rng):
    batch = rng.standard_t(2, (3, 200, 4)).astype(np.float32)
    together = jax.jit(jax.vmap(lambda x: order_statistics(x, 9)))(batch)
    for i, x in enumerate(batch):
        alone = order(x, 9)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), together, alone
        )
    nothing = order(jnp.zeros((200, 0), jnp.float32), 9)
    assert jax.tree.map(jnp.shape, nothing) == ((10, 0), (10, 0), (0,))


@pytest.mark.quick(2)
@pytest.mark.parametrize("n", [1, 2, 3, 1000, 2**17 + 1])
def test_the_sum_is_off_by_one_rounding(n):
    rng = np.random.default_rng(n)
    for x in (
        rng.lognormal(0, 3, (n, 3)),
        1 + 1e-3 * rng.normal(size=(n, 3)),
        np.sort(rng.standard_cauchy((n, 3)), axis=0),
    ):
        x = x.astype(np.float32)
        exact = x.astype(np.float64).sum(axis=0)
        size = np.abs(x.astype(np.float64)).sum(axis=0)
        found = jax.jit(_order_statistics._sum_in_two_floats)(x)
        error = np.abs(np.asarray(found, np.float64) - exact)
        assert (error <= U * np.abs(exact) + 2**11 * U**2 * size).all()
