"""Guarantees: value semantics, the sentence, and what an attacker can do."""

import dataclasses
import functools
import math
import re

import dp_accounting
import hypothesis
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_epsilon,
    gaussian_event,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._selection import selection_event

EVENT = gaussian_event(3.7306)
BLANKED = NeighboringRelation.REPLACE_SPECIAL


def test_is_an_immutable_value():
    one = PrivacyGuarantee.of(1.0, 1e-5, dp_event=EVENT)
    other = PrivacyGuarantee.of(1.0, 1e-5, dp_event=gaussian_event(3.7306))
    assert one == other
    assert hash(one) == hash(other)
    assert one != dataclasses.replace(one, epsilon=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.epsilon = 2.0
    for _, _, event in EVERY_KIND:
        assert len({PrivacyGuarantee.of(1.0, 1e-5, dp_event=event)}) == 1
    composed = dp_accounting.ComposedDpEvent((EVENT, dp_accounting.NoOpDpEvent()))
    assert len({PrivacyGuarantee.of(1.0, 1e-5, dp_event=composed)}) == 1
    none = PrivacyGuarantee.non_private()
    assert none.epsilon == math.inf
    assert none.dp_event == dp_accounting.NonPrivateDpEvent()
    assert "No privacy" in str(none)
    assert none == PrivacyGuarantee.non_private()


@hypothesis.settings(max_examples=200, deadline=None, database=None)
@hypothesis.given(
    epsilon=st.just(0.0) | st.floats(-6, 3).map(lambda x: min(max(10**x, 1e-6), 1e3)),
    delta=st.just(0.0) | st.floats(-300, -1).map(lambda x: max(10**x, 1e-300)),
)
def test_what_is_read_is_never_a_stronger_claim(epsilon, delta):
    said = str(PrivacyGuarantee.of(epsilon, delta, dp_event=EVENT))
    power, *factor = re.search(r"e\^(\S+)(?: = (\S+))? times", said).groups()
    assert epsilon <= float(power) <= epsilon * (1 + 1e-3)
    if factor[0] is not None:
        with mpmath.workprec(2_000):
            true = mpmath.exp(mpmath.mpf(epsilon))
            read = mpmath.mpf(factor[0])
            assert true <= read
            assert read - 1 <= (mpmath.exp(mpmath.mpf(power)) - 1) * 1.01
    assert (factor[0] is None) == (float(power) >= 700)
    probability = re.search(r", plus (\S+)\.$", said)
    assert (probability is None) == (delta == 0)
    if probability:
        assert delta <= float(probability[1]) <= delta * (1 + 1e-5)


def test_description_of_pure_and_other_relations():
    pure = PrivacyGuarantee.of(1.0, 0.0, dp_event=EVENT)
    assert pure.description.endswith("e^1 = 2.72 times what it was.")
    of = functools.partial(PrivacyGuarantee.of, 1.0, 0.0, dp_event=EVENT)
    # The size of the data is private under add/remove, and public otherwise.
    added = of(relation=ADD_OR_REMOVE_ONE).description
    assert added.startswith("Adding or removing any one record changes")
    with pytest.raises(ValueError, match="num_samples must be None under ADD_OR_REM"):
        of(relation=ADD_OR_REMOVE_ONE, num_samples=77)
    words = "Blanking any one of the 77 records, whose number is public, changes the"
    blanked = of(relation=BLANKED, num_samples=77)
    assert blanked.description.startswith(words)
    words = "Blanking any one record, at a public number of them, changes the"
    assert of(relation=BLANKED).description.startswith(words)


RATES = np.r_[0.0, 1e-12, 1e-6, 1e-3, np.linspace(0.01, 0.99, 8), 1 - 1e-6, 1.0]


def attacked(first, second, rates):
    """The best attack on two densities with an increasing ratio, by integration.

    An attack says "yes" above a threshold: the integrals of both densities above it.
    """
    falling = np.linspace(40.0, -40.0, 800_001)
    integrals = [
        scipy.integrate.cumulative_simpson(density(falling), dx=1e-4, initial=0)
        for density in (second, first)
    ]
    return np.interp(rates, *integrals)


def densities(name):
    """A guarantee, and two densities that are its worst case."""
    normal = scipy.stats.norm.pdf
    if name == "laplace":
        event = dp_accounting.LaplaceDpEvent(0.8)
        pair = (lambda x: np.exp(-abs(x - 1.25)) / 2, lambda x: np.exp(-abs(x)) / 2)
        return PrivacyGuarantee.of(1.25, 1e-9, dp_event=event), pair
    if name == "gaussian":
        epsilon = gaussian_epsilon(1.4, 1e-6, sensitivity=1.0, num_releases=3)
        event = gaussian_event(1.4, Sampling(num_steps=3))
        mu = math.sqrt(3) / 1.4
        pair = (lambda x: normal(x - mu), normal)
        return PrivacyGuarantee.of(epsilon, 1e-6, dp_event=event), pair
    q, multiplier = (0.1, 0.7) if name == "poisson" else (0.6, 0.4)
    run = Sampling(num_steps=1, sampling_prob=q)
    epsilon = noise_multiplier_to_epsilon(multiplier, 1e-6, run)
    event, half = gaussian_event(multiplier, run), 0.5 / multiplier
    pair = (
        lambda x: (1 - q) * normal(x) + q * normal(x - half),
        lambda x: (1 - q) * normal(x) + q * normal(x + half),
    )
    return PrivacyGuarantee.of(epsilon, 1e-6, dp_event=event), pair


@pytest.mark.parametrize("name", ["gaussian", "poisson", "more often", "laplace"])
def test_an_attack_does_as_well_as_an_independent_integral_says(name):
    guarantee, pair = densities(name)
    exact, found = attacked(*pair, RATES), guarantee.tradeoff(RATES)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)
    assert np.all(found >= exact - 1e-9)  # of the integral


