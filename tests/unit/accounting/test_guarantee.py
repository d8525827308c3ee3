"""Guarantees: their value, their sentence, attacks on them; the price of events."""

import dataclasses
import functools
import math
import re

import dp_accounting as dpa
import hypothesis
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import DiscreteLaplaceDpEvent, MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import strategies as st

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting
from dpjax.accounting import PrivacyGuarantee, Sampling, epsilon_of
from dpjax.accounting._selection import selection_event
from dpjax.accounting._subsampling import gaussian_event

EVENT = gaussian_event(3.7306)
BLANKED = NeighboringRelation.REPLACE_SPECIAL
RATES = np.r_[0.0, 1e-12, 1e-6, 1e-3, np.linspace(0.01, 0.99, 8), 1 - 1e-6, 1.0]
EVERY_KIND = [
    (3.0, 1e-5, gaussian_event(1.4)),
    (2.0, 1e-6, gaussian_event(1.0, Sampling(num_steps=9, sampling_prob=0.05))),
    (2.0, 1e-6, gaussian_event(1.0, Sampling(5, num_samples=90, batch_size=9))),
    (1.5, 1e-5, dpa.ZCDpEvent(0.03)),
    (1.0, 0.0, selection_event(1.0)),
    (0.5, 1e-3, dpa.UnsupportedDpEvent()),
    (0.0, 0.2, dpa.UnsupportedDpEvent()),
    (0.0, 0.0, dpa.NoOpDpEvent()),
    (800.0, 1e-3, dpa.UnsupportedDpEvent()),
    (math.inf, 0.0, dpa.NonPrivateDpEvent()),
]


def test_a_guarantee_is_an_immutable_value():
    one = PrivacyGuarantee.of(1.0, 1e-5, dp_event=EVENT)
    other = PrivacyGuarantee.of(1.0, 1e-5, dp_event=gaussian_event(3.7306))
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, epsilon=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.epsilon = 2.0
    for _, _, event in EVERY_KIND:
        assert len({PrivacyGuarantee.of(1.0, 1e-5, dp_event=event)}) == 1
    composed = dpa.ComposedDpEvent((EVENT, dpa.NoOpDpEvent()))
    assert len({PrivacyGuarantee.of(1.0, 1e-5, dp_event=composed)}) == 1
    none = PrivacyGuarantee.non_private()
    assert (none.epsilon, none.dp_event) == (math.inf, dpa.NonPrivateDpEvent())
    assert "No privacy" in str(none)
    assert none == PrivacyGuarantee.non_private()


@hypothesis.settings(max_examples=200, deadline=None, database=None)
@hypothesis.given(
    epsilon=st.just(0.0) | st.floats(-6, 3).map(lambda x: min(max(10**x, 1e-6), 1e3)),
    delta=st.just(0.0) | st.floats(-300, -1).map(lambda x: max(10**x, 1e-300)),
)
def test_what_is_read_is_never_a_stronger_claim(epsilon, delta):
    sentence = str(PrivacyGuarantee.of(epsilon, delta, dp_event=EVENT))
    power, *factor = re.search(r"e\^(\S+)(?: = (\S+))? times", sentence).groups()
    assert epsilon <= float(power) <= epsilon * (1 + 1e-3)
    if factor[0] is not None:
        with mpmath.workprec(2_000):
            true = mpmath.exp(mpmath.mpf(epsilon))
            read = mpmath.mpf(factor[0])
            assert true <= read
            assert read - 1 <= (mpmath.exp(mpmath.mpf(power)) - 1) * 1.01
    assert (factor[0] is None) == (float(power) >= 700)
    probability = re.search(r", plus (\S+)\.$", sentence)
    assert (probability is None) == (delta == 0)
    if probability:
        assert delta <= float(probability[1]) <= delta * (1 + 1e-5)


