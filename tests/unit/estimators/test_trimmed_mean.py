"""The trimmed mean: its smooth sensitivity against brute force, and its transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import ADD_OR_REMOVE_ONE
from dpjax.estimators import MedianOfMeans, TrimmedMean
from tests.unit.refusals import refused

# A grid of values stands for the line: its ends lie beyond all others, as do ±inf.
GRID = np.array([-50.0, -1.0, 0.0, 0.5, 50.0], np.float32)


@pytest.mark.quick(3)
@pytest.mark.parametrize(("n", "fraction"), [(3, 0.3), (4, 0.3), (5, 0.25), (5, 0.45)])
@pytest.mark.parametrize(("width", "t"), [(8.0, 0.2), (8.0, 1.5), (1e6, 4.0)])
def test_exact_smooth_sensitivity_is_that_of_brute_force(n, fraction, width, t):
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


def test_constant_samples_have_the_least_sensitivity():
    # Constant samples: nothing but e^(-mt) (b - a), and 2^-40 (b - a) in the end.
    estimator = TrimmedMean(0.25, -1.0, 2.0)
    for n, t in [(100, 0.1), (100, 100.0), (4, 1e-7)]:
        expected = 3 * max(np.exp(-(n // 4) * t), 2.0**-40)
        for bound in ("fast", "exact"):
            least = estimator.smooth_sensitivity(jnp.zeros(n), t, bound=bound)
            np.testing.assert_allclose(least, expected, rtol=1e-4)
            assert least >= expected


def test_a_trimmed_mean_is_its_definition_within_its_bounds(key):
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
    # Wild samples count as far away, or as zero.
    estimator = TrimmedMean(0.2, -10.0, 10.0)
    wild = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3.0, 1.0])
    assert estimator(wild) == pytest.approx(4 / 3)
    everything = jnp.full((9,), jnp.inf)
    assert estimator(everything) == 10.0
    assert jnp.isfinite(estimator.smooth_sensitivity(everything, 0.1))


def test_leaves_are_trimmed_by_themselves_in_their_own_precision(key):
    estimator = TrimmedMean(0.2, -1.0, 1.0)
    rows = jax.random.t(key, 2.0, (11, 3))
    tree = {"a": rows, "b": (rows[:, 0], rows.astype(jnp.bfloat16))}
    mean, sensitivity = estimator.with_smooth_sensitivity(tree, 0.1)
    np.testing.assert_array_equal(mean["a"], estimator(rows))
    np.testing.assert_array_equal(mean["b"][0], mean["a"][0])
    alone = estimator.smooth_sensitivity(rows, 0.1)
    np.testing.assert_array_equal(sensitivity["a"], alone)
    assert mean["b"][1].dtype == sensitivity["b"][1].dtype == jnp.float32
    with jax.enable_x64(True):
        wide = jnp.asarray(rows, jnp.float64)
        mean, sensitivity = estimator.with_smooth_sensitivity(wide, 0.1)
        assert mean.dtype == sensitivity.dtype == jnp.float64
        exact = np.clip(np.sort(np.asarray(wide), axis=0)[2:-2].mean(axis=0), -1, 1)
        np.testing.assert_allclose(mean, exact, rtol=1e-15, atol=1e-16)


def test_derivatives_are_those_of_the_kept_samples():
    x = jnp.array([5.0, -1.0, 0.5, 2.0, 20.0])
    estimator = TrimmedMean(0.2, -10.0, 10.0)
    by_value = jax.jit(jax.grad(estimator))(x)
    np.testing.assert_allclose(by_value, [1 / 3, 0, 1 / 3, 1 / 3, 0])
    # The wide window of k = 0, x_(5) - x_(1), over three samples.
    by_sample = jax.jit(jax.grad(lambda x: estimator.smooth_sensitivity(x, 3.0)))(x)
    np.testing.assert_allclose(by_sample, [0, -1 / 3, 0, 0, 1 / 3], rtol=1e-4)
    assert jax.grad(lambda upper: TrimmedMean(0.2, -10.0, upper)(100 * x))(10.0) == 1


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
    assert TRIMMED.groups_by_index
    assert TrimmedMean(0.1, -1.0, 1.0).trim_count(5) == 1


TRIMMED, ROWS = TrimmedMean(0.2, -1.0, 1.0), jnp.zeros((10, 2))
test_what_a_trimmed_mean_has_not_is_refused = refused(
    lambda call: call(),
    (lambda: TRIMMED(ROWS, jnp.zeros(10, bool)), "is_padding_example must be None"),
    (lambda: TRIMMED.sensitivity(10, 2, ADD_OR_REMOVE_ONE), "relation must be REPLACE"),
    (lambda: TRIMMED.sampled_sensitivity(10, 2), "relation must be REPLACE_ONE"),
    (lambda: TRIMMED.influence(ROWS[0]), "not all samples at once"),
    (lambda: MedianOfMeans(TRIMMED, 2), "inner must be an estimator other than"),
    (lambda: TRIMMED(jnp.zeros(1)), "num_samples must be more than the 2"),
    (lambda: TRIMMED(jnp.zeros(2)), "num_samples must be more than the 2"),
    (
        lambda: jax.jit(lambda t: TRIMMED.smooth_sensitivity(ROWS, t))(0.1),
        "smoothness must be one concrete number",
    ),
)
