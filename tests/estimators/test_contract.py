"""What holds for every estimator, over one list of them all."""

import dataclasses
import functools
import pickle

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import ADD_OR_REMOVE_ONE, NeighboringRelation
from dpjax._sums.fold import proven_divisor
from dpjax._sums.stream import SampleStream
from dpjax.estimators import (
    Clipping,
    Mean,
    MedianOfMeans,
    SmoothedTruncation,
    Truncation,
    Winsorization,
)
from tests import registry

pytestmark = pytest.mark.optimized

BOUNDED = registry.bounded_estimators(1.5)
ALL = {"Mean": Mean(), **BOUNDED}
COSTLY = {"MedianOfMeans, of truncation", "MedianOfMeans, one group"}  # to compile
# Of an infinity their influence takes its limit; of the others it is zero.
LIMITED = ("Winsorization", "SmoothedTruncation", "MedianOfMeans, one group")
DIVISIBLE = {n: e for n, e in ALL.items() if not isinstance(e, MedianOfMeans)}


def each(estimators):
    return pytest.mark.parametrize(
        "estimator",
        [
            pytest.param(x, marks=[pytest.mark.slow] * (name in COSTLY))
            for name, x in estimators.items()
        ],
        ids=estimators,
    )


@pytest.fixture
def tree(key):
    """Samples of eleven records: nested, of several shapes, with a scalar leaf."""
    keys = jax.random.split(key, 3)
    return {
        "w": (
            jax.random.normal(keys[0], (11, 2, 3)),
            jax.random.normal(keys[1], (11, 4)),
        ),
        "b": jax.random.normal(keys[2], (11,)),
    }


def leaves(estimator):
    return jax.tree.leaves(estimator)


@pytest.mark.quick(1)
@each(ALL)
def test_estimate_is_the_mean_of_influences(estimator, tree):
    # In float64, in groups: the definition, beside the fold.
    influences = jax.jit(jax.vmap(estimator.influence))(tree)
    groups = np.array_split(np.arange(11), getattr(estimator, "num_groups", 1))

    def mean(values):
        values = np.asarray(values, np.float64)
        return np.median([values[group].mean(axis=0) for group in groups], axis=0)

    expected = jax.tree.map(mean, influences)
    chex.assert_trees_all_close(estimator(tree), expected, rtol=1e-6, atol=1e-6)
    assert jax.tree.map(jnp.shape, estimator(tree)) == {"w": ((2, 3), (4,)), "b": ()}


def test_jit_equals_eager_where_that_compiles_least(tree):
    check_jit(Truncation(1.5), tree["b"])


@pytest.mark.slow  # eagerly, each operation is a program
@each(ALL)
def test_jit_equals_eager(estimator, tree):
    check_jit(estimator, tree["w"][1])


def check_jit(estimator, rows):
    with jax.disable_jit():
        eager = estimator(rows)
    for compiled in (estimator(rows), jax.jit(lambda e, x: e(x))(estimator, rows)):
        chex.assert_trees_all_close(compiled, eager, rtol=2e-6, atol=2e-6)


@pytest.mark.quick(1)
@each(ALL)
def test_vmap_over_samples_and_over_hyperparameters(estimator, key):
    batch = jax.random.cauchy(key, (5, 11, 3))
    together = jax.vmap(estimator)(batch)
    one_by_one = jnp.stack([estimator(x) for x in batch])
    np.testing.assert_allclose(together, one_by_one, rtol=2e-6, atol=1e-6)
    if not leaves(estimator):
        return
    # Not upward: beta would leave the range of its polynomial.
    factors = jnp.array([0.25, 0.5, 1.0])
    scaled = jax.tree.map(lambda leaf: leaf * factors, estimator)
    together = jax.vmap(lambda e: e(batch[0]))(scaled)
    one_by_one = [
        jax.tree.map(lambda leaf, f=f: leaf * float(f), estimator)(batch[0])
        for f in factors
    ]
    # The approximations of h_beta differ by 1e-6 scale, and beta is scaled too.
    np.testing.assert_allclose(together, jnp.stack(one_by_one), rtol=2e-6, atol=4e-6)


