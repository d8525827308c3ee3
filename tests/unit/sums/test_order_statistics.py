"""Selection against NumPy's sort, its sum against exact ones, its work and traffic."""

import math
import os

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.test_util import check_grads

from dpjax._sums import order_statistics as _order_statistics
from dpjax._sums.order_statistics import median, middle, order_statistics
from dpjax.estimators import MedianOfMeans, Truncation

order = jax.jit(order_statistics, static_argnums=1)
middle_of = jax.jit(middle, static_argnums=1)
U = 2.0**-24
LARGEST = 1e30
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


def columns(rng, num_samples, dtype):
    """Samples (n, d) with heavy tails, ties, constants, and all that is special."""
    n, info, heavy = num_samples, np.finfo(dtype), rng.standard_cauchy((num_samples, 3))
    tiny = info.smallest_subnormal
    every = [0.0, -0.0, tiny, -tiny, 7 * tiny, info.tiny, -info.tiny, 1.0, -1.0]
    every += [1 + info.eps, 1 - info.epsneg, 1e30, -1e30, 1e38, -1e38]
    every = np.array([*every, info.max, -info.max, np.inf, -np.inf, np.nan], dtype)
    parts = [heavy, heavy * 10.0 ** rng.integers(-40, 30, (n, 3))]
    parts += [rng.integers(0, 3, (n, 3)), rng.choice([-1.0, 1.0], (n, 2))]
    parts += [np.sort(heavy, axis=0), -np.sort(heavy, axis=0)]
    parts += [1e6 + rng.integers(0, 2, (n, 2)), rng.normal(size=(n, 2)) * 1e38]
    parts = [np.clip(x, -1e38, 1e38).astype(dtype) for x in parts]
    constants = np.repeat(every[None], n, axis=0)
    return np.concatenate([*parts, rng.choice(every, (n, 6)), constants], axis=1)


def check(samples, trim_count, order=order, middle_of=middle_of):
    """All three statistics of one array, against its sort and exact sums."""
    n, m = len(samples), trim_count
    computed = order(samples, m)
    finite = np.clip(np.where(np.isnan(samples), 0, samples), -LARGEST, LARGEST)
    expected = np.sort(finite.astype(samples.dtype), axis=0)
    for x in computed:
        assert x.dtype == samples.dtype
    np.testing.assert_array_equal(computed.low, expected[m::-1])
    np.testing.assert_array_equal(computed.high, expected[n - m - 1 :])
    low, high, alone = middle_of(samples, m)
    np.testing.assert_array_equal([low, high], [expected[m], expected[n - m - 1]])
    np.testing.assert_array_equal(alone, computed.middle_sum)
    window = expected[m : n - m].astype(np.float64)
    for total, terms in zip(np.asarray(alone, np.float64), window.T, strict=True):
        exact, size = math.fsum(terms), len(terms) * np.abs(terms).max()
        info = np.finfo(samples.dtype)
        if samples.dtype == np.float32:
            # What `_order.py` builds on.
            error = U * abs(exact) + (2.0**-7 + 2.0**-11) * U * size
        else:
            error = 2.0**-52 * abs(exact) + 2.0**-60 * size
        assert abs(total - exact) <= error + n * float(info.tiny)


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_statistics_of_fresh_and_special_samples_are_those_of_their_sort(
    n, m, dtype, rng
):
    check(columns(rng, n, dtype), m)


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", [1, 250, 1000, 10**9])
def test_columns_in_every_block_and_plan_have_the_same_statistics(
    block, rng, plan, monkeypatch
):
    # Columns by one, by two with an overlap, by nine, and together.
    monkeypatch.setattr(_order_statistics, "_BLOCK", block)
    samples = rng.standard_cauchy((111, 23)).astype(np.float32)
    functions = [
        jax.jit(lambda x, m, f=f: f(x, m), static_argnums=1)
        for f in (order_statistics, middle)
    ]
    check(samples, 7, *functions)
    medians = jax.jit(lambda x: median(x))(samples)
    np.testing.assert_array_equal(medians, np.median(samples, axis=0))


