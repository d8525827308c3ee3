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
CASES = [
    (
        datasets.Normal(location=1.0, scale=5**0.5),
        *(stats.norm(1, scale) for scale in (5**0.5, 5**0.5 * 1.2)),
    ),
    (
        datasets.LogNormal(location=1.0, scale=1.0),
        *(stats.lognorm(1, scale=scale) for scale in (math.e, math.e * 1.2)),
    ),
    (datasets.StudentT(3.0), stats.t(3), stats.t(3, scale=1.2)),
    (datasets.StudentT(0.3), stats.t(0.3), stats.t(0.3, scale=1.4)),  # without a mean
    (datasets.StudentT(1e4), stats.norm(), stats.norm(scale=1.2)),
    (
        datasets.Pareto(tail_index=1.5, scale=2.0),
        *(stats.pareto(index, scale=2) for index in (1.5, 1.8)),
    ),
    (
        datasets.LogNormal(location=1.0, scale=1.0).centered(),
        *(
            stats.lognorm(1, loc=shift - math.exp(1.5), scale=math.e)
            for shift in (0, 0.5)
        ),
    ),
]


@pytest.mark.parametrize(("law", "oracle", "wrong"), CASES, ids=lambda x: repr(x)[:30])
def test_samples_follow_the_law(law, oracle, wrong, key):
    samples = law.sample(key, (NUM_SAMPLES,))
    assert samples.dtype == jnp.float32
    again = law.sample(jax.random.clone(key), (NUM_SAMPLES,))
    np.testing.assert_array_equal(samples, again)
    samples = np.asarray(samples, np.float64)
    assert stats.kstest(samples, oracle.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(samples, wrong.cdf).pvalue < 1e-9
    expected = oracle.mean() if math.isfinite(law.mean) else law.mean
    assert law.mean == pytest.approx(expected, abs=1e-9, nan_ok=True)
    twin = eval(repr(law), vars(datasets).copy())
    assert (twin, hash(twin)) == (law, hash(law))


def test_laws_of_another_kind_or_scale_differ():
    assert datasets.Normal() != datasets.LogNormal()
    assert datasets.Normal() != datasets.Normal(scale=2.0)


def test_samples_are_finite_where_the_law_leaves_float32(key):
    samples = datasets.LogNormal(scale=100.0).sample(key, (200_000,))
    assert bool(jnp.all(jnp.isfinite(samples)))
    assert float(samples.max()) == float(jnp.finfo(jnp.float32).max)


def test_no_centering_without_a_mean():
    for law, mean in (
        (datasets.Pareto(tail_index=1.0), math.inf),
        (datasets.LogNormal(scale=100.0), math.inf),
        (datasets.StudentT(degrees_of_freedom=1.0), math.nan),
    ):
        assert law.mean == pytest.approx(mean, nan_ok=True)
        with pytest.raises(ValueError, match="law must be"):
            law.centered()