@pytest.mark.quick(1)
@each(ALL)
def test_dtypes(estimator):
    rows = np.linspace(-2, 2, 33).reshape(11, 3)
    expected = estimator(jnp.asarray(rows, jnp.float32))
    assert expected.dtype == jnp.float32
    for half in (jnp.bfloat16, jnp.float16):
        rounded = jnp.asarray(rows, half)
        assert estimator(rounded).dtype == jnp.float32
        np.testing.assert_array_equal(
            estimator(rounded), estimator(rounded.astype(jnp.float32))
        )
    # What only its types are asked of is traced.
    whole = jax.eval_shape(estimator, jnp.ones((11, 3), jnp.int32))
    assert whole.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = estimator(jnp.asarray(rows, jnp.float64))
        assert wide.dtype == jnp.float64
        np.testing.assert_allclose(wide, expected, rtol=2e-6, atol=2e-6)
        narrow = jax.eval_shape(estimator, jnp.asarray(rows, jnp.float32))
        assert narrow.dtype == jnp.float32
        mixed = {"x": jnp.asarray(rows), "y": jnp.asarray(rows, jnp.float32)}
        kept = jax.tree.map(lambda x: x.dtype, jax.eval_shape(estimator, mixed))
        assert kept == {"x": jnp.float64, "y": jnp.float32}


@pytest.mark.quick(2)
@each(DIVISIBLE)
def test_float64_estimates_are_as_exact_as_float64(estimator):
    with jax.enable_x64(True):
        rows = jnp.asarray(np.random.default_rng(1).normal(size=(1001, 2)))
        expected = np.asarray(jax.jit(jax.vmap(estimator.influence))(rows)).mean(axis=0)
        np.testing.assert_allclose(estimator(rows), expected, rtol=0, atol=1e-15)


@pytest.mark.quick(1)
@each(ALL)
def test_one_record_and_one_coordinate(estimator):
    if isinstance(estimator, MedianOfMeans):
        estimator = dataclasses.replace(estimator, num_groups=1)

    @jax.jit
    def both(estimator, rows):
        return estimator(rows), estimator.influence(rows[0])

    for shape in [(1,), (1, 1), (1, 4)]:
        mean, influence = both(estimator, jnp.full(shape, 0.25))
        np.testing.assert_allclose(mean, influence, atol=1e-6)
    assert jax.eval_shape(estimator, jnp.ones((7,))).shape == ()
    assert estimator(jnp.ones((7, 0))).shape == (0,)


@pytest.mark.quick(2)
@each(DIVISIBLE)
def test_order_of_records_does_not_matter(estimator, key):
    rows = jax.random.cauchy(key, (500, 3))
    shuffled = rows[np.random.default_rng(2).permutation(500)]
    # A block adds 64 floats of at most 1.5; the plain mean sees Cauchy outliers.
    scale = 1.5 if estimator.limit else float(jnp.abs(rows).max())
    np.testing.assert_allclose(
        estimator(rows), estimator(shuffled), rtol=0, atol=scale * 64 * 2**-24
    )


@pytest.mark.parametrize("num_groups", [3, 4])
def test_order_within_groups_does_not_matter(num_groups, key):
    estimator = MedianOfMeans(Truncation(1.5), num_groups)
    rows = np.asarray(jax.random.normal(key, (110, 3)))
    shuffled = np.concatenate([g[::-1] for g in np.array_split(rows, num_groups)])
    np.testing.assert_allclose(estimator(rows), estimator(shuffled), atol=1e-5)


@pytest.mark.quick(1)
@each(ALL)
def test_masked_rows_count_nothing_and_keep_the_divisor(estimator, key):
    rows = jax.random.normal(key, (11, 3))
    mask = jnp.arange(11) % 3 == 1
    # Rows that count for nothing are rows of zeros, whatever they hold.
    zeros = jnp.where(mask[:, None], 0, rows)
    for rubbish in (jnp.nan, jnp.inf, 1e38):
        spoiled = jnp.where(mask[:, None], rubbish, rows)
        np.testing.assert_allclose(
            estimator(spoiled, mask), estimator(zeros), atol=1e-6
        )
    np.testing.assert_array_equal(estimator(rows, jnp.ones(11, bool)), np.zeros(3))
    np.testing.assert_allclose(
        estimator(rows, np.zeros(11, bool)), estimator(rows), rtol=0, atol=1e-6
    )


