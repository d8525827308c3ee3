"""Budgets: a calibration spends its own and no more, prices follow the noise."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpjax import ADD_OR_REMOVE_ONE, accounting
from dpjax.accounting._discrete_gaussian import discrete_gaussian_epsilon
from dpjax.accounting._selection import total_selection_epsilon
from dpjax.batching import BallsInBins, CyclicPoisson, Disjoint, Full
from dpjax.mechanisms import BandedToeplitz, BinaryTree, BufferedToeplitz

DELTAS = [1e-50, 1e-10, 1e-5, 0.1, 0.9]


class Pair(NamedTuple):
    """A calibration and its price, and the setting of both."""

    calibrate: Any
    price: Any
    setting: Any
    epsilons: Any = (1e-12, 1e-3, 0.1, 1.0, 8.0, 1e4, 1e6, 9.9e9, 1.1e12, 1e300)
    deltas: Any = DELTAS
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
GAUSSIAN = accounting.gaussian_stddev, accounting.gaussian_epsilon
ZCDP = accounting.epsilon_to_rho, accounting.rho_to_epsilon
SELECTION = accounting.selection_epsilon, total_selection_epsilon
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
        *(accounting.discrete_gaussian_stddev, discrete_gaussian_epsilon),
        {"sensitivity": 1e5, "num_coordinates": 9, "num_shares": 3},
        *([0.1, 1.0, 8.0], [1e-6, 1e-3]),
        slack=1e-3,  # a whole number
    ),
    "groups": run([3.0], **POISSON, group_size=3),
    "banded, full": correlated(BANDED, Full()),
    "banded, disjoint": correlated(BANDED, Disjoint()),
    "banded, cyclic": correlated(BANDED, CyclicPoisson(10.0, 5)),
    "tree, bins": correlated(BinaryTree(40), BallsInBins(8)),
    "buffered": correlated(BufferedToeplitz(40, (0.5,), (0.5,)), Disjoint()),
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
def test_limits(name):
    pair = PAIRS[name]
    nothing, everything = (0.0, math.inf) if pair.is_budget else (math.inf, 0.0)
    assert pair.calibrate(math.inf, 0.0, **pair.setting) == everything
    assert pair.calibrate(1.0, 0.0, **pair.setting) == nothing
    assert pair.price(nothing, 0.0, **pair.setting) == 0
    assert pair.price(everything, 1e-5, **pair.setting) == math.inf
    assert pair.price(1.0, 0.0, **pair.setting) == math.inf
