"""Noise of perturbed objectives: the vertices of its proof, its price, its limits."""

import math

import numpy as np
import pytest

from dpjax.accounting import gaussian_stddev
from dpjax.accounting._gaussian import gaussian_delta
from dpjax.accounting._objective import objective_noise

LOGISTIC = {"curvature_bound": 0.25, "is_non_increasing": True}


def noise_of(epsilon=1.0, delta=1e-5, **changes):
    arguments = {"num_samples": 1000, "regularization": 0.01, "curvature_bound": 0.25}
    return objective_noise(epsilon, delta, **(arguments | changes))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-3), (4.0, 0.1)])
def test_no_parallelogram_exceeds_the_bound(epsilon, delta):
    # E max over the vertices, exactly, for every angle between the two records.
    noise = noise_of(epsilon, delta)
    jacobian = math.log1p(0.25 / (1000 * (0.01 + noise.extra_regularization)))
    nodes = np.linspace(-9, 9, 1801)
    density = np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])

    def exact(angle):
        def largest(length):
            ratio = length / noise.stddev
            return jacobian + ratio**2 / 2 + ratio * np.abs(nodes)

        first = largest(2 * math.cos(angle))
        loss = np.maximum(first[:, None], largest(2 * math.sin(angle))[None])
        return density @ np.maximum(0.0, -np.expm1(epsilon - loss)) @ density

    deltas = [exact(angle) for angle in np.linspace(0, math.pi / 4, 12)]
    assert max(deltas) <= delta * (1 + 1e-4)  # of the quadrature
    assert deltas[0] == pytest.approx(delta, rel=1e-3)  # records back to back


@pytest.mark.parametrize("is_non_increasing", [True, False])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 1000.0])
def test_calibrated_noise_spends_the_budget_and_no_more(epsilon, is_non_increasing):
    bounds = {"num_samples": 50, "curvature_bound": 0.7, "derivative_bound": 3.0}
    bounds["is_non_increasing"] = is_non_increasing
    for delta in (1e-12, 1e-5, 0.3, 0.9):
        noise = objective_noise(epsilon, delta, regularization=1e-3, **bounds)
        total = 1e-3 + noise.extra_regularization
        remaining = epsilon - math.log1p(0.7 / (50 * total))
        ratio = 6 / noise.stddev
        larger, smaller = (gaussian_delta(x, remaining) for x in (ratio, ratio / 2))
        least = ratio * math.hypot(1, ratio / 2)
        if is_non_increasing:  # equation (3), whose terms have shares of delta
            assert larger + 2 * smaller <= delta * (1 + 1e-6)
            is_tight = max(larger / 0.999, smaller / 0.0005) > delta * (1 - 1e-3)
        else:  # equation (2), and its condition
            assert 2 * larger <= delta * (1 + 1e-6)
            assert least <= remaining * (1 + 1e-9)
            is_tight = max(2 * larger / delta, least / remaining) > 1 - 1e-3
        assert is_tight or epsilon < 0.01


def test_noise_falls_with_every_slack():
    base = noise_of(**LOGISTIC).stddev
    slacks = {"epsilon": 1.1, "delta": 2e-5, "num_samples": 2000}
    slacks |= {"regularization": 0.02, "curvature_bound": 0.2}
    for name, value in slacks.items():
        assert noise_of(**LOGISTIC | {name: value}).stddev < base
    assert base < noise_of().stddev
    # No Jacobian remains at a huge regularization: nearly the Gaussian mechanism.
    gaussian = gaussian_stddev(1.0, 1e-5, sensitivity=2)
    assert gaussian < noise_of(regularization=1e9, **LOGISTIC).stddev < 1.001 * gaussian


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_a_scaled_loss_is_the_same_objective(scale):
    # s J has the losses s phi, the regularization s Lambda and the noise s eta.
    bounds = {"curvature_bound": 0.25 * scale, "derivative_bound": scale}
    scaled = noise_of(regularization=0.01 * scale, **bounds)
    assert scaled.stddev == pytest.approx(scale * noise_of().stddev)


def test_extra_regularization_takes_half_of_epsilon():
    total = 1e-4 + noise_of(epsilon=0.5, regularization=1e-4).extra_regularization
    assert math.log1p(0.25 / (1000 * total)) == pytest.approx(0.25)
    assert noise_of(epsilon=0.5, regularization=1e-2).extra_regularization == 0
    # At any epsilon the objective stays strongly convex.
    assert noise_of(epsilon=1e4, regularization=0.0).extra_regularization > 1e-6
