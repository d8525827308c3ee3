"""Numbers of the papers' figures: the optimum, and laws beside `dpjax.datasets`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from benchmarks.figures import laws, printed
from benchmarks.figures.panel import Setting
from benchmarks.figures.problems import PROBLEMS, measure, optimum
from dpjax import datasets

FALSE_ALARM = 1e-4  # the key is fixed


def test_printed_thresholds_and_scales():
    setting = {"num_samples": 10_000, "epsilon": 1.0, "delta": 1e-5}
    single = printed.threshold(2.0, moment_order=2.0, **setting)
    expected = 2.0 * 10_000 / math.log(100) / math.sqrt(math.log(1.25e5))
    np.testing.assert_allclose(single, math.sqrt(expected))
    sizes = {"moment_order": 1.5, "num_coordinates": 9, "num_steps": 16}
    many = printed.threshold(2.0, **sizes, **setting)
    np.testing.assert_allclose(many, (2e4 / (27 * 4)) ** (1 / 1.5))
    # Lemma 3.
    scale = printed.smoothed_truncation(4.0, 1000, failure_prob=0.05).scale
    np.testing.assert_allclose(scale, math.sqrt(1000 * 4.0 / (2 * math.log(20))))


@pytest.mark.parametrize("problem", ["logistic, in the unit ball", "RAND HIE"])
def test_nothing_is_better_than_the_optimum(problem):
    # With a penalty, or with a ball that holds the weights back.
    kind = PROBLEMS[problem]
    sample = kind.draw(jax.random.key(0), Setting(num_samples=2_000, num_features=5))
    best = optimum(kind, sample)
    risk = jax.vmap(kind.penalized, (None, 0))
    directions = jax.random.normal(jax.random.key(1), (30, *best.shape))
    for i, direction in enumerate(directions):
        params = kind.project(best + 0.1 * 0.5**i * direction)
        excess = measure("excess risk", kind, params, best, sample)
        assert excess >= -1e-7
        difference = risk(params, sample.data) - risk(best, sample.data)
        assert excess == pytest.approx(float(difference.mean()), rel=1e-3, abs=1e-7)
    assert measure("excess risk", kind, best, best, sample) == 0


# Each law with its oracle, and an oracle of a wrong parameter.
LAWS = {
    laws.Laplace(location=-1.0, scale=5.0): (
        stats.laplace(-1, 5),
        stats.laplace(-1, 6),
    ),
    laws.Logistic(scale=0.5): (stats.logistic(0, 0.5), stats.logistic(0, 0.6)),
    laws.LogLogistic(location=0.2, scale=0.2): (
        stats.fisk(5, scale=math.exp(0.2)),
        stats.fisk(5, scale=math.exp(0.2) * 1.2),
    ),
    laws.LogLogistic(scale=1 / 0.1): (stats.fisk(0.1), stats.fisk(0.12)),
    laws.LogGamma(concentration=0.5): (stats.loggamma(0.5), stats.loggamma(0.6)),
}


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_laws_of_the_figures(law, key):
    oracle, wrong = LAWS[law]
    samples = np.asarray(law.sample(key, (20_000,)), np.float64)
    assert stats.kstest(samples, oracle.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(samples, wrong.cdf).pvalue < 1e-9
    mean = oracle.mean() if np.isfinite(oracle.mean()) else math.inf
    assert law.mean == pytest.approx(mean, rel=1e-6)
    twin = eval(repr(law), vars(laws).copy())
    assert twin == law
    assert hash(twin) == hash(law)
    again = jax.jit(twin.sample, static_argnums=1)(jax.random.clone(key), (20_000,))
    np.testing.assert_allclose(again, samples, rtol=1e-5, atol=1e-5)
    assert again.dtype == "float32"


def test_a_law_without_a_mean_or_with_a_bad_parameter_is_refused():
    assert laws.LogLogistic(scale=1.0).mean == math.inf
    with pytest.raises(ValueError, match="law must be"):
        laws.LogLogistic(scale=1.0).centered()
    with pytest.raises(ValueError, match="concentration must be"):
        laws.LogGamma(concentration=-1.0)


def test_label_noise_of_paper_001_is_centred_log_logistic(key):
    # P(y = +1) = P(<w*, x> + e < 0); with w* = 0 it is P(e < 0), the law at its mean.
    problem = datasets.logistic_model(
        key,
        num_samples=40_000,
        num_features=1,
        noise_law=laws.LogLogistic(location=0.2, scale=0.2).centered(),
        sign=-1,
        params_fn=lambda key, num_features: jnp.zeros(num_features),
    )
    law = stats.fisk(5, scale=math.exp(0.2))
    positives = int((problem.targets > 0).sum())
    probability = float(law.cdf(law.mean()))
    assert stats.binomtest(positives, 40_000, probability).pvalue > FALSE_ALARM
    assert stats.binomtest(positives, 40_000, 0.5).pvalue < 1e-9
