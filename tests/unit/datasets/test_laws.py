"""Every law against SciPy: the right parameters are accepted, wrong ones rejected.

Kolmogorov-Smirnov with 20,000 samples and a fixed key. A right law is rejected where
p < 1e-4, so a fresh key would fail one test in ten thousand; a wrong one must reach
p < 1e-9.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import datasets

NUM_SAMPLES = 20_000
FALSE_ALARM = 1e-4

# Law, its oracle, and an oracle with a wrong parameter.
CASES = {
    "normal": (
        datasets.Normal(location=1.0, scale=5**0.5),
        stats.norm(1, 5**0.5),
        stats.norm(1, 5**0.5 * 1.2),
    ),
    "log_normal": (
        datasets.LogNormal(location=1.0, scale=1.0),
        stats.lognorm(1, scale=math.e),
        stats.lognorm(1, scale=math.e * 1.2),
    ),
    "student_t": (
        datasets.StudentT(degrees_of_freedom=3.0),
        stats.t(3),
        stats.t(3, scale=1.2),
    ),
    "student_t_without_mean": (
        datasets.StudentT(degrees_of_freedom=0.3),
        stats.t(0.3),
        stats.t(0.3, scale=1.4),
    ),
    "student_t_near_normal": (
        datasets.StudentT(degrees_of_freedom=1e4),
        stats.norm(),
        stats.norm(scale=1.2),
    ),
    "pareto": (
        datasets.Pareto(tail_index=1.5, scale=2.0),
        stats.pareto(1.5, scale=2),
        stats.pareto(1.8, scale=2),
    ),
    "centered": (
        datasets.LogNormal(location=1.0, scale=1.0).centered(),
        stats.lognorm(1, loc=-math.exp(1.5), scale=math.e),
        stats.lognorm(1, loc=-math.exp(1.5) + 0.5, scale=math.e),
    ),
}
cases = pytest.mark.parametrize(
    ("law", "oracle", "wrong"), CASES.values(), ids=CASES.keys()
)


@pytest.mark.quick(3)
@cases
def test_samples_follow_the_law(law, oracle, wrong, key):
    samples = np.asarray(law.sample(key, (NUM_SAMPLES,)), np.float64)
    assert stats.kstest(samples, oracle.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(samples, wrong.cdf).pvalue < 1e-9


@cases
def test_mean_is_the_closed_form(law, oracle, wrong, key):
    expected = oracle.mean() if math.isfinite(law.mean) else law.mean
    assert law.mean == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.quick(1)
@cases
def test_shape_dtype_determinism_and_jit(law, oracle, wrong, key):
    samples = law.sample(key, (3, 4))
    again = law.sample(jax.random.clone(key), (3, 4))
    draw = jax.jit(lambda key: law.sample(key, (3, 4)))
    assert samples.shape == (3, 4)
    assert samples.dtype == jnp.float32
    assert np.array_equal(samples, again)
    np.testing.assert_allclose(draw(jax.random.clone(key)), samples, rtol=1e-5)


@cases
def test_laws_compare_and_hash_by_their_parameters(law, oracle, wrong):
    twin = eval(repr(law), vars(datasets).copy())
    assert twin == law
    assert hash(twin) == hash(law)


def test_laws_of_another_kind_or_scale_differ():
    assert datasets.Normal() != datasets.LogNormal()
    assert datasets.Normal() != datasets.Normal(scale=2.0)


@pytest.mark.slow
def test_float64_under_x64(key):
    with jax.enable_x64(True):
        assert datasets.Pareto(0.5).sample(key, (2,)).dtype == jnp.float64


def test_samples_are_finite_where_the_law_leaves_float32(key):
    samples = datasets.LogNormal(scale=100.0).sample(key, (200_000,))
    assert bool(jnp.all(jnp.isfinite(samples)))
    assert float(samples.max()) == float(jnp.finfo(jnp.float32).max)


@pytest.mark.parametrize(
    ("law", "mean"),
    [
        (datasets.Pareto(tail_index=1.0), math.inf),
        (datasets.LogNormal(scale=100.0), math.inf),
        (datasets.StudentT(degrees_of_freedom=1.0), math.nan),
    ],
)
def test_no_centring_without_a_mean(law, mean):
    assert law.mean == pytest.approx(mean, nan_ok=True)
    with pytest.raises(ValueError, match="law must be"):
        law.centered()