@pytest.mark.parametrize("mu", [1e-8, 0.01, 1.0, 6.0])
def test_gaussian_attacks_are_exact_and_rounded_up(mu):
    guarantee = PrivacyGuarantee.of(60.0, 1e-9, dp_event=gaussian_event(1 / mu))
    for rate, found in zip(RATES[1:-1], guarantee.tradeoff(RATES[1:-1]), strict=True):
        with mpmath.workdps(40):
            quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(rate) - 1)
            exact = mpmath.ncdf(quantile + mpmath.mpf(mu))
            assert exact <= found <= exact * (1 + 1e-11)


EVERY_KIND = [
    (3.0, 1e-5, gaussian_event(1.4)),
    (2.0, 1e-6, gaussian_event(1.0, Sampling(num_steps=9, sampling_prob=0.05))),
    (
        2.0,
        1e-6,
        gaussian_event(1.0, Sampling(num_steps=5, num_samples=90, batch_size=9)),
    ),
    (1.5, 1e-5, dp_accounting.ZCDpEvent(0.03)),
    (1.0, 0.0, selection_event(1.0)),
    (0.5, 1e-3, dp_accounting.UnsupportedDpEvent()),
    (0.0, 0.2, dp_accounting.UnsupportedDpEvent()),
    (0.0, 0.0, dp_accounting.NoOpDpEvent()),
    (800.0, 1e-3, dp_accounting.UnsupportedDpEvent()),
    (math.inf, 0.0, dp_accounting.NonPrivateDpEvent()),
]


@pytest.mark.parametrize(
    ("epsilon", "delta", "event", "relation"),
    [
        *((*kind, REPLACE_ONE) for kind in EVERY_KIND),
        *((*kind, ADD_OR_REMOVE_ONE) for kind in EVERY_KIND[:2]),
    ],
)
def test_every_curve_of_attacks_is_one(epsilon, delta, event, relation):
    privacy = PrivacyGuarantee.of(epsilon, delta, dp_event=event, relation=relation)
    found = privacy.tradeoff(RATES)
    assert found.shape == RATES.shape
    assert found[-1] == 1
    assert np.all(found >= RATES)
    slopes = np.diff(found) / np.diff(RATES)
    assert np.all(slopes >= 0)
    assert np.all(np.diff(slopes) <= 1e-6 * slopes[:-1] + 1e-9)
    # Within the claim, and the same for the opposite question.
    if epsilon < math.inf:
        assert found[0] <= delta * (1 + 1e-9)
        claimed = math.exp(min(epsilon, 700.0)) * RATES + delta
        assert np.all(found <= claimed * (1 + 1e-12))
    opposite = 1 - privacy.tradeoff(1 - found)
    is_exact = (found < 1 - 1e-6) & (RATES > 0)
    np.testing.assert_allclose(opposite[is_exact], RATES[is_exact], rtol=0, atol=1e-5)
    # A posterior falls, and is never below the prior.
    posterior = privacy.posterior(0.1, RATES)
    assert np.all(np.diff(posterior) <= 1e-9)
    assert np.all((posterior >= 0.1) & (posterior <= 1))
    if delta == 0 and epsilon < math.inf:
        odds = posterior[0] / (1 - posterior[0]) * 9
        assert odds == pytest.approx(math.exp(epsilon), rel=1e-9)
    elif found[0] > 0:
        assert posterior[0] == 1
