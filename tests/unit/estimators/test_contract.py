"""What holds for every estimator, over one list of them all."""

import dataclasses
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import ADD_OR_REMOVE_ONE
from dpjax.estimators import Clipping, Mean, MedianOfMeans, TrimmedMean
from tests import registry

BOUNDED = registry.bounded_estimators(1.5)
ALL = {"Mean": Mean(), **BOUNDED}
WITH_TRIMMED = ALL | {"TrimmedMean": TrimmedMean(0.1, lower=-1, upper=1)}
# Of an infinity their influence takes its limit; of the others it is zero.
LIMITED = ("Winsorization", "SmoothedTruncation", "MedianOfMeans, one group")
DIVISIBLE = {n: e for n, e in ALL.items() if not isinstance(e, MedianOfMeans)}


def each(estimators):
    return pytest.mark.parametrize("estimator", estimators.values(), ids=estimators)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


ROWS = normal(11, 3)  # of one shape: most tests share one program
BAD_VALUES = [np.nan, np.inf, -np.inf, 1e38, -3.4e38, 3e19, 1e19, 1e-45, 1e-38, 0.0]


def mean_in_groups(estimator, values):
    """The mean, or the median of means, of influences: by definition, in float64."""
    num_groups = getattr(estimator, "num_groups", 1)
    groups = np.array_split(np.asarray(values, np.float64), num_groups)
    return np.median([group.mean(axis=0) for group in groups], axis=0)


@pytest.mark.quick(1)
@each(ALL)
def test_estimate_is_the_mean_of_influences(estimator):
    # Eleven records: nested, of several shapes, with a scalar leaf.
    tree = {"w": (normal(11, 2, 3), normal(11, 4)), "b": normal(11)}
    influences = jax.jit(jax.vmap(estimator.influence))(tree)
    expected = jax.tree.map(lambda x: mean_in_groups(estimator, x), influences)
    estimate = estimator(tree)
    chex.assert_trees_all_close(estimate, expected, rtol=1e-6, atol=1e-6)
    assert jax.tree.map(jnp.shape, estimate) == {"w": ((2, 3), (4,)), "b": ()}
    # One record, and one coordinate or none.
    if isinstance(estimator, MedianOfMeans):
        estimator = dataclasses.replace(estimator, num_groups=1)
    for shape in ((1,), (1, 1), (1, 4)):
        rows = np.full(shape, 0.25, np.float32)
        np.testing.assert_allclose(estimator(rows), estimator.influence(rows[0]), 1e-5)
    assert jax.eval_shape(estimator, jnp.ones((7,))).shape == ()
    assert estimator(jnp.ones((7, 0))).shape == (0,)


@pytest.mark.quick(1)
@each(ALL)
def test_vmap_over_samples_and_hyperparameters_is_one_by_one(estimator):
    batch = np.random.default_rng(0).standard_cauchy((10, 11, 3)).astype(np.float32)
    together = jax.vmap(estimator)(batch)
    one_by_one = np.stack([estimator(x) for x in batch])
    np.testing.assert_allclose(together, one_by_one, rtol=2e-6, atol=1e-6)
    if not jax.tree.leaves(estimator):
        return
    # Not upward: beta would leave the range of its polynomial.
    factors = np.float32([0.25, 0.5, 1.0])
    scaled = jax.tree.map(lambda leaf: leaf * factors, estimator)
    together = jax.vmap(lambda e: e(batch[0]))(scaled)
    copies = [jax.tree.map(lambda x, f=f: x * float(f), estimator) for f in factors]
    one_by_one = [copy(batch[0]) for copy in copies]
    # The approximations of h_beta differ by 1e-6 scale, and beta is scaled too.
    np.testing.assert_allclose(together, np.stack(one_by_one), rtol=2e-6, atol=4e-6)


@pytest.mark.quick(1)
@each(ALL)
def test_half_precision_is_estimated_in_float32_and_float64_in_float64(estimator):
    for half in (jnp.bfloat16, jnp.float16):
        rows = np.linspace(-2, 2, 33).reshape(11, 3).astype(half)
        estimate = estimator(rows)
        assert estimate.dtype == jnp.float32
        np.testing.assert_array_equal(estimate, estimator(np.float32(rows)))
    # What only its types are asked of is traced.
    assert jax.eval_shape(estimator, jnp.ones((11, 3), jnp.int32)).dtype == jnp.float32
    with jax.enable_x64(True):
        mixed = {"x": np.float64(ROWS), "y": ROWS}
        dtypes = jax.tree.map(lambda x: x.dtype, jax.eval_shape(estimator, mixed))
        assert dtypes == {"x": jnp.float64, "y": jnp.float32}
        assert jax.eval_shape(estimator, ROWS).dtype == jnp.float32
        # A float64 estimate is as exact as float64.
        both = jax.jit(lambda x: (estimator(x), jax.vmap(estimator.influence)(x)))
        estimate, influences = both(np.random.default_rng(1).normal(size=(1001, 2)))
    expected = mean_in_groups(estimator, influences)
    np.testing.assert_allclose(estimate, expected, rtol=0, atol=1e-15)


