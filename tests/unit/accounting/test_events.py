"""Events: what they cost, read by independent accountants, and which are refused."""

import functools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    delta_of,
    epsilon_of,
    gaussian_epsilon,
    gaussian_event,
    noise_multiplier_to_epsilon,
    tuning_epsilon,
)
from dpjax.accounting._selection import selection_event

BLANKED = NeighboringRelation.REPLACE_SPECIAL
CHOICES = selection_event(0.1, num_selections=3)
FLIPS = selection_event(0.1, num_selections=3, mechanism="permute_and_flip")
RUNS = Sampling(20, sampling_prob=0.05), Sampling(20, num_samples=1000, batch_size=50)
POISSON, FIXED = (gaussian_event(1.5, run) for run in RUNS)
BINS = gaussian_event(1.5, Sampling(num_steps=20, num_bins=10))
LAPLACE, DISCRETE = dpa.LaplaceDpEvent(4.0), DiscreteLaplaceDpEvent(0.125, 2)
GAUSSIAN = dpa.GaussianDpEvent(8.0)
EVENTS = [
    *(CHOICES, FLIPS, POISSON, FIXED, LAPLACE, DISCRETE, GAUSSIAN),
    *(dpa.ZCDpEvent(0.01), dpa.ComposedDpEvent((CHOICES, GAUSSIAN))),
    dpa.NoOpDpEvent(),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_epsilon_and_delta_are_inverse_and_fall(event):
    deltas = (1e-9, 1e-5, 0.01)
    found = [epsilon_of(event, delta) for delta in deltas]
    assert found == sorted(found, reverse=True)
    assert epsilon_of(event, 0.0) >= found[0]
    for epsilon, delta in zip(found, deltas, strict=True):
        assert delta_of(event, epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            assert delta_of(event, 0.99 * epsilon) > delta
    assert delta_of(event, math.inf) == 0
    claimed = PrivacyGuarantee.of(epsilon_of(event, 1e-5), 1e-5, dp_event=event)
    assert claimed.tradeoff(0.0) <= 1e-5


def test_each_event_costs_what_another_accountant_says():
    cost = functools.partial(epsilon_of, delta=1e-5)
    assert cost(GAUSSIAN) == pytest.approx(
        gaussian_epsilon(8.0, 1e-5, sensitivity=1.0), rel=1e-8
    )
    for event, run in zip((POISSON, FIXED), RUNS, strict=True):
        stated = noise_multiplier_to_epsilon(1.5, 1e-5, run)
        assert cost(event) == pytest.approx(stated, rel=0.01)
    for event in (LAPLACE, DISCRETE):
        by_pld = PLDAccountant().compose(event).get_epsilon(1e-5)
        assert cost(event) == pytest.approx(by_pld, rel=1e-3)
    for event in (CHOICES, dpa.ComposedDpEvent([CHOICES, GAUSSIAN])):
        accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
        assert cost(event) <= accountant.compose(event).get_epsilon(1e-5)


def test_pure_epsilons_add_up_and_mean_the_same_to_a_search():
    both = dpa.ComposedDpEvent((CHOICES, FLIPS))
    for event, epsilon in (
        *((CHOICES, 0.3), (FLIPS, 0.3), (LAPLACE, 0.25), (DISCRETE, 0.25), (both, 0.6)),
        *((selection_event(1.0), 1.0), (selection_event(1e-200), 0.0)),
    ):
        assert epsilon_of(event, 0.0) == pytest.approx(epsilon, rel=1e-9, abs=1e-140)
        for trials in (2, 10):
            assert tuning_epsilon(event, 0.0, mean_trials=trials) == pytest.approx(
                tuning_epsilon(epsilon, 0.0, mean_trials=trials), rel=1e-8, abs=1e-140
            )
    assert epsilon_of(selection_event(1e-200), 0.0) >= 1e-200
    assert epsilon_of(GAUSSIAN, 0.0) == epsilon_of(POISSON, 0.0) == math.inf
    assert epsilon_of(dpa.NonPrivateDpEvent(), 0.5) == math.inf
    group = PrivacyGuarantee.of(0.3, 0.0, dp_event=CHOICES).for_groups(4)
    assert epsilon_of(group.dp_event, 0.0) == pytest.approx(1.2)


@pytest.mark.parametrize("relation", [ADD_OR_REMOVE_ONE, BLANKED])
def test_no_answer_hides_that_a_record_is_gone(relation):
    response = dpa.RandomizedResponseDpEvent(0.5, 2)
    with pytest.raises(ValueError, match=r"^event must be .* can read under"):
        epsilon_of(response, 1e-5, relation=relation)
    stated = PrivacyGuarantee.of(5.0, 1e-5, dp_event=response, relation=relation)
    unknown = PrivacyGuarantee.of(
        5.0, 1e-5, dp_event=dpa.UnsupportedDpEvent(), relation=relation
    )
    rates = np.linspace(0.0, 1.0, 9)
    np.testing.assert_array_equal(stated.tradeoff(rates), unknown.tradeoff(rates))
    # A record that is blanked contributes zero, as one that is removed.
    for event in (POISSON, BINS, CHOICES, GAUSSIAN):
        removed = epsilon_of(event, 1e-5, relation=ADD_OR_REMOVE_ONE)
        assert epsilon_of(event, 1e-5, relation=relation) == removed


def sampled(prob, inner=GAUSSIAN):
    return dpa.PoissonSampledDpEvent(prob, inner)


@pytest.mark.parametrize(
    "event",
    [
        *(dpa.GaussianDpEvent(x) for x in (-1.0, math.nan, "1")),
        *(dpa.LaplaceDpEvent(-1.0), DiscreteLaplaceDpEvent(0.1, 0)),
        *(dpa.ZCDpEvent(-0.1), dpa.ZCDpEvent(0.1, -1)),
        *(dpa.RandomizedResponseDpEvent(x, 2) for x in (1.1, math.nan)),
        *(sampled(-0.1), sampled(0.1, dpa.GaussianDpEvent(-1.0))),
        dpa.SampledWithoutReplacementDpEvent(9, 10, GAUSSIAN),
        *(dpa.SelfComposedDpEvent(GAUSSIAN, x) for x in (0, 1.5)),
        dpa.ComposedDpEvent((GAUSSIAN, dpa.GaussianDpEvent(-1.0))),
        *(dpa.ComposedDpEvent((GAUSSIAN, 3.0)), 3.0),
    ],
    ids=str,
)
def test_an_event_with_a_wrong_number_is_refused_and_named(event):
    for name, call in (
        ("event", lambda: epsilon_of(event, 1e-5)),
        ("event", lambda: delta_of(event, 1.0)),
        ("dp_event", lambda: PrivacyGuarantee.of(1.0, 1e-5, dp_event=event)),
        ("base", lambda: tuning_epsilon(event, 1e-5, mean_trials=2)),
    ):
        if name == "base" and event == 3.0:  # a pure epsilon
            continue
        with pytest.raises(ValueError, match=f"^{name} must be .*got"):
            call()