def test_a_description_names_what_one_record_changes_under_its_relation():
    pure = PrivacyGuarantee.of(1.0, 0.0, dp_event=EVENT)
    assert pure.description.endswith("e^1 = 2.72 times what it was.")
    of = functools.partial(PrivacyGuarantee.of, 1.0, 0.0, dp_event=EVENT)
    # The size of the data is private under add/remove, and public otherwise.
    added = of(relation=ADD_OR_REMOVE_ONE).description
    assert added.startswith("Adding or removing any one record changes")
    with pytest.raises(ValueError, match="num_samples must be None under ADD_OR_REM"):
        of(relation=ADD_OR_REMOVE_ONE, num_samples=77)
    words = "Blanking any one of the 77 records, whose number is public, changes the"
    assert of(relation=BLANKED, num_samples=77).description.startswith(words)
    words = "Blanking any one record, at a public number of them, changes the"
    assert of(relation=BLANKED).description.startswith(words)


def densities(name):
    """A guarantee, and two densities that are its worst case."""
    normal = scipy.stats.norm.pdf
    if name == "laplace":
        event = dpa.LaplaceDpEvent(0.8)
        pair = (lambda x: np.exp(-abs(x - 1.25)) / 2, lambda x: np.exp(-abs(x)) / 2)
        return PrivacyGuarantee.of(1.25, 1e-9, dp_event=event), pair
    if name == "gaussian":
        epsilon = accounting.gaussian_epsilon(1.4, 1e-6, sensitivity=1, num_releases=3)
        event = gaussian_event(1.4, Sampling(num_steps=3))
        mu = math.sqrt(3) / 1.4
        pair = (lambda x: normal(x - mu), normal)
        return PrivacyGuarantee.of(epsilon, 1e-6, dp_event=event), pair
    q, multiplier = (0.1, 0.7) if name == "poisson" else (0.6, 0.4)
    run = Sampling(num_steps=1, sampling_prob=q)
    epsilon = accounting.noise_multiplier_to_epsilon(multiplier, 1e-6, run)
    event, half = gaussian_event(multiplier, run), 0.5 / multiplier
    pair = (
        lambda x: (1 - q) * normal(x) + q * normal(x - half),
        lambda x: (1 - q) * normal(x) + q * normal(x + half),
    )
    return PrivacyGuarantee.of(epsilon, 1e-6, dp_event=event), pair


@pytest.mark.parametrize("name", ["gaussian", "poisson", "more often", "laplace"])
def test_an_attack_does_as_well_as_an_independent_integral_says(name):
    guarantee, (first, second) = densities(name)
    falling = np.linspace(40.0, -40.0, 800_001)  # where their ratio rises
    integrals = [
        scipy.integrate.cumulative_simpson(density(falling), dx=1e-4, initial=0)
        for density in (second, first)
    ]
    exact, stated = np.interp(RATES, *integrals), guarantee.tradeoff(RATES)
    np.testing.assert_allclose(stated, exact, rtol=0, atol=1e-6)
    assert np.all(stated >= exact - 1e-9)  # of the integral


@pytest.mark.parametrize("mu", [1e-8, 0.01, 1.0, 6.0])
def test_gaussian_attacks_are_exact_and_rounded_up(mu):
    guarantee = PrivacyGuarantee.of(60.0, 1e-9, dp_event=gaussian_event(1 / mu))
    for rate, power in zip(RATES[1:-1], guarantee.tradeoff(RATES[1:-1]), strict=True):
        with mpmath.workdps(40):
            quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(rate) - 1)
            exact = mpmath.ncdf(quantile + mpmath.mpf(mu))
            assert exact <= power <= exact * (1 + 1e-11)