@pytest.mark.quick(1)
@each(ALL)
def test_masked_rows_count_nothing_and_keep_the_divisor(estimator):
    mask = np.arange(11) % 3 == 1
    # Rows that count for nothing are rows of zeros, whatever they hold.
    zeros = np.where(mask[:, None], np.float32(0), ROWS)
    for rubbish in np.float32([np.nan, np.inf, 1e38]):
        filled = np.where(mask[:, None], rubbish, ROWS)
        np.testing.assert_allclose(estimator(filled, mask), estimator(zeros), atol=1e-6)
    np.testing.assert_array_equal(estimator(ROWS, jnp.ones(11, bool)), np.zeros(3))
    unmasked = estimator(ROWS, np.zeros(11, bool))
    np.testing.assert_allclose(unmasked, estimator(ROWS), rtol=0, atol=1e-6)


@pytest.mark.quick(1)
@each(DIVISIBLE)
def test_the_sum_is_divided_by_normalize_by(estimator):
    @jax.jit
    def by_each(traced):  # in one program, which computes the sum once
        divisors = 22, 22.0, np.int64(22), traced
        return [estimator(ROWS, normalize_by=x) for x in divisors]

    mean = np.asarray(estimator(ROWS))
    arrays = [estimator(ROWS, normalize_by=f(22)) for f in (jnp.int32, jnp.float32)]
    # A sum of eleven terms that cancel is off by roundings of the terms.
    for estimate in [*by_each(22), *arrays]:
        np.testing.assert_allclose(estimate, mean * 11 / 22, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(estimator(ROWS, normalize_by=11), mean)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", BOUNDED)
def test_bad_values_are_bounded_by_the_limit(name):
    estimator = BOUNDED[name]
    limit = float(estimator.limit) * (1 + 2**-13)  # Clipping's norm may err by that
    samples = np.float32([[value, 0.5, -1.0] for value in BAD_VALUES])
    samples[-1] = 0
    influences = jax.jit(jax.vmap(estimator.influence))(samples)
    estimates = jax.vmap(estimator)(np.repeat(samples[:, None], 11, axis=1))
    for values in map(np.asarray, (influences, estimates)):
        assert np.isfinite(values).all()
        assert np.abs(values).max() <= limit
    np.testing.assert_allclose(estimates, influences, rtol=2e-6, atol=1e-6)
    infinity = float(estimator.limit) if name.startswith(LIMITED) else 0.0
    np.testing.assert_allclose(influences[:3, 0], [0, infinity, -infinity], rtol=1e-6)
    assert not influences[-1].any()


@pytest.mark.parametrize("name", ["Clipping", "Winsorization", "Truncation"])
def test_a_limit_far_above_the_samples_leaves_their_mean_alone(name):
    samples = np.random.default_rng(0).normal(size=(100_000, 3)).astype(np.float32)
    mean_fn = jax.jit(lambda limit: registry.ESTIMATORS[name](limit)(samples))
    expected = samples.astype(np.float64).mean(axis=0)
    for limit in (1e2, 1e8, 1e12, 1e15, 1e30):
        np.testing.assert_allclose(mean_fn(limit), expected, rtol=0, atol=3e-8)


@each(WITH_TRIMMED)
def test_an_estimator_is_a_pytree(estimator):
    for copy in [
        jax.tree.map(lambda leaf: leaf, estimator),
        jax.tree.map(jnp.asarray, estimator),
        dataclasses.replace(estimator),
        pickle.loads(pickle.dumps(estimator)),
        eval(repr(estimator), vars(dpjax.estimators).copy()),
    ]:
        assert type(copy) is type(estimator)
        assert copy == estimator
    # A tree of anything may stand in the place of the numbers: shapes, axes, gradients.
    for leaf_of in (lambda _: None, lambda _: object(), lambda leaf: -1.0 * leaf):
        jax.tree.map(leaf_of, estimator)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(estimator)]
    assert all(path.split(".")[-1] in repr(estimator) for path in paths)
    # Arrays from outside are numbers inside jit.
    arrays, n = jax.tree.map(jnp.float32, estimator), jnp.int32(11)

    def inside(rows):
        made = dataclasses.replace(arrays)  # checks its arguments
        return made(rows, normalize_by=n), made.sensitivity(n, 3)

    assert jax.eval_shape(inside, ROWS)[0].shape == (3,)