@pytest.mark.quick(1)
@each(DIVISIBLE)
def test_normalize_by(estimator, key):
    rows = jax.random.normal(key, (11, 3))
    expected = np.asarray(estimator(rows)) * 11 / 22
    # A sum of eleven terms that cancel is off by roundings of the terms.
    for divisor in (22, 22.0, np.int64(22), jnp.int32(22), jnp.float32(22)):
        np.testing.assert_allclose(
            estimator(rows, normalize_by=divisor), expected, rtol=1e-6, atol=1e-8
        )
    traced = jax.jit(lambda n: estimator(rows, normalize_by=n))(22)
    np.testing.assert_allclose(traced, expected, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(estimator(rows, normalize_by=11), estimator(rows))


def test_median_of_means_takes_no_other_divisor(key):
    rows = jax.random.normal(key, (11, 3))
    for name in ("MedianOfMeans", "MedianOfMeans, of truncation"):
        estimator = ALL[name]
        np.testing.assert_array_equal(estimator(rows, normalize_by=11), estimator(rows))
        for other in (12, 10.5):
            with pytest.raises(ValueError, match="normalize_by"):
                estimator(rows, normalize_by=other)


BAD_VALUES = [np.nan, np.inf, -np.inf, 1e38, -3.4e38, 3e19, 1e19, 1e-45, 1e-38, 0.0]


@pytest.mark.quick(2)
@each(BOUNDED)
def test_bad_values_are_bounded_by_the_limit(estimator):
    limit = float(estimator.limit) * (1 + 2**-13)  # Clipping's norm may err by that
    samples = jnp.array([[value, 0.5, -1.0] for value in BAD_VALUES], jnp.float32)
    influences = jax.jit(jax.vmap(estimator.influence))(samples)
    copies = jnp.repeat(samples[:, None], 11, axis=1)
    estimates = jax.jit(jax.vmap(estimator))(copies)
    for values in (influences, estimates):
        assert jnp.isfinite(values).all()
        assert jnp.abs(values).max() <= limit
    np.testing.assert_allclose(estimates, influences, rtol=2e-6, atol=1e-6)


@pytest.mark.slow
def test_infinities_take_the_limit_where_there_is_one():
    sample = jnp.array([jnp.inf, -jnp.inf, jnp.nan])
    for name, estimator in ALL.items():
        sign = np.array([1.0, -1.0, 0.0])
        has_limit = name.startswith(LIMITED)
        expected = sign * float(estimator.limit) if has_limit else 0 * sign
        np.testing.assert_allclose(estimator.influence(sample), expected, rtol=1e-6)


@each(ALL)
def test_an_estimator_is_a_pytree(estimator, key):
    rows = jax.random.normal(key, (11, 3))
    for copy in [
        jax.tree.map(lambda leaf: leaf, estimator),
        jax.tree.map(jnp.asarray, estimator),
        dataclasses.replace(estimator),
        pickle.loads(pickle.dumps(estimator)),
        eval(repr(estimator), vars(dpjax.estimators).copy()),
    ]:
        assert type(copy) is type(estimator)
        assert copy == estimator
        np.testing.assert_allclose(copy(rows), estimator(rows), rtol=2e-6, atol=1e-6)
    leaves_, treedef = jax.tree.flatten(estimator)
    assert jax.tree.unflatten(treedef, leaves_) == estimator
    # A tree of anything may stand in the place of the numbers: shapes, axes, gradients.
    jax.tree.map(lambda _: None, estimator)
    jax.tree.map(lambda _: object(), estimator)
    jax.tree.map(lambda leaf: -1.0 * leaf, estimator)
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(estimator)]
    assert all(path.split(".")[-1] in repr(estimator) for path in paths)


@pytest.mark.quick(4)
@each(ALL)
def test_a_sweep_over_hyperparameters_compiles_once(estimator):
    rows = jnp.ones((11, 3))

    @jax.jit
    @chex.assert_max_traces(1)
    def estimate(estimator, rows):
        return estimator(rows)

    chex.clear_trace_counter()
    for factor in (1.0, 1.01, 1.02):
        estimate(jax.tree.map(lambda x, f=factor: x * f, estimator), rows)


def finite_difference(function, x, tangent, step):
    return (function(x + step * tangent) - function(x - step * tangent)) / (2 * step)


@pytest.mark.slow
@each(ALL)
def test_derivatives_in_samples(estimator):
    with jax.enable_x64(True):
        # Away from thresholds, and no two group means alike.
        rows = jnp.asarray(np.random.default_rng(3).uniform(-1.2, 1.2, size=(11, 2)))
        tangent = jnp.asarray(np.random.default_rng(4).normal(size=(11, 2)))
        cotangent = jnp.array([0.7, -1.3])
        _, forward = jax.jvp(estimator, (rows,), (tangent,))
        expected = finite_difference(estimator, rows, tangent, 1e-6)
        np.testing.assert_allclose(forward, expected, atol=1e-7)
        _, pull = jax.vjp(estimator, rows)
        np.testing.assert_allclose(
            (pull(cotangent)[0] * tangent).sum(),
            (forward * cotangent).sum(),
            atol=1e-12,
        )