@pytest.mark.parametrize(
    ("epsilon", "delta", "event", "relation"),
    [
        *((*kind, REPLACE_ONE) for kind in EVERY_KIND),
        *((*kind, ADD_OR_REMOVE_ONE) for kind in EVERY_KIND[:2]),
    ],
)
def test_every_curve_of_attacks_is_one(epsilon, delta, event, relation):
    privacy = PrivacyGuarantee.of(epsilon, delta, dp_event=event, relation=relation)
    curve = privacy.tradeoff(RATES)
    assert (curve.shape, curve[-1]) == (RATES.shape, 1)
    assert np.all(curve >= RATES)
    slopes = np.diff(curve) / np.diff(RATES)
    assert np.all(slopes >= 0)
    assert np.all(np.diff(slopes) <= 1e-6 * slopes[:-1] + 1e-9)
    # Within the claim, and the same for the opposite question.
    if epsilon < math.inf:
        assert curve[0] <= delta * (1 + 1e-9)
        claimed = math.exp(min(epsilon, 700.0)) * RATES + delta
        assert np.all(curve <= claimed * (1 + 1e-12))
    opposite = 1 - privacy.tradeoff(1 - curve)
    is_exact = (curve < 1 - 1e-6) & (RATES > 0)
    np.testing.assert_allclose(opposite[is_exact], RATES[is_exact], rtol=0, atol=1e-5)
    # A posterior falls, and is never below the prior.
    posterior = privacy.posterior(0.1, RATES)
    assert np.all(np.diff(posterior) <= 1e-9)
    assert np.all((posterior >= 0.1) & (posterior <= 1))
    if delta == 0 and epsilon < math.inf:
        odds = posterior[0] / (1 - posterior[0]) * 9
        assert odds == pytest.approx(math.exp(epsilon), rel=1e-9)
    elif curve[0] > 0:
        assert posterior[0] == 1


# -- Events, read by independent accountants -------------------------------------------
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
    epsilons = [epsilon_of(event, delta) for delta in deltas]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilon_of(event, 0.0) >= epsilons[0]
    for epsilon, delta in zip(epsilons, deltas, strict=True):
        assert accounting.delta_of(event, epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            assert accounting.delta_of(event, 0.99 * epsilon) > delta
    assert accounting.delta_of(event, math.inf) == 0
    claimed = PrivacyGuarantee.of(epsilon_of(event, 1e-5), 1e-5, dp_event=event)
    assert claimed.tradeoff(0.0) <= 1e-5


def test_each_event_costs_what_another_accountant_says():
    cost = functools.partial(epsilon_of, delta=1e-5)
    exact = accounting.gaussian_epsilon(8.0, 1e-5, sensitivity=1.0)
    assert cost(GAUSSIAN) == pytest.approx(exact, rel=1e-8)
    for event, run in zip((POISSON, FIXED), RUNS, strict=True):
        stated = accounting.noise_multiplier_to_epsilon(1.5, 1e-5, run)
        assert cost(event) == pytest.approx(stated, rel=0.01)
    mixture = MixtureOfGaussiansDpEvent(4.0, [0.0, 1.0], [0.5, 0.5])
    for event in (LAPLACE, DISCRETE, mixture):
        by_pld = PLDAccountant().compose(event).get_epsilon(1e-5)
        epsilon = cost(event, relation=ADD_OR_REMOVE_ONE)
        assert epsilon == pytest.approx(by_pld, rel=1e-3)
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
            price = functools.partial(accounting.tuning_epsilon, mean_trials=trials)
            stated = pytest.approx(price(epsilon, 0.0), rel=1e-8, abs=1e-140)
            assert price(event, 0.0) == stated
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
    claim = functools.partial(PrivacyGuarantee.of, 5.0, 1e-5, relation=relation)
    stated, unknown = (claim(dp_event=x) for x in (response, dpa.UnsupportedDpEvent()))
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
        ("event", lambda: accounting.delta_of(event, 1.0)),
        ("dp_event", lambda: PrivacyGuarantee.of(1.0, 1e-5, dp_event=event)),
        ("base", lambda: accounting.tuning_epsilon(event, 1e-5, mean_trials=2)),
    ):
        if name == "base" and event == 3.0:  # a pure epsilon
            continue
        with pytest.raises(ValueError, match=f"^{name} must be .*got"):
            call()
