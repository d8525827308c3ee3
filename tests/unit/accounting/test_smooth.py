"""Noise for smooth sensitivities: its cost against quadrature, and its calibration."""

import math
from functools import partial

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from dpjax.accounting import _smooth, gaussian_stddev
from dpjax.accounting._smooth import smooth_gaussian_multiplier

MECHANISMS = ["laplace_log_normal", "arsinh_normal"]
each = pytest.mark.parametrize("mechanism", MECHANISMS)
ORDERS = [1.1, 1.5, 2, 4, 8, 16, 32, 64]
COSTS = [(0.05, 0.5, 0.5), (0.02, 0.2, 0.3), (0.2, 0.5, 1.0), (0.3, 0.05, 0.5)]


def cost(mechanism, s, t, sigma):
    """The epsilon of a number, by the equations of the mechanisms' docstrings."""
    if mechanism == "laplace_log_normal":
        return s * math.exp(1.5 * sigma**2) + t / sigma
    change = math.sqrt(t * (t / sigma**2 + 1 / sigma + 2))
    return s * (4 + 3 * sigma**2) / (6 * sigma) + change


def log_density(z, sigma, mechanism, reach):
    """Log density of Z; `reach` is how many standard deviations of Y may matter."""
    if mechanism == "arsinh_normal":
        # arcsinh loses the digits of a large z that stands in logarithms nowhere here.
        y = np.arcsinh(sigma * z) / sigma
        return -(y**2) / 2 - np.log1p((sigma * z) ** 2) / 2 - math.log(2 * math.pi) / 2
    y = np.arange(-reach, reach + 40, 0.04)  # beyond the z, or their tail would end
    log_rate = -sigma * y
    parts = log_rate - np.abs(z)[:, None] * np.exp(log_rate) - y**2 / 2
    normalizer = math.log(2) + math.log(2 * math.pi) / 2 - math.log(0.04)
    return scipy.special.logsumexp(parts, axis=1) - normalizer


def renyi_divergences(t, s, sigma, mechanism):
    """D_a(Z || r Z + c) for each order, r = e^t and e^-t, c as large as it may be."""
    reach = max(ORDERS) * t / sigma + 12
    grid = np.exp(np.arange(-14, sigma * reach + 5, 0.02))
    divergences = []
    for scale in (math.exp(t), math.exp(-t)):
        shift = s * min(1, scale)
        z = np.unique(np.r_[0.0, grid, -grid, grid + shift, shift - grid])
        p = log_density(z, sigma, mechanism, reach)
        q = log_density((z - shift) / scale, sigma, mechanism, reach) - math.log(scale)
        gaps = np.diff(z)
        steps = np.log(np.r_[gaps[0], (z[2:] - z[:-2]) / 2, gaps[-1]])
        for density in (p, q):
            assert abs(scipy.special.logsumexp(density + steps)) < 1e-4
        sums = [scipy.special.logsumexp(a * p + (1 - a) * q + steps) for a in ORDERS]
        divergences.append(sums / (np.array(ORDERS) - 1))
    return np.max(divergences, axis=0)


@pytest.mark.quick(3)
@pytest.mark.parametrize(("t", "s", "sigma"), [(1e-3, 1, 1), *COSTS])
@each
def test_cost_covers_the_renyi_divergence(mechanism, t, s, sigma):
    rho = cost(mechanism, s, t, sigma) ** 2 / 2
    needed = renyi_divergences(t, s, sigma, mechanism) / ORDERS
    assert (needed <= rho + 1e-6).all()
    # The quadrature is of the right size: an eighth of epsilon would not do.
    assert needed.max() > rho / 64


def test_the_quadrature_knows_the_gaussian():
    # A tiny sigma makes arsinh-normal noise normal; D_a of a shift s is a s^2 / 2.
    needed = renyi_divergences(1e-9, 0.3, 1e-3, "arsinh_normal") / ORDERS
    np.testing.assert_allclose(needed, 0.3**2 / 2, rtol=1e-2)


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0])
def test_the_slopes_of_the_log_densities(sigma):
    z = np.concatenate([[0], np.exp(np.arange(-12, 8, 0.01))])
    for mechanism in MECHANISMS:
        slope = np.abs(np.diff(log_density(z, sigma, mechanism, 40)) / np.diff(z)).max()
        bound = cost(mechanism, 1.0, 0.0, sigma)
        assert slope <= bound * (1 + 1e-4)
        assert slope > 0.6 * bound
        assert mechanism == "arsinh_normal" or slope == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.5, 10.0])