@pytest.mark.quick(1)
@each(ALL)
def test_no_derivative_is_nan(estimator):
    rows = np.full((len(BAD_VALUES) + 1, 11, 3), 0.3, np.float32)
    rows[:-1, 4, 1], rows[-1] = BAD_VALUES, 0

    def total(estimator, rows):
        return estimator(rows).sum()

    def derivatives(estimator, rows):
        ones = jax.tree.map(jnp.ones_like, (estimator, rows))
        _, forward = jax.jvp(total, (estimator, rows), ones)
        return jax.grad(total, (0, 1))(estimator, rows), forward

    estimator = jax.tree.map(jnp.float32, estimator)
    results = jax.jit(jax.vmap(derivatives, (None, 0)))(estimator, rows)
    for leaf in jax.tree.leaves(results):
        assert np.isfinite(leaf).all()


@pytest.mark.quick(1)
@each(ALL)
def test_estimates_and_gradients_lower_for_every_platform(estimator):
    rows = jax.ShapeDtypeStruct((11, 3), jnp.float32)

    def value_and_grad(estimator, rows):
        return estimator(rows), jax.grad(lambda x: estimator(x).sum())(rows)

    platforms = ("cpu", "cuda", "tpu")
    export = jax.export.export(jax.jit(value_and_grad), platforms=platforms)
    assert export(jax.tree.map(jnp.float32, estimator), rows).platforms == platforms


@each(ALL)
def test_bad_arguments_are_named(estimator):
    def refuses(message, *args, call=estimator, **options):
        with pytest.raises(ValueError, match=f"^{message}"):
            call(*args, **options)

    x = jnp.ones((3, 2))
    for bad in ((), jnp.float32(1), x[:0], {"x": x, "y": jnp.ones((4, 2))}):
        refuses("samples must be", bad)
    refuses("samples must be", {"x": x, "y": jnp.float32(1)})
    refuses(r"samples\['x'\] must be real.*complex64", {"x": ROWS.astype(complex)})
    if getattr(estimator, "num_groups", 1) > 2:
        refuses("samples must be at least num_groups", x[:2])
    mask = jnp.zeros(11, bool)
    for bad in (mask[:10], mask[:, None], jnp.zeros(11), np.zeros(11, int)):
        refuses("is_padding_example must be", ROWS, bad)
    # The rounding slack is proven for up to 9/8 as many rows as the divisor.
    for bad in (0, -1.0, np.nan, np.inf, 4000, jnp.float32(1.0)):
        refuses("normalize_by must be", jnp.ones((5000, 1)), normalize_by=bad)


def test_groups_by_index_take_no_other_divisor():
    for estimator in (ALL["MedianOfMeans"], WITH_TRIMMED["TrimmedMean"]):
        mean_by = lambda n, f=estimator: f(ROWS, normalize_by=n)  # noqa: E731
        for same in (11, 11.0):
            np.testing.assert_array_equal(mean_by(same), estimator(ROWS))
        for call, other in ((mean_by, 12), (mean_by, 10.5), (jax.jit(mean_by), 11.0)):
            with pytest.raises(ValueError, match="normalize_by must be the number of"):
                call(other)


def test_a_traced_sensitivity_is_the_same_and_none_is_rounded_to_half_precision():
    def stated(estimator, num_samples):
        by_relation = [(), (ADD_OR_REMOVE_ONE,)]
        return [estimator.sensitivity(num_samples, 5, *x) for x in by_relation]

    halves = np.float16(3984), jnp.bfloat16(3984)
    trace = jax.jit(lambda x, ns: {k: [stated(e, n) for n in ns] for k, e in x.items()})
    limits = jax.tree.map(jnp.float32, BOUNDED)
    for name, stated_of_halves in trace(limits, halves).items():
        expected = stated(BOUNDED[name], 3984.0)
        for sensitivities in (*stated_of_halves, stated(BOUNDED[name], halves[0])):
            np.testing.assert_allclose(sensitivities, expected, rtol=2e-6)


def test_sensitivity_has_the_derivative_of_the_exact_formula():
    slope = jax.grad(lambda limit: Clipping(limit).sensitivity(1000, 4).l2)(1.3)
    np.testing.assert_allclose(slope, 2 / 1000, rtol=3e-3)
    assert Mean().sensitivity(10, 2) == (np.inf,) * 3
    assert MedianOfMeans(Mean(), 2).sensitivity(10, 2) == (np.inf,) * 3
