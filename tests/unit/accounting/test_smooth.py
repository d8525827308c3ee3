"""Noise for smooth sensitivities: its cost against quadrature, and its calibration."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from dpjax.accounting import epsilon_to_rho, rho_to_epsilon, smooth_noise_multiplier
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
    far = sigma * reach + 5
    grid = np.exp(np.arange(-14, far, 0.02))
    found = []
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
        found.append(
            [
                scipy.special.logsumexp(a * p + (1 - a) * q + steps) / (a - 1)
                for a in ORDERS
            ]
        )
    return np.max(found, axis=0)


@pytest.mark.slow
@pytest.mark.quick(1)
@each
@pytest.mark.parametrize(
    ("t", "s", "sigma"),
    [
        (0.3, 0.05, 0.5),
        (0.05, 0.5, 0.5),
        (0.02, 0.2, 0.3),
        (0.2, 0.5, 1.0),
        (1e-3, 1, 1),
    ],
)
def test_cost_covers_the_renyi_divergence(mechanism, t, s, sigma):
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


def test_arsinh_scale_needs_a_sigma_that_is_not_small():
    # The last step of the proof, and where it ends.
    assert math.sqrt(2 / math.pi) <= (1 + 2 * 0.3) / 2
    assert math.sqrt(2 / math.pi) > (1 + 2 * 0.29) / 2


def test_paper_theorem_3():
    # t = epsilon^2/16, s = epsilon/4, sigma = 1 do for epsilon up to 8.9.
    def share(epsilon):
        rho = smooth_noise_rho(
            4 / epsilon,
            smoothness=epsilon**2 / 16,
            sigma=1.0,
            mechanism="arsinh_normal",
        )
        return math.sqrt(2 * rho) / epsilon

    assert share(1e-3) == pytest.approx(7 / 24 + math.sqrt(3) / 4, rel=1e-5)
    assert share(1.0) == pytest.approx(0.729, abs=1e-3)
    assert share(8.9) < 1 < share(9.0)


@each
@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.5, 10.0])
@pytest.mark.parametrize("sigma", [0.3, 0.7, 2.0])
def test_multiplier_and_rho_are_inverse(mechanism, rho, sigma):
    for share in (1e-6, 0.1, 0.9):
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
    [
        (6e-5, 100_000, 5_000, 10.0),
        (1e-2, 10_000, 500, 1.0),
        (0.5, 100, 10, 1.0),
        (0.5, 100, 1, 1e5),
        (50.0, 1000, 499, 1.0),
        (1e-3, 3, 1, 1.0),
    ],
)
def test_calibration_is_near_the_optimum(mechanism, rho, n, m, spread):
    setting = {"n": n, "m": m, "spread": spread}
    noise = calibrate_smooth_noise(
        rho, num_samples=n, trim_count=m, relative_spread=spread, mechanism=mechanism
    )
    spent = smooth_noise_rho(
        noise.multiplier,
        smoothness=noise.smoothness,
        sigma=noise.sigma,
        mechanism=mechanism,
    )
    assert spent <= rho
    found = noise_per_width(rho, noise.smoothness, noise.sigma, mechanism, **setting)
    assert stddev(noise.multiplier, noise.sigma, mechanism) > 0

    def objective(logs):
        t, sigma = np.maximum(np.exp(logs), 1e-12)
        sigma = min(max(sigma, 0.3 if mechanism == "arsinh_normal" else 1e-3), 8)
        value = noise_per_width(rho, t, sigma, mechanism, **setting)
        return math.log(value) if value < math.inf else 1e3

    starts = [
        (share * math.sqrt(2 * rho) * sigma, sigma)
        for share in (1e-3, 0.1, 0.5)
        for sigma in (0.05, 0.4, 1.0)
    ]
    least = min(
        scipy.optimize.minimize(objective, np.log(start), method="Nelder-Mead").fun
        for start in starts
    )
    assert found <= 1.02 * math.exp(least)


def test_worked_example():
    # n = 100,000, d = 10, T = 50, epsilon = 1, delta = 1e-5; samples range over 20, the
    # mean over b - a = 2, a twentieth is trimmed on either side.
    setting = {"n": 100_000, "m": 5_000, "spread": 10.0}

    def least(rho, mechanism):
        noise = calibrate_smooth_noise(
            rho,
            num_samples=100_000,
            trim_count=5_000,
            relative_spread=10.0,
            mechanism=mechanism,
        )
        return 2 * noise_per_width(
            rho, noise.smoothness, noise.sigma, mechanism, **setting
        )

    # As printed: epsilon' = .0091, and arsinh-normal noise with t = epsilon'^2/16.
    log_inverse = math.log(1e5)
    rho = (math.sqrt(log_inverse + 1) - math.sqrt(log_inverse)) ** 2 / 500
    epsilon = math.sqrt(2 * rho)
    assert epsilon == pytest.approx(0.0091, abs=5e-5)
    sensitivity = 2 * math.exp(-5_000 * epsilon**2 / 16)
    assert sensitivity * stddev(4 / epsilon, 1.0, "arsinh_normal") == pytest.approx(
        1527, rel=2e-3
    )
    assert least(rho, "arsinh_normal") == pytest.approx(373, rel=1e-2)
    assert least(rho, "laplace_log_normal") == pytest.approx(0.103, rel=1e-2)
    # The tight conversion pays for epsilon' = .0111.
    rho = epsilon_to_rho(1.0, 1e-5) / 500
    epsilon = math.sqrt(2 * rho)
    assert epsilon == pytest.approx(0.01106, abs=5e-5)
    by_hand = noise_per_width(
        rho, 0.42 * epsilon * 0.4, 0.4, "laplace_log_normal", **setting
    )
    assert 2 * by_hand == pytest.approx(0.073, abs=5e-4)
    assert least(rho, "laplace_log_normal") == pytest.approx(0.0722, rel=1e-2)
    assert rho_to_epsilon(500 * rho, 1e-5) <= 1


def test_arsinh_refuses_a_sigma_without_proof():
    with pytest.raises(ValueError, match=r"sigma must be between 0\.3 and 8"):
        smooth_noise_rho(1.0, smoothness=0.1, sigma=0.2, mechanism="arsinh_normal")
