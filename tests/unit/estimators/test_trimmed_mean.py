"""The trimmed mean: its smooth sensitivity against fuzz, brute force and rounding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import ADD_OR_REMOVE_ONE, robust_grad
from dpjax.estimators import MedianOfMeans, TrimmedMean

U = 2.0**-24
BOUNDS = ["fast", "exact"]
each_bound = pytest.mark.parametrize("bound", BOUNDS)
REPLACEMENTS = np.array(
    [0, 1, -1, 0.3, 1e9, -1e9, 1e38, np.nan, np.inf, -np.inf, 1e-40], np.float32
)


def neighbours(num_samples, seed):
    """Two arrays (n, pairs), columns of which differ in one row."""
    rng = np.random.default_rng(seed)
    n, size = num_samples, 400
    wild = rng.normal(size=(n, size)) * 10.0 ** rng.integers(-3, 10, (n, size))
    columns = [
        rng.normal(size=(n, size)),
        rng.standard_cauchy((n, size)),
        rng.integers(0, 3, (n, size)),  # ties
        np.repeat(rng.choice(REPLACEMENTS[:7], (1, size)), n, axis=0),  # constants
        np.where(rng.random((n, size)) < 0.3, 1e9, 0.0),
        wild,
        rng.choice(REPLACEMENTS, (n, size)),  # NaN and infinities
    ]
    x = np.concatenate(columns, axis=1).astype(np.float32)
    y = x.copy()
    pairs = x.shape[1]
    rows = rng.integers(0, n, pairs)
    # Replaced by a special value, by a neighbour of another record, or anything.
    others = x[rng.integers(0, n, pairs), np.arange(pairs)]
    values = np.where(rng.random(pairs) < 0.5, rng.choice(REPLACEMENTS, pairs), others)
    y[rows, np.arange(pairs)] = values
    return x, y


def printed_sensitivity(x, estimator, smoothness):
    """Paper 001, Algorithm 2, line 1: max((x_(n) - x_(1))/(n - 2m), e^(-mt)(b - a))."""
    m = estimator.trim_count(len(x))
    spread = np.ptp(np.clip(np.nan_to_num(x.astype(np.float64), nan=0), -1e30, 1e30), 0)
    width = estimator.upper - estimator.lower
    return np.maximum(spread / (len(x) - 2 * m), np.exp(-m * smoothness) * width)


SIZES = [(3, 0.3), (4, 0.3), (5, 0.45), (11, 0.25), (40, 0.1), (200, 0.2)]


def fuzz(bound, num_sizes):
    """The greatest of |log S - log S'|/t and |f - f'|/min(S, S'), and the printed one.

    The estimator's are exact: S and f as computed in float32, compared in float64.
    """
    every = len(SIZES) // num_sizes
    seeds = range(len(SIZES))[every - 1 :: every]
    return np.max([fuzz_of_size(bound, seed) for seed in seeds], axis=0)


@functools.cache
def fuzz_of_size(bound, seed):
    greatest, (n, fraction) = np.zeros(3), SIZES[seed]
    x, y = neighbours(n, seed)
    for t in (1e-5, 0.02, 0.3, 2.0):
        for lower, upper in [(-1.0, 1.0), (-1e8, 3e8), (0.0, 1e-3)]:
            estimator = TrimmedMean(fraction, lower, upper)
            (f, s), (g, r) = (
                np.asarray(estimator.with_smooth_sensitivity(z, t, bound=bound))
                for z in (x, y)
            )
            f, s, g, r = (np.asarray(z, np.float64) for z in (f, s, g, r))
            p, q = (printed_sensitivity(z, estimator, t) for z in (x, y))
            found = (
                np.abs(np.log(s / r)) / t,
                np.abs(f - g) / np.minimum(s, r),
                np.abs(np.log(p / q)) / t,
            )
            greatest = np.maximum(greatest, [np.max(z) for z in found])
    return greatest


@pytest.mark.parametrize(
    ("bound", "num_sizes"),
    [
        ("exact", 3),
        pytest.param("exact", 6, marks=pytest.mark.slow),
        pytest.param("fast", 6, marks=pytest.mark.slow),
    ],
)
def test_smooth_and_sensitive_for_every_neighbour(bound, num_sizes):
    smoothness, sensitivity, _ = fuzz(bound, num_sizes)
    assert smoothness <= 1
    assert sensitivity <= 1
    # The fuzz comes close to either: neither could be claimed to be smaller.
    assert smoothness > 0.999
    assert sensitivity > (0.999 if bound == "exact" else 0.5)


@pytest.mark.slow
def test_the_fuzz_catches_the_printed_sensitivity():
    assert fuzz("exact", 6)[2] > 100


def test_one_record_moves_the_printed_sensitivity_a_millionfold():
    x = np.zeros((30, 1), np.float32)
    y = x.copy()
    y[0] = 1e9
    estimator, t = TrimmedMean(0.1, -1.0, 1.0), 0.1
    ratio = printed_sensitivity(y, estimator, t) / printed_sensitivity(x, estimator, t)
    assert ratio[0] > 1e6
    right = estimator.smooth_sensitivity(y, t) / estimator.smooth_sensitivity(x, t)
    assert right[0] <= np.exp(t)


# A grid of values stands for the line: its ends lie beyond all others, as do ±inf.
GRID = np.array([-50.0, -1.0, 0.0, 0.5, 50.0], np.float32)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("n", "fraction"), [(3, 0.3), (4, 0.3), (5, 0.25), (5, 0.45)])
@pytest.mark.parametrize(("width", "t"), [(8.0, 0.2), (8.0, 1.5), (1e6, 4.0)])
def test_exact_equals_brute_force(n, fraction, width, t):
    shape = (len(GRID),) * n
    data = np.stack([x.ravel() for x in np.meshgrid(*[GRID] * n, indexing="ij")])
    estimator = TrimmedMean(fraction, -width / 2, width / 2)
    m = estimator.trim_count(n)
    unclamped = np.sort(data.astype(np.float64), 0)[m : n - m].mean(0).reshape(shape)

    def neighbourhood(values):
        """The largest value within one replacement."""
        along = [values.max(axis, keepdims=True) + 0 * values for axis in range(n)]
        return np.max(along, axis=0)

    def smooth(f, num_steps, last):
        local = np.maximum(neighbourhood(f) - f, f + neighbourhood(-f))
        best = last
        for k in range(num_steps):
            best = np.maximum(best, np.exp(-k * t) * np.minimum(width, local))
            local = neighbourhood(local)
        return best.ravel()

    expected = smooth(unclamped, m, np.exp(-m * t) * width)
    exact = np.asarray(estimator.smooth_sensitivity(data, t, bound="exact"))
    np.testing.assert_allclose(exact, expected, rtol=1e-5)
    # The clamped estimate's own smooth sensitivity may be smaller, never larger.
    clamped = np.clip(unclamped, -width / 2, width / 2)
    assert (smooth(clamped, n + 1, np.zeros(shape)) <= exact).all()
    fast = np.asarray(estimator.smooth_sensitivity(data, t))
    assert (exact <= fast).all()
    assert (fast <= 2 * (1 + 1e-6) * exact).all()


def test_fast_is_up_to_twice_exact():
    estimator, x = TrimmedMean(0.2, -1e3, 1e3), jnp.array([-9.0, 0.0, 0.0, 0.0, 9.0])
    fast, exact = (estimator.smooth_sensitivity(x, 9.0, bound=b) for b in BOUNDS)
    np.testing.assert_allclose([fast, exact], [18 / 3, 9 / 3], rtol=1e-5)


@pytest.mark.slow
def test_the_least_sensitivity():
    # Constant samples: nothing but e^(-mt) (b - a), and 2^-40 (b - a) in the end.
    estimator = TrimmedMean(0.25, -1.0, 2.0)
    for n, t in [(100, 0.1), (100, 100.0), (4, 1e-7)]:
        expected = 3 * max(np.exp(-(n // 4) * t), 2.0**-40)
        for bound in BOUNDS:
            found = estimator.smooth_sensitivity(jnp.zeros(n), t, bound=bound)
            np.testing.assert_allclose(found, expected, rtol=1e-4)
            assert found >= expected


@pytest.mark.quick(1)
@each_bound
def test_rounding_of_many_samples_is_covered(bound):
    # A narrow middle far from zero: the mean is rounded by more than it moves.
    rng, n, m, t = np.random.default_rng(3), 20_001, 200, 0.5
    for offset in (1.0, 100.0, 12345.0, -7e6, 1e20):
        x = (offset * (1 + 1e-7 * rng.normal(size=(n, 6)))).astype(np.float32)
        y = x.copy()
        y[17] = [1e30, -1e30, 0.0, np.nan, np.inf, -np.inf]
        size = 1000 * abs(offset)
        estimator = TrimmedMean(0.01, -size, size)
        f, s = estimator.with_smooth_sensitivity(x, t, bound=bound)
        g, r = estimator.with_smooth_sensitivity(y, t, bound=bound)
        moved = np.abs(np.asarray(f, np.float64) - np.asarray(g, np.float64))
        assert (moved <= np.minimum(s, r)).all()
        # What rounding costs is a few of the mean's last digits.
        kept = np.sort(x.astype(np.float64), axis=0)[m - 1 : 1 - m]
        local = np.ptp(kept, axis=0) / (n - 2 * m) + 5 * U * np.abs(kept).max(axis=0)
        assert (s <= 1.001 * local + 2.0**-39 * size).all()


def test_definition_and_clamp(key):
    x = np.asarray(jax.random.cauchy(key, (101, 4, 2)), np.float64)
    middle = np.sort(x, axis=0)[10:-10].mean(axis=0)
    samples = jnp.asarray(x, jnp.float32)
    wide = TrimmedMean(0.1, -100.0, 100.0)(samples)
    np.testing.assert_allclose(wide, middle, rtol=1e-5, atol=1e-6)
    narrow = TrimmedMean(0.1, -0.01, 0.02)(samples)
    np.testing.assert_allclose(narrow, np.clip(middle, -0.01, 0.02), atol=1e-6)
    # A permutation changes nothing.
    shuffled = jax.random.permutation(jax.random.key(1), samples)
    np.testing.assert_array_equal(TrimmedMean(0.1, -100.0, 100.0)(shuffled), wide)


def test_wild_samples_count_as_far_away_or_zero():
    estimator = TrimmedMean(0.2, -10.0, 10.0)
    wild = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3.0, 1.0])
    assert estimator(wild) == pytest.approx(4 / 3)
    everything = jnp.full((9,), jnp.inf)
    assert estimator(everything) == 10.0
    assert jnp.isfinite(estimator.smooth_sensitivity(everything, 0.1))


@pytest.mark.slow
def test_trees_and_dtypes(key):
    estimator = TrimmedMean(0.2, -1.0, 1.0)
    rows = jax.random.t(key, 2.0, (11, 3))
    tree = {"a": rows, "b": (rows[:, 0], rows.astype(jnp.bfloat16))}
    for result in (estimator(tree), *estimator.with_smooth_sensitivity(tree, 0.1)):
        assert jax.tree.map(lambda x: (x.shape, x.dtype.name), result) == {
            "a": ((3,), "float32"),
            "b": (((), "float32"), ((3,), "float32")),
        }
    mean, sensitivity = estimator.with_smooth_sensitivity(tree, 0.1)
    np.testing.assert_array_equal(mean["a"], estimator(rows))
    np.testing.assert_array_equal(mean["b"][0], mean["a"][0])
    np.testing.assert_array_equal(
        sensitivity["a"], estimator.smooth_sensitivity(rows, 0.1)
    )
    assert estimator(jnp.arange(11)).dtype == jnp.float32
    with jax.enable_x64(True):
        wide = jnp.asarray(rows, jnp.float64)
        mean, sensitivity = estimator.with_smooth_sensitivity(wide, 0.1)
        assert mean.dtype == sensitivity.dtype == jnp.float64
        exact = np.clip(np.sort(np.asarray(wide), axis=0)[2:-2].mean(axis=0), -1, 1)
        np.testing.assert_allclose(mean, exact, rtol=1e-15, atol=1e-16)


@pytest.mark.quick(1)
@each_bound
def test_jit_vmap_and_hyperparameters(bound, key):
    batch = jax.random.cauchy(key, (3, 20, 3))

    def both(estimator, x):
        return estimator.with_smooth_sensitivity(x, 0.1, bound=bound)

    estimator = TrimmedMean(0.1, -1.0, 2.0)
    single = jax.jit(both)
    singles = [single(estimator, x) for x in batch]
    singles = jax.tree.map(lambda *x: jnp.stack(x), *singles)
    mapped = jax.jit(jax.vmap(both, (None, 0)))(estimator, batch)
    for x, y in zip(singles, mapped, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    wider = jax.vmap(lambda upper: both(TrimmedMean(0.1, -1.0, upper), batch[0])[1])
    sensitivity = jax.jit(wider)(jnp.array([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(sensitivity[1], singles[1][0], rtol=1e-6)
    assert (jnp.diff(sensitivity, axis=0) >= 0).all()


@pytest.mark.slow
@each_bound
def test_every_operation_by_itself_gives_the_same(bound, key):
    estimator, x = TrimmedMean(0.1, -1.0, 2.0), jax.random.cauchy(key, (20, 3))
    compiled = estimator.with_smooth_sensitivity(x, 0.1, bound=bound)
    with jax.disable_jit():
        eager = estimator.with_smooth_sensitivity(x, 0.1, bound=bound)
    for one, other in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_gradient():
    x = jnp.array([5.0, -1.0, 0.5, 2.0, 20.0])
    estimator = TrimmedMean(0.2, -10.0, 10.0)
    by_value = jax.jit(jax.grad(estimator))(x)
    np.testing.assert_allclose(by_value, [1 / 3, 0, 1 / 3, 1 / 3, 0])
    # The wide window of k = 0, x_(5) - x_(1), over three samples.
    by_sample = jax.jit(jax.grad(lambda x: estimator.smooth_sensitivity(x, 3.0)))(x)
    np.testing.assert_allclose(by_sample, [0, -1 / 3, 0, 0, 1 / 3], rtol=1e-4)
    by_upper = jax.grad(lambda upper: TrimmedMean(0.2, -10.0, upper)(100 * x))(10.0)
    assert by_upper == 1


@pytest.mark.slow
def test_exports_for_every_platform():
    estimator = TrimmedMean(0.2, -1.0, 1.0)
    for bound in BOUNDS:
        function = jax.jit(
            lambda x, bound=bound: estimator.with_smooth_sensitivity(
                x, 0.1, bound=bound
            )
        )
        platforms = ("cpu", "cuda", "tpu")
        exported = jax.export.export(function, platforms=platforms)(jnp.zeros((9, 2)))
        assert exported.platforms == platforms


def test_sensitivity_is_the_width():
    sensitivity = TrimmedMean(0.1, -1.0, 2.0).sensitivity(1000, 4)
    np.testing.assert_allclose(sensitivity, (12.0, 6.0, 3.0), rtol=1e-6)
    # The bounds in float32 are farther apart than those that were given.
    lower, upper = 1e8 - 5, 1e8 + 5
    far = TrimmedMean(0.1, lower, upper)
    reached = far(jnp.full(9, 1e9)) - far(jnp.full(9, -1e9))
    assert reached > upper - lower
    assert far.sensitivity(9, 1).linf >= reached
    assert far.smooth_sensitivity(jnp.full(9, 1e9), 1e-7) >= reached
    assert TrimmedMean(0.1, -1.0, 2.0).limit == 2.0


@pytest.mark.quick(1)
@pytest.mark.parametrize("microbatch_size", [None, 1, 4, 50])
def test_robust_grad(microbatch_size, key):
    def loss_fn(params, example):
        x, y = example
        return 0.5 * (params["w"] @ x + params["b"] - y) ** 2

    keys = jax.random.split(key)
    data = (jax.random.normal(keys[0], (21, 3)), jax.random.cauchy(keys[1], (21,)))
    params = {"w": jnp.ones(3), "b": jnp.zeros(())}
    estimator = TrimmedMean(0.2, -2.0, 2.0)
    gradients = jax.jit(jax.vmap(jax.grad(loss_fn), (None, 0)))(params, data)
    found, values = jax.jit(
        robust_grad(
            loss_fn, estimator, microbatch_size=microbatch_size, return_values=True
        )
    )(params, data)
    assert values.shape == (21,)
    expected = jax.jit(estimator)(gradients)
    for name in params:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    losses = jax.jit(jax.vmap(loss_fn, (None, 0)))(params, data)
    np.testing.assert_allclose(values, losses, rtol=1e-5)


def test_masks_and_sampled_batches_are_refused():
    estimator, rows = TrimmedMean(0.2, -1.0, 1.0), jnp.zeros((10, 2))
    assert estimator.groups_by_index
    with pytest.raises(ValueError, match="is_padding_example must be None"):
        estimator(rows, jnp.zeros(10, bool))
    with pytest.raises(ValueError, match="normalize_by must be the number of rows"):
        estimator(rows, normalize_by=9.0)
    with pytest.raises(ValueError, match="normalize_by must be the number of rows"):
        jax.jit(lambda n: estimator(rows, normalize_by=n))(10.0)
    np.testing.assert_array_equal(estimator(rows, normalize_by=10.0), [0, 0])
    with pytest.raises(ValueError, match="relation must be REPLACE_ONE"):
        estimator.sensitivity(10, 2, ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="relation must be REPLACE_ONE"):
        estimator.sampled_sensitivity(10, 2)
    with pytest.raises(ValueError, match="needs all samples at once"):
        estimator.influence(rows[0])
    with pytest.raises(ValueError, match="inner must be an estimator other than"):
        MedianOfMeans(estimator, 2)


def test_bad_sizes():
    assert TrimmedMean(0.1, -1.0, 1.0).trim_count(5) == 1
    assert TrimmedMean(0.49, -1.0, 1.0).trim_count(101) == 49
    for n in (1, 2):
        with pytest.raises(ValueError, match="num_samples must be more than the 2"):
            TrimmedMean(0.1, -1.0, 1.0)(jnp.zeros(n))


def test_bad_bound_and_traced_smoothness():
    estimator = TrimmedMean(0.1, -1.0, 1.0)
    with pytest.raises(ValueError, match="smoothness must be one concrete number"):
        jax.jit(lambda t: estimator.smooth_sensitivity(jnp.zeros(9), t))(0.1)