@pytest.mark.slow
@each({name: e for name, e in ALL.items() if leaves(e)})
def test_derivatives_in_hyperparameters(estimator):
    with jax.enable_x64(True):
        rows = jnp.asarray(np.random.default_rng(5).standard_cauchy(size=(11, 2)))
        # Away from beta = 1, where one polynomial hands over to another.
        estimator = jax.tree.map(lambda leaf: 0.9 * leaf, estimator)
        values, treedef = jax.tree.flatten(estimator)

        @jax.jit
        def estimate(values):
            return jax.tree.unflatten(treedef, list(values))(rows).sum()

        values = jnp.array(values)
        forward, backward = jax.jit(
            lambda values: (jax.jacfwd(estimate)(values), jax.grad(estimate)(values))
        )(values)
        expected = [
            finite_difference(estimate, values, tangent, 1e-6)
            for tangent in jnp.eye(len(values))
        ]
        # The series' own error, 3e-7, has a derivative too, in beta.
        np.testing.assert_allclose(forward, np.stack(expected), atol=1e-6)
        np.testing.assert_allclose(backward, forward, rtol=1e-10, atol=1e-12)


@each(
    {
        name: ALL[name]
        for name in ("Clipping", "SmoothedTruncation", "MedianOfMeans, of truncation")
    }
)
def test_the_gradient_of_an_estimator_is_one_whatever_its_sign(estimator):
    rows = jnp.full((11, 2), 100.0)
    for sign in (-1, 0, 1):
        gradient = jax.grad(lambda e, sign=sign: sign * e(rows).sum())(estimator)
        assert jax.tree.structure(gradient) == jax.tree.structure(estimator)


@pytest.mark.quick(1)
@each(ALL)
def test_no_derivative_is_nan(estimator):
    spoiled = [jnp.full((11, 3), 0.3).at[4, 1].set(value) for value in BAD_VALUES]
    rows = jnp.stack([*spoiled, jnp.zeros((11, 3))])

    def total(estimator, rows):
        return estimator(rows).sum()

    @jax.jit
    def derivatives(estimator, rows):
        ones = jax.tree.map(jnp.ones_like, (estimator, rows))
        _, forward = jax.jvp(total, (estimator, rows), ones)
        return jax.grad(total, (0, 1))(estimator, rows), forward

    estimator = jax.tree.map(jnp.float32, estimator)
    for leaf in jax.tree.leaves(jax.vmap(derivatives, (None, 0))(estimator, rows)):
        assert jnp.isfinite(leaf).all()


@pytest.mark.quick(1)
@each(ALL)
def test_lowers_for_every_platform(estimator):
    rows = jax.ShapeDtypeStruct((11, 3), jnp.float32)

    def value_and_grad(estimator, rows):
        return estimator(rows), jax.grad(lambda x: estimator(x).sum())(rows)

    exported = jax.export.export(
        jax.jit(value_and_grad), platforms=["cpu", "cuda", "tpu"]
    )(jax.tree.map(jnp.float32, estimator), rows)
    assert exported.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize(
    ("estimator_type", "name"),
    [
        (Clipping, "l2_clip_norm"),
        (Truncation, "threshold"),
        (Winsorization, "threshold"),
        (SmoothedTruncation, "scale"),
        (SmoothedTruncation, "beta"),
    ],
)
def test_bad_hyperparameters_are_named(estimator_type, name):
    others = {"scale": 1.0} if name == "beta" else {}
    for bad in (0.0, -1.0, np.nan, np.inf, 1e31, 1e-30, "one", jnp.array([1.0, -1.0])):
        with pytest.raises(ValueError, match=rf"^{name} must be"):
            estimator_type(**others, **{name: bad})


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "3"])
def test_bad_numbers_of_groups_are_named(bad):
    with pytest.raises(ValueError, match=r"^num_groups must be"):
        MedianOfMeans(Truncation(1.0), bad)


def test_bad_inner_estimators_are_named():
    for bad in (1.0, MedianOfMeans(Truncation(1.0), 2)):
        with pytest.raises(ValueError, match=r"^inner must be"):
            MedianOfMeans(bad, 2)


