"""Noise for smooth sensitivities: its cost against quadrature, and its calibration."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from dpjax.accounting import smooth_noise_multiplier
from dpjax.accounting._smooth import calibrate_smooth_noise, smooth_noise_rho

MECHANISMS = ["laplace_log_normal", "arsinh_normal"]
each = pytest.mark.parametrize("mechanism", MECHANISMS)
ORDERS = [1.1, 1.5, 2, 4, 8, 16, 32, 64]


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
        z = np.unique(
            np.concatenate([0 * grid[:1], grid, -grid, grid + shift, shift - grid])
        )
        p = log_density(z, sigma, mechanism, reach)
        q = log_density((z - shift) / scale, sigma, mechanism, reach) - math.log(scale)
        steps = np.log(
            np.concatenate([[np.diff(z)[0]], (z[2:] - z[:-2]) / 2, [np.diff(z)[-1]]])
        )
        for density in (p, q):
            assert abs(scipy.special.logsumexp(density + steps)) < 1e-4
        sums = [scipy.special.logsumexp(a * p + (1 - a) * q + steps) for a in ORDERS]
        divergences.append(sums / (np.array(ORDERS) - 1))
    return np.max(divergences, axis=0)


@pytest.mark.parametrize(
    ("mechanism", "t", "s", "sigma"),
    [
        ("laplace_log_normal", 1e-3, 1, 1),
        ("arsinh_normal", 0.3, 0.05, 0.5),
        ("arsinh_normal", 0.02, 0.2, 0.3),
    ],
)
def test_cost_covers_the_renyi_divergence(mechanism, t, s, sigma):
    check_cost(mechanism, t, s, sigma)


def check_cost(mechanism, t, s, sigma):
    rho = smooth_noise_rho(1 / s, smoothness=t, sigma=sigma, mechanism=mechanism)
    needed = renyi_divergences(t, s, sigma, mechanism) / ORDERS
    assert (needed <= rho + 1e-6).all()
    # The quadrature is of the right size: an eighth of epsilon would not do.
    assert needed.max() > rho / 64


def test_the_quadrature_knows_the_gaussian():
    # A tiny sigma makes arsinh-normal noise normal; D_a of a shift s is a s^2 / 2.
    found = renyi_divergences(1e-9, 0.3, 1e-3, "arsinh_normal") / ORDERS
    np.testing.assert_allclose(found, 0.3**2 / 2, rtol=1e-2)


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0])
def test_the_slopes_of_the_log_densities(sigma):
    z = np.concatenate([[0], np.exp(np.arange(-12, 8, 0.01))])
    for mechanism in MECHANISMS:
        slope = np.abs(np.diff(log_density(z, sigma, mechanism, 40)) / np.diff(z)).max()
        # At a smoothness of nothing, epsilon = slope · s.
        rho = smooth_noise_rho(1.0, smoothness=1e-12, sigma=sigma, mechanism=mechanism)
        bound = math.sqrt(2 * rho)
        assert slope <= bound * (1 + 1e-4)
        assert slope > 0.6 * bound
        if mechanism == "laplace_log_normal":
            assert slope == pytest.approx(math.exp(1.5 * sigma**2), rel=1e-3)


@each
@pytest.mark.parametrize("sigma", [0.3, 0.7, 2.0])
def test_multiplier_and_rho_are_inverse(mechanism, sigma):
    for rho, share in itertools.product((1e-6, 1e-3, 0.5, 10.0), (1e-6, 0.1, 0.9)):
        t = share * math.sqrt(2 * rho) * sigma
        setting = {"smoothness": t, "sigma": sigma, "mechanism": mechanism}
        multiplier = smooth_noise_multiplier(rho, **setting)
        if multiplier == math.inf:
            # Not even silence is private enough at this smoothness.
            assert mechanism == "arsinh_normal"
            assert smooth_noise_rho(1e12, **setting) >= rho
            continue
        back = smooth_noise_rho(multiplier, **setting)
        assert back <= rho
        assert back == pytest.approx(rho, rel=1e-7)
        assert smooth_noise_multiplier(2 * rho, **setting) < multiplier
        assert smooth_noise_rho(2 * multiplier, **setting) < back


def stddev(multiplier, sigma, mechanism):
    if mechanism == "laplace_log_normal":
        return multiplier * math.sqrt(2) * math.exp(sigma**2)
    return multiplier * math.sqrt(math.expm1(2 * sigma**2) / 2) / sigma


def noise_per_width(rho, t, sigma, mechanism, *, n, m, spread):
    """Standard deviation of the noise in units of upper - lower."""
    multiplier = smooth_noise_multiplier(
        rho, smoothness=t, sigma=sigma, mechanism=mechanism
    )
    sensitivity = max(spread / (n - 2 * m), math.exp(-m * t))
    return sensitivity * stddev(multiplier, sigma, mechanism)


@each
@pytest.mark.parametrize(
    ("rho", "n", "m", "spread"),
    [(1e-2, 10_000, 500, 1.0), (0.5, 100, 1, 1e5), (50.0, 1000, 499, 1.0)],
)
def test_calibration_is_near_the_optimum(mechanism, rho, n, m, spread):
    noise = calibrate_smooth_noise(
        rho, num_samples=n, trim_count=m, relative_spread=spread, mechanism=mechanism
    )
    setting = {"sigma": noise.sigma, "mechanism": mechanism}
    setting["smoothness"] = noise.smoothness
    assert smooth_noise_rho(noise.multiplier, **setting) <= rho
    assert stddev(noise.multiplier, noise.sigma, mechanism) > 0
    per_width = partial(
        noise_per_width, rho, mechanism=mechanism, n=n, m=m, spread=spread
    )

    def objective(logs):
        t, sigma = np.maximum(np.exp(logs), 1e-12)
        sigma = min(max(sigma, 0.3 if mechanism == "arsinh_normal" else 1e-3), 8)
        value = per_width(t, sigma)
        return math.log(value) if value < math.inf else 1e3

    starts = [
        (share * math.sqrt(2 * rho) * sigma, sigma)
        for share in (1e-3, 0.5)
        for sigma in (0.05, 1.0)
    ]
    least = min(
        scipy.optimize.minimize(objective, np.log(start), method="Nelder-Mead").fun
        for start in starts
    )
    assert per_width(noise.smoothness, noise.sigma) <= 1.02 * math.exp(least)


def test_arsinh_refuses_a_sigma_without_proof():
    with pytest.raises(ValueError, match=r"sigma must be between 0\.3 and 8"):
        smooth_noise_rho(1.0, smoothness=0.1, sigma=0.2, mechanism="arsinh_normal")