@pytest.mark.parametrize("trim_count", [1, 20])
def test_a_calibration_spends_its_rho_and_no_more(rho, trim_count):
    law = _smooth.calibrate_smooth_noise(rho, num_samples=50, trim_count=trim_count)
    multipliers = np.array([law.multiplier, 2 * law.multiplier])
    spent = cost(MECHANISMS[0], 1 / multipliers, law.smoothness, law.sigma) ** 2 / 2
    assert spent[1] < spent[0] <= rho
    assert spent[0] == pytest.approx(rho, rel=1e-7)


# -- Gaussian noise: against noncentral chi-squares ------------------------------------
SETTINGS = [(0.1, 1e-6, 10), (0.1, 1e-2, 1), (1.0, 1e-6, 100)]
SETTINGS += [(1.0, 1e-2, 10), (5.0, 1e-6, 1), (5.0, 1e-2, 100)]
each_setting = pytest.mark.parametrize(("epsilon", "delta", "d"), SETTINGS)


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


@each_setting
def test_multiplier_is_enough_and_tight(epsilon, delta, d):
    limit = _smooth.largest_smoothness(epsilon, delta, num_coordinates=d)
    for share in (0.3, 0.6, 0.9):
        setting = {"smoothness": share * limit, "num_coordinates": d}
        multiplier = smooth_gaussian_multiplier(epsilon, delta, **setting)
        assert largest_delta(epsilon, d, share * limit, multiplier) <= delta
        # One percent is given away; three percent are missed.
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
        computed = _smooth._delta(epsilon, log_ratio, d, shift)
        assert computed == pytest.approx(expected, rel=1e-7, abs=1e-13)


@pytest.mark.parametrize("far", [-0.4, 0.4])
def test_the_two_facts_about_pairs(far):
    for d in (1, 5, 40):
        for near in far * np.array([0.9, 0.5, 0.1]):
            alpha = math.sqrt(math.expm1(2 * near) / math.expm1(2 * far))
            shifts = np.array([0.0, 0.2, 0.5, 1.0, 2.0])
            of_near = [_smooth._delta(0.5, near, d, x) for x in shifts]
            of_far = [_smooth._delta(0.5, far, d, x) for x in shifts / alpha]
            assert np.all(of_near <= np.array(of_far) * (1 + 1e-9))  # (b)
            assert np.all(np.diff(of_near) >= -1e-12)  # (a)


@each_setting
def test_the_multiplier_rises_to_infinity_at_the_largest_smoothness(epsilon, delta, d):
    limit = _smooth.largest_smoothness(epsilon, delta, num_coordinates=d)
    cost = partial(smooth_gaussian_multiplier, epsilon, delta, num_coordinates=d)
    shares = (1e-3, 0.1, 0.5, 0.9, 0.99, 1.01, 100.0)
    multipliers = [cost(smoothness=share * limit) for share in shares]
    assert np.all(np.diff(multipliers[:-1]) > 0)
    plain = gaussian_stddev(epsilon, delta, sensitivity=1.0)
    assert plain < multipliers[0] < 1.03 * plain
    assert multipliers[-3] > 5 * plain
    assert multipliers[-2:] == [math.inf, math.inf]
    tail = _smooth._largest_scale_delta(epsilon, limit, d)
    assert tail == pytest.approx(delta, rel=1e-6)


@each_setting
def test_printed_constants_hold_and_are_loose(epsilon, delta, d):
    smoothness = epsilon / (4 * (d + math.log(2 / delta)))
    printed = 5 * math.sqrt(2 * math.log(2 / delta)) / epsilon
    setting = {"smoothness": smoothness, "num_coordinates": d}
    assert 3.0 < printed / smooth_gaussian_multiplier(epsilon, delta, **setting) < 20.0


def test_multipliers_of_huge_epsilons_have_a_floor():
    cost = partial(smooth_gaussian_multiplier, delta=1e-6, smoothness=0.5)
    multipliers = [cost(x, num_coordinates=3) for x in (50.0, 300.0, 1e6)]
    assert multipliers[0] > multipliers[1] == multipliers[2] > 0