@each(ALL)
def test_bad_samples_are_named(estimator):
    for bad in (
        (),
        jnp.float32(1),
        jnp.ones((0, 3)),
        {"x": jnp.ones((3, 2)), "y": jnp.ones((4, 2))},
        {"x": jnp.ones((3, 2)), "y": jnp.float32(1)},
    ):
        with pytest.raises(ValueError, match=r"^samples must be"):
            estimator(bad)
    with pytest.raises(ValueError, match=r"^samples\['x'\] must be real.*complex64"):
        estimator({"x": jnp.ones((9, 2), jnp.complex64)})
    if getattr(estimator, "num_groups", 1) > 2:
        with pytest.raises(ValueError, match=r"^samples must be at least num_groups"):
            estimator(jnp.ones((2, 3)))


@each(ALL)
def test_bad_masks_are_named(estimator):
    rows = jnp.ones((11, 3))
    for bad in (
        jnp.zeros(10, bool),
        jnp.zeros((11, 1), bool),
        jnp.zeros(11),
        np.zeros(11, int),
    ):
        with pytest.raises(ValueError, match=r"^is_padding_example must be"):
            estimator(rows, bad)


@each(ALL)
def test_bad_divisors_are_named(estimator):
    rows = jnp.ones((5000, 1))
    # The rounding slack is proven for up to 9/8 as many rows as the divisor.
    for bad in (0, -1.0, np.nan, np.inf, 4000, jnp.float32(1.0)):
        with pytest.raises(ValueError, match=r"^normalize_by must be"):
            estimator(rows, normalize_by=bad)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, float])
@pytest.mark.parametrize("n", [4609, 5000, 2**24 + 3])
def test_a_traced_divisor_is_raised_to_what_is_proven(n, dtype):
    with jax.enable_x64(dtype is float):
        raised = jax.jit(lambda x: proven_divisor(n, x))(jnp.asarray(1, dtype))
    assert n / 1.125 <= float(raised) <= n / 1.125 * (1 + 2**-22)


@each(ALL)
def test_half_precision_rounds_no_sensitivity(estimator):
    if estimator.limit is None:
        return
    stated = estimator.sensitivity(3984.0, 5)
    for n in (np.float16(3984), jnp.bfloat16(3984)):
        np.testing.assert_allclose(estimator.sensitivity(n, 5), stated, rtol=2e-6)
        traced = jax.jit(lambda n: estimator.sensitivity(n, 5))(n)
        np.testing.assert_allclose(traced, stated, rtol=2e-6)


@each(ALL)
def test_bad_arguments_of_sensitivity_are_named(estimator):
    if estimator.limit is None:
        return
    with pytest.raises(ValueError, match=r"^num_coordinates must be"):
        estimator.sensitivity(10, 0)
    with pytest.raises(ValueError, match=r"^num_samples must be"):
        estimator.sensitivity(0, 1)
    with pytest.raises(ValueError, match=r"^num_samples must be"):
        estimator.sensitivity(np.nan, 1)
    for bad in ("replace", None, NeighboringRelation.REPLACE_SPECIAL):
        with pytest.raises(ValueError, match=r"^relation must be"):
            estimator.sensitivity(10, 1, bad)


@each(ALL)
def test_sensitivity_is_ordered_and_halves_for_a_row_that_is_removed(estimator):
    for n in (11, 5000):
        replace = estimator.sensitivity(n, 7)
        remove = estimator.sensitivity(n, 7, ADD_OR_REMOVE_ONE)
        assert replace.l1 >= replace.l2 >= replace.linf > 0
        if estimator.limit is not None:
            np.testing.assert_allclose(remove, np.array(replace) / 2, rtol=1e-2)


@pytest.mark.quick(1)
@each(ALL)
def test_a_fold_says_what_it_was_given(estimator):
    rows, places = jnp.linspace(-1, 1, 33).reshape(11, 3), jnp.arange(11)

    def make_samples(_, some):
        part, place = some
        return part, {"sum": part.sum(axis=1), "row": place}

    @functools.partial(jax.jit, static_argnums=1)
    def folded(estimator, size, *examples):
        stream = SampleStream(make_samples, (), examples, size)
        return estimator.fold(stream, normalize_by=11)

    for size in (None, 1, 4, 11, 100):
        estimate, records = folded(estimator, size, rows, places)
        np.testing.assert_allclose(estimate, estimator(rows), rtol=0, atol=1e-6)
        np.testing.assert_array_equal(records["row"], np.arange(11))
        np.testing.assert_allclose(records["sum"], rows.sum(axis=1), atol=1e-6)
