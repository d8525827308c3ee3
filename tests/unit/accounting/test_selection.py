"""Compositions of private choices: against enumeration, quadrature, an accountant."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from dpjax import REPLACE_ONE
from dpjax.accounting._selection import (
    selection_epsilon,
    selection_event,
    total_selection_epsilon,
)
from tests.unit.mechanisms.test_selection import renyi

MECHANISMS = ("exponential", "permute_and_flip")


def enumerated_delta(each, num_selections, epsilon):
    """delta(epsilon) of T answers of randomised response, outcome by outcome."""
    truth = 1 / (1 + math.exp(-each))
    delta = 0.0
    for answers in itertools.product((True, False), repeat=num_selections):
        p = math.prod(truth if answer else 1 - truth for answer in answers)
        q = math.prod(1 - truth if answer else truth for answer in answers)
        delta += max(0.0, p - math.exp(epsilon) * q)
    return delta


@pytest.mark.parametrize("num_selections", [1, 2, 5, 9])
@pytest.mark.parametrize("each", [0.05, 0.7, 3.0])
def test_permute_and_flip_is_the_optimal_composition(num_selections, each):
    composed = {"num_selections": num_selections, "mechanism": "permute_and_flip"}
    for delta in (1e-9, 1e-3, 0.2):
        epsilon = total_selection_epsilon(each, delta, **composed)
        assert enumerated_delta(each, num_selections, epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            less = epsilon * (1 - 1e-6)
            assert enumerated_delta(each, num_selections, less) > delta * (1 - 1e-9)


def test_pure_epsilon_adds_up():
    for name in MECHANISMS:
        total = total_selection_epsilon(0.25, 0.0, num_selections=8, mechanism=name)
        assert total == 2.0
        assert selection_epsilon(2.0, 0.0, num_selections=8, mechanism=name) == 0.25


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_bounded_range_is_an_eighth_and_no_less(epsilon):
    # Two outcomes with log ratios t and t - epsilon, the extreme laws of that range.
    worst = 0.0
    for t in np.linspace(0.01, 0.99, 99) * epsilon:
        q = (1 - math.exp(t - epsilon)) / (math.exp(t) - math.exp(t - epsilon))
        q = np.array([q, 1 - q])
        p = q * np.exp([t, t - epsilon])
        assert p.sum() == pytest.approx(1)
        for order in (1 + 1e-6, 1.5, 2, 8, 64):
            worst = max(worst, renyi(order, p, q) / (order * epsilon**2))
    assert worst <= 1 / 8
    if epsilon == 0.1:
        assert worst > 0.99 / 8


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_event_is_read_by_an_accountant(mechanism):
    event = selection_event(0.1, num_selections=50, mechanism=mechanism)
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
    epsilon = accountant.compose(event).get_epsilon(1e-5)
    ours = total_selection_epsilon(0.1, 1e-5, num_selections=50, mechanism=mechanism)
    # The accountant looks at a grid of orders: it never knows less than is spent.
    assert ours <= epsilon * (1 + 1e-6)
    assert epsilon <= 1.1 * ours
