"""Random allocation: exact values for one and two steps, simulation, and Poisson's."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.accounting import Sampling, noise_multiplier_to_epsilon
from dpjax.accounting._gaussian import gaussian_delta
from dpjax.accounting._likelihood_ratios import allocation_epsilon, run_losses
from dpjax.accounting._subsampling import gaussian_event

EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0])


def close_above(deltas, exact, share=2e-3):
    # The exact numbers are differences, with absolute errors.
    assert (deltas >= exact * (1 - 1e-9) - 1e-11).all()
    assert (deltas <= exact * (1 + share) + 1e-11).all()


def curves(stddev, num_steps, num_bins, other=math.inf):
    losses = run_losses(stddev, num_steps, num_bins, other)
    return [x.get_delta_for_epsilon(EPSILONS) for x in losses]


@pytest.mark.parametrize("stddev", [0.4, 1.0, 6.0])
def test_one_bin_is_the_gaussian_mechanism(stddev):
    for num_steps, other in ((1, math.inf), (5, math.inf), (5, 2.0)):
        mu = math.sqrt(num_steps / stddev**2 + other**-2)
        for deltas in curves(stddev, num_steps, 1, other):
            close_above(deltas, gaussian_delta(mu, EPSILONS))


@pytest.mark.parametrize("stddev", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("is_adaptive", [False, True])
def test_two_steps_by_quadrature(stddev, is_adaptive):
    z = np.linspace(-14.0, 14.0, 20_001)
    weights = np.exp(-(z**2) / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    first = np.exp(z / stddev - 0.5 / stddev**2)
    # The second move may depend on the first outcome, within the norm bound.
    mu = np.where(is_adaptive & (z < 0.3), 0.3, 1.0) / stddev

    def excess(v):  # the mean of (ratio - v)_+: the second step's is lognormal
        level = 2 * v - first
        log_level = np.log(np.maximum(level, 1e-300)) / mu
        above, below = (scipy.special.ndtr(x - log_level) for x in (mu / 2, -mu / 2))
        gain = np.where(level > 0, above - level * below, 1 - level)
        return 0.5 * float(weights @ gain)

    growth = np.exp(EPSILONS)
    removed = np.array([excess(v) for v in growth])
    # (1 - e^epsilon ratio)_+ = e^epsilon ((ratio - v)_+ - ratio + v), v = e^-epsilon.
    added = np.array([v * (excess(1 / v) - 1 + 1 / v) for v in growth])
    for deltas, expected in zip(curves(stddev, 2, 2), (removed, added), strict=True):
        if is_adaptive:
            assert (deltas >= expected - 1e-11).all()
        else:
            close_above(deltas, expected)


@pytest.mark.parametrize(
    ("stddev", "num_steps", "num_bins"), [(1.0, 13, 5), (0.7, 20, 20), (1.5, 6, 9)]
)
def test_simulated_runs_lose_no_more(stddev, num_steps, num_bins):
    def ratio(noise):
        values = np.exp(noise / stddev - 0.5 / stddev**2).sum(axis=1)
        return (num_bins - noise.shape[1] + values) / num_bins

    rng, num_runs, delta = np.random.default_rng(3), 40_000, 0.02
    with_record, replaced, without = np.zeros((3, num_runs))
    for start in range(0, num_steps, num_bins):
        size = min(num_bins, num_steps - start)
        noise = rng.normal(size=(num_runs, size))
        without -= np.log(ratio(noise))
        enters = rng.integers(num_bins, size=num_runs)
        noise += (np.arange(size) == enters[:, None]) / stddev
        with_record += np.log(ratio(noise))
        replaced += np.log(ratio(noise) / ratio(-noise))

    def simulated(losses, epsilon):
        values = np.maximum(-np.expm1(epsilon - losses), 0.0)
        return values.mean(), 4 * values.std() / math.sqrt(num_runs)

    run = Sampling(num_steps, num_bins=num_bins, relation=ADD_OR_REMOVE_ONE)
    epsilon = allocation_epsilon(stddev, delta, run, math.inf, 0.0)
    pairs = [simulated(x, epsilon) for x in (with_record, without)]
    assert all(mean - error <= delta for mean, error in pairs)
    assert any(mean + error >= 0.999 * delta for mean, error in pairs)
    run = replace(run, relation=REPLACE_ONE)
    epsilon = allocation_epsilon(stddev, delta, run, math.inf, 0.0)
    mean, error = simulated(replaced, epsilon)
    assert 0.1 * delta < mean <= delta + error


@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
def test_the_price_falls_with_noise_and_rises_with_steps(relation):
    def cost(multiplier, num_steps=20, num_bins=10, **others):
        run = Sampling(num_steps, num_bins=num_bins, relation=relation, **others)
        return noise_multiplier_to_epsilon(multiplier, 1e-6, run)

    by_noise = [cost(x) for x in (0.0, 0.5, 1.5, 1e7)]
    assert (np.diff(by_noise[1:-1]) < 0).all()
    assert (by_noise[0], by_noise[-1]) == (math.inf, 0.0)
    assert (np.diff([cost(1.0, num_steps=x) for x in (1, 10, 11)]) > 0).all()
    full = Sampling(num_steps=20, relation=relation)
    assert cost(1.0, num_bins=1) == noise_multiplier_to_epsilon(1.0, 1e-6, full)
    alone = noise_multiplier_to_epsilon(4.0, 1e-6, replace(full, num_steps=1))
    assert cost(1.0) < cost(1.0, other_multiplier=4.0) < cost(1.0) + alone


def test_no_accountant_reads_its_event():
    event = gaussian_event(1.5, Sampling(num_steps=80, num_bins=40))
    assert (event.num_bins, event.num_steps) == (40, 80)
    assert event.event == GaussianDpEvent(3.0)
    assert not any(x().supports(event) for x in (PLDAccountant, RdpAccountant))
