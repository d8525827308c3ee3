"""The exact Gaussian, and zCDP; of every mechanism, what budgets and prices owe."""

import math
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from dp_accounting import ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, accounting
from dpjax.accounting import gaussian_epsilon, gaussian_stddev, rho_to_epsilon
from dpjax.accounting._discrete_gaussian import (
    discrete_gaussian_epsilon,
    discrete_gaussian_stddev,
)
from dpjax.accounting._selection import selection_epsilon, total_selection_epsilon
from dpjax.batching import BallsInBins, CyclicPoisson, Disjoint, Full
from dpjax.mechanisms import BandedToeplitz, BufferedToeplitz

EPSILONS = [1e-12, 1e-5, 9.9e-5, 1e-4, 0.01, 1.0, 10.0, 1e3, 1e6]
DELTAS = [1e-50, 1e-10, 1e-5, 0.1, 0.9, 0.999]


def exact_delta(stddev, epsilon):
    """The hockey-stick integral of N(1, s^2) against N(0, s^2), 50 digits."""
    with mpmath.workdps(50):
        s, e = mpmath.mpf(stddev), mpmath.mpf(epsilon)
        upper = mpmath.ncdf(1 / (2 * s) - e * s)
        return upper - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_stddev_and_epsilon_are_safe_and_tight(epsilon):
    for delta in DELTAS:
        stddev = gaussian_stddev(epsilon, delta, sensitivity=1.0)
        assert exact_delta(stddev, epsilon) <= delta
        if epsilon >= 1e-4:  # The documented slack is 1e-9, float64's is below 1e-8.
            assert exact_delta(stddev * (1 - 1e-8), epsilon) > delta
        price = gaussian_epsilon(stddev, delta, sensitivity=1.0)
        assert exact_delta(stddev, price) <= delta * (1 + 1e-7)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_composition_and_units_are_exact(epsilon):
    one = gaussian_stddev(epsilon, 1e-5, sensitivity=1.0)
    many = gaussian_stddev(epsilon, 1e-5, sensitivity=0.5, num_releases=64)
    assert many == pytest.approx(4 * one, rel=1e-12)
    spent = gaussian_epsilon(many, 1e-5, sensitivity=0.5, num_releases=64)
    assert spent == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("rho", [1e-9, 1e-4, 0.03, 0.5, 3.0, 100.0])
def test_tight_is_the_minimum_over_all_orders(rho):
    b = np.exp(np.linspace(-12, 130, 200_001))
    logs = np.log(b) - np.log1p(b)
    for delta in DELTAS[:-1]:
        # The printed form: delta = e^{(a-1)(a rho - eps)} (1 - 1/a)^a / (a - 1).
        grid = (1 + b) * rho + (-math.log(delta) + (1 + b) * logs - np.log(b)) / b
        expected = max(0.0, grid.min())
        tight = rho_to_epsilon(rho, delta)
        assert tight == pytest.approx(expected, rel=1e-6, abs=1e-12)
        usual = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        assert tight < usual
        assert accounting.epsilon_to_rho(usual, delta) > rho
        assert rho_to_epsilon(accounting.epsilon_to_rho(usual, delta), delta) <= usual
        if 1e-10 <= delta <= 0.1:
            # The same conversion on a coarse grid of orders can only be larger ...
            accountant = RdpAccountant().compose(ZCDpEvent(rho))
            assert tight <= accountant.get_epsilon(delta) + 1e-12
            # ... and a Gaussian release with that rho spends no more than we claim.
            exact = gaussian_epsilon(1 / math.sqrt(2 * rho), delta, sensitivity=1.0)
            assert exact <= tight * (1 + 1e-9)


