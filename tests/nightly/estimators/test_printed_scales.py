"""Thresholds and scales as papers print them."""

import math

import numpy as np

from benchmarks.figures import printed

SETTING = dict(num_samples=10_000, epsilon=1.0, delta=1e-5)


def test_printed_thresholds():
    single = printed.threshold(2.0, moment_order=2.0, **SETTING)
    expected = 2.0 * 10_000 / math.log(100) / math.sqrt(math.log(1.25e5))
    np.testing.assert_allclose(single, math.sqrt(expected))
    sizes = {"moment_order": 1.5, "num_coordinates": 9, "num_steps": 16}
    many = printed.threshold(2.0, **sizes, **SETTING)
    np.testing.assert_allclose(many, (2e4 / (27 * 4)) ** (1 / 1.5))


def test_printed_scale_is_lemma_3():
    estimator = printed.smoothed_truncation(4.0, 1000, failure_prob=0.05)
    np.testing.assert_allclose(
        estimator.scale, math.sqrt(1000 * 4.0 / (2 * math.log(20)))
    )
