"""Batches of millions of rows: they take gigabytes."""

import jax
import numpy as np

from dpjax.estimators import Clipping


def test_a_traced_divisor_of_a_million_is_covered():
    num_coordinates, divisor, num_rows = 256, 953_250, 7_654_597
    mean = jax.jit(lambda x, mask, n: Clipping(1.0)(x, mask, normalize_by=n))
    samples = np.ones((num_rows, num_coordinates), np.float32)
    mask = np.arange(num_rows) >= 7_645_072
    first = np.asarray(mean(samples, mask, divisor), np.float64)
    samples[0] = -1
    gap = first - np.asarray(mean(samples, mask, divisor), np.float64)
    stated = Clipping(1.0).sensitivity(divisor, num_coordinates)
    assert np.sqrt((gap**2).sum()) <= stated.l2
