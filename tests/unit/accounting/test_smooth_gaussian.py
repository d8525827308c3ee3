"""Gaussian noise on a smooth sensitivity: against noncentral chi-squares and draws."""

import math

import numpy as np
import pytest
import scipy.stats

from dpjax.accounting import _smooth, gaussian_stddev
from dpjax.accounting._smooth import (
    largest_smoothness,
    smooth_gaussian_multiplier,
)

SETTINGS = [(0.1, 1e-6, 10), (0.1, 1e-2, 1), (1.0, 1e-6, 100)]
SETTINGS += [(1.0, 1e-2, 10), (5.0, 1e-6, 1), (5.0, 1e-2, 100)]
each = pytest.mark.parametrize(("epsilon", "delta", "d"), SETTINGS)


def ball_delta(epsilon, log_ratio, d, shift):
    """D(r, s) as two noncentral chi-square probabilities of a ball or its outside."""
    square = math.exp(2 * log_ratio)
    width = -math.expm1(2 * log_ratio)  # 1 - r^2
    level = 2 * (epsilon - d * log_ratio) + shift**2 / width
    level *= square / width
    if level <= 0:
        return 0.0
    law = scipy.stats.ncx2.sf if log_ratio < 0 else scipy.stats.ncx2.cdf
    of_p = law(level, d, (shift / width) ** 2)
    of_q = law(level / square, d, square * (shift / width) ** 2)
    return of_p - math.exp(epsilon) * of_q


def largest_delta(epsilon, d, smoothness, multiplier):
    # 60 ratios, the ends included. Beside 1 the chi-squares lose their digits.
    sizes = smoothness * np.linspace(1.0, 0.1, 30)
    return max(
        ball_delta(epsilon, x, d, min(1.0, math.exp(x)) / multiplier)
        for x in np.concatenate([-sizes, sizes])
    )


@each
def test_multiplier_is_enough_and_tight(epsilon, delta, d):
    limit = largest_smoothness(epsilon, delta, num_coordinates=d)
    for share in (0.3, 0.6, 0.9):
        setting = {"smoothness": share * limit, "num_coordinates": d}
        multiplier = smooth_gaussian_multiplier(epsilon, delta, **setting)
        assert largest_delta(epsilon, d, share * limit, multiplier) <= delta
        # One per cent is given away; three per cent are missed.
        assert largest_delta(epsilon, d, share * limit, multiplier / 1.03) > delta


def test_pieces_cover_where_an_end_is_not_the_worst():
    # At delta = 1/2 plain Gaussian noise, r = 1, asks for the most.
    multiplier = smooth_gaussian_multiplier(1.0, 0.5, smoothness=0.5, num_coordinates=1)
    for end, shift in ((-0.5, math.exp(-0.5)), (0.5, 1.0)):
        assert _smooth._delta(1.0, end, 1, shift / multiplier) < 0.49
    assert multiplier > gaussian_stddev(1.0, 0.5, sensitivity=1.0)


@pytest.mark.parametrize("log_ratio", [-0.3, -0.05, 0.05, 0.3])
@pytest.mark.parametrize("d", [1, 2, 7, 300])
def test_quadrature(log_ratio, d):
    for epsilon, shift in ((0.2, 0.1), (0.2, 1.0), (1.0, 0.5), (4.0, 2.0), (4.0, 0.0)):
        expected = ball_delta(epsilon, log_ratio, d, shift)
        found = _smooth._delta(epsilon, log_ratio, d, shift)
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-13)


@pytest.mark.parametrize("far", [-0.4, 0.4])
def test_the_two_facts_about_pairs(far):
    for d in (1, 5, 40):
        for near in far * np.array([0.9, 0.5, 0.1]):
            alpha = math.sqrt(math.expm1(2 * near) / math.expm1(2 * far))
            deltas = [
                (
                    _smooth._delta(0.5, near, d, shift),
                    _smooth._delta(0.5, far, d, shift / alpha),
                )
                for shift in (0.0, 0.2, 0.5, 1.0, 2.0)
            ]
            assert all(one <= other * (1 + 1e-9) for one, other in deltas)  # (b)
            assert np.all(np.diff([one for one, _ in deltas]) >= -1e-12)  # (a)


@each
def test_limits_in_smoothness(epsilon, delta, d):
    limit = largest_smoothness(epsilon, delta, num_coordinates=d)
    multipliers = [
        smooth_gaussian_multiplier(
            epsilon, delta, smoothness=share * limit, num_coordinates=d
        )
        for share in (1e-3, 0.1, 0.5, 0.9, 0.99, 1.01, 100.0)
    ]
    assert np.all(np.diff(multipliers[:-1]) > 0)
    plain = gaussian_stddev(epsilon, delta, sensitivity=1.0)
    assert plain < multipliers[0] < 1.03 * plain
    assert multipliers[-3] > 5 * plain
    assert multipliers[-2:] == [math.inf, math.inf]
    tail = _smooth._largest_scale_delta(epsilon, limit, d)
    assert tail == pytest.approx(delta, rel=1e-6)


@each
def test_printed_constants_hold_and_are_loose(epsilon, delta, d):
    smoothness = epsilon / (4 * (d + math.log(2 / delta)))
    printed = 5 * math.sqrt(2 * math.log(2 / delta)) / epsilon
    setting = {"smoothness": smoothness, "num_coordinates": d}
    tight = smooth_gaussian_multiplier(epsilon, delta, **setting)
    assert 3.0 < printed / tight < 20.0


def test_huge_epsilons():
    setting = {"smoothness": 0.5, "num_coordinates": 3}
    multipliers = [
        smooth_gaussian_multiplier(epsilon, 1e-6, **setting)
        for epsilon in (50.0, 300.0, 1e6)
    ]
    assert multipliers[0] > multipliers[1] == multipliers[2] > 0
