"""Sums of discrete Gaussian shares, against their laws computed term by term."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpjax.accounting._discrete_gaussian import (
    discrete_gaussian_epsilon,
    discrete_gaussian_stddev,
)


def sum_law(stddev, num_shares, reach):
    """The law of a sum of shares; sums of positive numbers, hence exact to 1e-12."""
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * stddev**2))
    share = law = weights / weights.sum()
    for _ in range(num_shares - 1):
        law = np.convolve(law, share)
    return law


def delta_of(law, shift, epsilon):
    """The least delta between the law and the law shifted by an integer."""
    zeros = np.zeros(shift)
    one, other = np.concatenate([law, zeros]), np.concatenate([zeros, law])
    return np.maximum(one - math.exp(epsilon) * other, 0).sum()


@pytest.mark.parametrize(
    ("num_shares", "stddev", "shift"),
    [(1, 1, 1), (2, 1, 4), (4, 2, 1), (1, 5, 4), (2, 30, 4), (4, 30, 1)],
)
def test_epsilon_covers_the_true_one(num_shares, stddev, shift):
    law = sum_law(stddev, num_shares, 14 * stddev)
    for delta in (1e-2, 1e-5, 1e-8):
        epsilon = discrete_gaussian_epsilon(
            stddev, delta, sensitivity=shift, num_shares=num_shares, num_coordinates=1
        )
        assert delta_of(law, shift, epsilon) <= delta
        assert delta_of(law, shift, 0.5 * epsilon - 0.05) > delta  # and not far from it


@pytest.mark.parametrize("stddev", [1, 2])
def test_a_sum_is_nearly_one_discrete_gaussian(stddev):
    # Equation (1): |log ratio| <= tau / 2.
    for num_shares in (2, 3, 6):
        reach = 12 * stddev
        law = sum_law(stddev, num_shares, reach)
        middle = len(law) // 2
        n = np.arange(-reach // 2, reach // 2 + 1)
        single = np.exp(-(n**2) / (2 * num_shares * stddev**2))
        far = np.arange(-100 * reach, 100 * reach + 1)
        single /= np.exp(-(far**2) / (2 * num_shares * stddev**2)).sum()
        ratio = np.abs(np.log(law[middle + n] / single)).max()
        k = np.arange(1, num_shares)
        half_tau = 5 * np.exp(-2 * math.pi**2 * stddev**2 * k / (k + 1)).sum()
        assert ratio <= half_tau + 1e-12
        if stddev == 1 and num_shares == 2:
            assert ratio > half_tau / 3  # the bound says something


def test_the_constant_five_at_its_worst():
    # log((1 + t) / (1 - t)) <= 5 exp(-2 pi^2 v) from v = 1/8 on.
    for v in np.linspace(1 / 8, 1.5, 50):
        t = 2 * np.exp(-2 * math.pi**2 * v * np.arange(1, 40) ** 2).sum()
        assert math.log((1 + t) / (1 - t)) <= 4.1 * math.exp(-2 * math.pi**2 * v)


def test_pairs_of_rounds_against_an_accountant():
    for stddev, num_releases in ((3, 2), (20, 10), (60, 50)):
        loss = privacy_loss_distribution.from_discrete_gaussian_mechanism(
            stddev, sensitivity=2, value_discretization_interval=1e-4
        ).self_compose(num_releases)
        ours = discrete_gaussian_epsilon(
            stddev, 1e-5, sensitivity=2, num_coordinates=1, num_releases=num_releases
        )
        true = loss.get_epsilon_for_delta(1e-5)
        assert true * (1 - 1e-3) <= ours <= 1.2 * true


def test_many_coordinates_against_the_exact_law():
    # d coordinates that all move by one: their losses add up, each with the exact law.
    d, stddev, num_shares = 16, 2, 3
    law = sum_law(stddev, num_shares, 14 * stddev)
    delta = 1e-4
    setting = {"sensitivity": math.sqrt(d), "num_coordinates": d}
    epsilon = discrete_gaussian_epsilon(stddev, delta, **setting, num_shares=num_shares)
    n = np.arange(1, len(law))
    loss = np.log(law[n] / law[n - 1])
    draws = np.random.default_rng(0).choice(loss, (400_000, d), p=law[n] / law[n].sum())
    hockey = np.maximum(1 - np.exp(epsilon - draws.sum(axis=1)), 0)
    # One-sided, five standard errors: false alarm 3e-7.
    assert hockey.mean() - 5 * hockey.std() / math.sqrt(len(hockey)) <= delta


def test_more_coordinates_cost_more():
    # Sums of shares are nearly a discrete Gaussian, in each coordinate: equation (1).
    setting = {"sensitivity": 1.0, "num_shares": 9}
    by_coordinates = [
        discrete_gaussian_epsilon(1, 1e-5, **setting, num_coordinates=d)
        for d in (1, 10**6, 10**12)
    ]
    assert np.all(np.diff(by_coordinates) > 0)


def test_limits_of_the_discrete_gaussian():
    assert discrete_gaussian_epsilon(1, 0.1, sensitivity=0.0, num_coordinates=1) == 0
    assert discrete_gaussian_stddev(1.0, 0.1, sensitivity=0.0, num_coordinates=9) == 1
    assert discrete_gaussian_epsilon(1, 1e-9, sensitivity=1e6, num_coordinates=1) > 1e11