def test_limits_of_the_gaussian_and_of_zcdp():
    assert gaussian_stddev(1.0, 0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(0.0, 0.0, sensitivity=0.0) == 0.0
    assert gaussian_epsilon(1e300, 1e-300, sensitivity=1.0) == 0.0
    assert rho_to_epsilon(math.inf, 0.1) == math.inf
    assert rho_to_epsilon(1e-30, 0.1) == 0.0
    assert math.isfinite(rho_to_epsilon(1e30, 1e-300))
    assert math.isfinite(accounting.epsilon_to_rho(1e-30, 1e-300))


# -- Budgets: a calibration spends its own and no more, prices follow the noise --------
class Pair(NamedTuple):
    """A calibration and its price, and the setting of both."""

    calibrate: Any
    price: Any
    setting: Any
    epsilons: Any = (1e-12, 1e-3, 0.1, 1.0, 8.0, 1e4, 1e6, 9.9e9, 1.1e12, 1e300)
    deltas: Any = (1e-50, 1e-10, 1e-5, 0.1, 0.9)
    is_budget: bool = False  # of a part, in place of noise
    slack: float = 1e-5  # the share of epsilon that rounding may leave


def run(epsilons=(0.05, 4.0), num_steps=1, **scheme):
    functions = accounting.noise_multiplier, accounting.noise_multiplier_to_epsilon
    setting = {"sampling": accounting.Sampling(num_steps, **scheme)}
    return Pair(*functions, setting, epsilons, [1e-5], slack=0.01)


def correlated(strategy, batching):
    return run([1.0])._replace(
        setting={"sampling": batching.sampling(400, 40, strategy=strategy)}
    )


POISSON = {"num_steps": 50, "sampling_prob": 0.05}
GAUSSIAN = gaussian_stddev, gaussian_epsilon
ZCDP = accounting.epsilon_to_rho, rho_to_epsilon
SELECTION = selection_epsilon, total_selection_epsilon
BANDED = BandedToeplitz.square_root(40, 4)
WITH_LIMITS = {
    "gaussian": Pair(*GAUSSIAN, {"sensitivity": 0.3, "num_releases": 7}),
    "zcdp": Pair(*ZCDP, {}, [1e-6, 0.1, 8.0, 1e4], is_budget=True),
    "full batches": run(num_steps=3),
    "poisson": run(**POISSON),
    "poisson, add": run(**POISSON, relation=ADD_OR_REMOVE_ONE),
    "sizes": run(num_steps=20, num_samples=500, batch_size=50),
}
PAIRS = WITH_LIMITS | {
    **{
        f"{name}, {count}": Pair(
            *SELECTION,
            {"num_selections": count, "mechanism": name},
            [1e-3, 1.0, 20.0],
            [0.0, 1e-12, 1e-5, 0.3],
            is_budget=True,
        )
        for name in ("exponential", "permute_and_flip")
        for count in (3, 40, 5000)
    },
    "discrete": Pair(
        *(discrete_gaussian_stddev, discrete_gaussian_epsilon),
        {"sensitivity": 1e5, "num_coordinates": 9, "num_shares": 3},
        *([0.1, 1.0, 8.0], [1e-6, 1e-3]),
        slack=1e-3,  # a whole number
    ),
    "groups": run([3.0], **POISSON, group_size=3),
    "banded, full": correlated(BANDED, Full()),
    "banded, disjoint": correlated(BANDED, Disjoint()),
    "banded, cyclic": correlated(BANDED, CyclicPoisson(10.0, 5)),
    "buffered": correlated(BufferedToeplitz(40, (0.5,), (0.5,)), Disjoint()),
    "buffered, bins": correlated(BufferedToeplitz(40, (0.9,), (0.3,)), BallsInBins(8)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_calibration_spends_its_budget_and_no_more(name):
    pair = PAIRS[name]
    sign, noises = 1 if pair.is_budget else -1, []
    for delta in pair.deltas:
        noises.append([pair.calibrate(x, delta, **pair.setting) for x in pair.epsilons])
        prices = [pair.price(x, delta, **pair.setting) for x in noises[-1]]
        assert prices == sorted(prices), delta
        for epsilon, spent in zip(pair.epsilons, prices, strict=True):
            assert spent <= epsilon, delta
            if epsilon >= 0.01 and delta <= 0.1:
                assert spent >= epsilon * (1 - pair.slack), (epsilon, delta)
    for axis in (0, 1):  # a larger delta or epsilon needs no more noise
        assert np.all(sign * np.diff(noises, axis=axis) >= 0)


@pytest.mark.parametrize("name", WITH_LIMITS)
def test_limits_of_budgets_and_prices(name):
    pair = PAIRS[name]
    nothing, everything = (0.0, math.inf) if pair.is_budget else (math.inf, 0.0)
    assert pair.calibrate(math.inf, 0.0, **pair.setting) == everything
    assert pair.calibrate(1.0, 0.0, **pair.setting) == nothing
    assert pair.price(nothing, 0.0, **pair.setting) == 0
    assert pair.price(everything, 1e-5, **pair.setting) == math.inf
    assert pair.price(1.0, 0.0, **pair.setting) == math.inf


def test_formula_is_the_integral():
    s, e = 0.7, 1.3

    def excess(x):
        return mpmath.npdf(x, 1, s) - mpmath.exp(e) * mpmath.npdf(x, 0, s)

    integral = mpmath.quad(excess, [0.5 + e * s**2, 2, 5, 20])
    assert float(exact_delta(s, e)) == pytest.approx(float(integral), rel=1e-10)