@hypothesis.settings(max_examples=100, deadline=None, database=None)
@hypothesis.given(
    hnp.arrays(np.float32, (40, 2), elements=st.floats(width=32)), st.randoms()
)
def test_statistics_are_the_same_in_any_order_of_any_samples(samples, random):
    check(samples, 1)
    shuffled = samples[random.sample(range(40), 40)]
    first, second = (order(x, 1) for x in (samples, shuffled))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    # x_(r) of -x is -x_(n+1-r) of x.
    negated = order(-samples, 1)
    np.testing.assert_array_equal(negated.low, -first.high)
    np.testing.assert_array_equal(negated.middle_sum, -first.middle_sum)


def jaxprs(jaxpr):
    """All equations, those of inner programs included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from jaxprs(inner)


@pytest.mark.parametrize("function", [order_statistics, middle])
def test_the_work_does_not_depend_on_the_samples(function):
    # A loop's length is part of the program, and no branch looks at the samples.
    samples = jnp.zeros((1000, 700), jnp.float32)
    program = jax.make_jaxpr(function, static_argnums=1)(samples, 50)
    equations = list(jaxprs(program.jaxpr))
    names = {equation.primitive.name for equation in equations}
    assert "while" not in names
    assert {"scan", "reduce"} <= names
    is_platform = [e for e in equations if e.primitive.name == "platform_index"]
    platform = {str(e.outvars[0]) for e in is_platform}
    branches = [e for e in equations if e.primitive.name == "cond"]
    assert all(str(e.invars[0]) in platform for e in branches)
    assert 32 in [e.params["length"] for e in equations if e.primitive.name == "scan"]
    sizes = [e.invars[0].aval.shape for e in equations if e.primitive.name == "sort"]
    # The sum sorts nothing, and the ends themselves alone; a median of means nothing.
    assert sizes == [] if function is middle else {s[1] for s in sizes} == {50}
    program = jax.make_jaxpr(MedianOfMeans(Truncation(1.0), 24))(samples)
    assert "sort" not in {e.primitive.name for e in jaxprs(program.jaxpr)}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("n", "m"), [(3, 1), (9, 2), (200, 10), (200, 90)])
def test_derivatives_are_those_of_differences(n, m, rng):
    x = jnp.asarray(rng.permutation(4 * n).reshape(n, 4) / n)

    @jax.jit
    def score(x):
        parts = order_statistics(x, m), middle(x, m)
        return sum(jnp.sin(part).sum() for part in jax.tree.leaves(parts))

    check_grads(score, (x,), order=1, rtol=1e-4)
    check_grads(jax.jit(jax.grad(score)), (x,), order=1, modes=["fwd"], rtol=1e-4)
    total = jax.jit(jax.grad(lambda x: middle(x, m)[2].sum()))
    assert jnp.isfinite(total(x.at[1].set(jnp.nan))).all()
    batch = jnp.stack([x, -x, x**2])
    together = jax.jit(jax.vmap(lambda x: order_statistics(x, m)))(batch)
    for i, samples in enumerate(batch):
        each = jax.tree.map(lambda y, i=i: y[i], together)
        jax.tree.map(np.testing.assert_array_equal, each, order(samples, m))
    nothing = order(jnp.zeros((n, 0)), m)
    assert jax.tree.map(jnp.shape, nothing) == ((m + 1, 0), (m + 1, 0), (0,))


def test_samples_that_tie_share_the_derivative():
    x = jnp.array([2.0, 0.0, 2.0, 1.0, 2.0, 9.0, 5.0])[:, None]

    @jax.jit(static_argnums=1)
    def gradient(x, m):
        return jax.grad(lambda x: middle_of(x, m)[2][0])(x)[:, 0]

    gradient_of_median = jax.jit(lambda x: jax.grad(lambda x: median(x)[0])(x)[:, 0])

    # Of three twos, as many are kept as there is room for.
    np.testing.assert_allclose(gradient(x, 3), [1 / 3, 0, 1 / 3, 0, 1 / 3, 0, 0])
    np.testing.assert_allclose(gradient(-x, 3), [1 / 3, 0, 1 / 3, 0, 1 / 3, 0, 0])
    two = jnp.array([0.0, 0.0, 0.0, 1.0, 1.0])[:, None]
    np.testing.assert_allclose(gradient(two, 1), [2 / 3] * 3 + [1 / 2] * 2)
    halves = gradient_of_median(x[:6])
    np.testing.assert_allclose(halves, [1 / 3, 0, 1 / 3, 0, 1 / 3, 0])
    np.testing.assert_allclose(gradient_of_median(x[3:]), [0, 1 / 2, 0, 1 / 2])
