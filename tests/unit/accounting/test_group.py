"""Group privacy: events against accountants, budgets there and back."""

import math
from typing import Any

import pytest
from dp_accounting import ComposedDpEvent, UnsupportedDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import REPLACE_ONE
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_epsilon,
    gaussian_event,
    gaussian_stddev,
)
from dpjax.accounting._guarantee import group_budget
from dpjax.accounting._selection import selection_event

FLIP: Any = {"mechanism": "permute_and_flip"}


def guarantee(epsilon, delta, event=None):
    return PrivacyGuarantee.of(epsilon, delta, dp_event=event or UnsupportedDpEvent())


@pytest.mark.parametrize("size", [1, 2, 7])
def test_events_of_a_group(size):
    one = guarantee(1.0, 1e-6, gaussian_event(6.0, Sampling(num_steps=9)))
    found = one.for_groups(size, num_groups=1200, unit="house and who lives there")
    words = "Replacing any one of the 1,200 houses and who lives there changes"
    assert found.description.startswith(words)
    words = f"Replacing any one group of up to {size} records changes"
    assert one.for_groups(size).description.startswith(words)
    # A shift k times as long; and the lemma says no less than that.
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE)
    spent = accountant.compose(found.dp_event).get_epsilon(1e-6)
    exact = gaussian_epsilon(6.0, 1e-6, sensitivity=size, num_releases=9)
    assert exact <= spent < 1.2 * exact + 0.1
    parts: Any = (ZCDpEvent(0.1), gaussian_event(4.0))
    mixed = ComposedDpEvent(parts)
    found = guarantee(1.0, 1e-6, mixed).for_groups(size)
    rho = 0.1 * size**2 + 0.5 * (size / 4) ** 2
    accountant = RdpAccountant([3.0], neighboring_relation=REPLACE_ONE)
    alone = RdpAccountant([3.0], neighboring_relation=REPLACE_ONE)
    assert accountant.compose(found.dp_event).get_epsilon(1e-6) == pytest.approx(
        alone.compose(ZCDpEvent(rho)).get_epsilon(1e-6)
    )
    other = guarantee(1.0, 1e-6, selection_event(1.0, **FLIP)).for_groups(size)
    assert not accountant.supports(other.dp_event)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 3.0, 500.0])
def test_budgets_are_kept(size, epsilon):
    for delta in (0.0, 1e-7):
        each = guarantee(*group_budget(epsilon, delta, size))
        whole = each.for_groups(size)
        assert epsilon * (1 - 1e-9) < whole.epsilon <= epsilon
        assert delta * (1 - 1e-9) <= whole.delta <= delta
    if size < 3 or epsilon < 10:  # Gaussian noise k times as large would do
        noise = gaussian_stddev(*group_budget(epsilon, 1e-7, size), sensitivity=1.0)
        least = size * gaussian_stddev(epsilon, 1e-7, sensitivity=1.0)
        assert least * (1 - 1e-9) <= noise < 1.03 * least


def test_the_lemma_is_reached():
    # The chance of an event from neighbour to neighbour: delta is lost, and the rest
    # shrinks by e^epsilon. Over three steps that adds up to what the lemma says.
    epsilon, delta = 0.7, 1e-3
    mass = [1.0]
    for _ in range(3):
        mass.append((mass[-1] - delta) / math.exp(epsilon))
    whole = guarantee(epsilon, delta).for_groups(3)
    needed = mass[0] - math.exp(whole.epsilon) * mass[3]
    assert whole.delta == pytest.approx(needed, rel=1e-9)


def test_what_protects_nobody_protects_no_group():
    whole = PrivacyGuarantee.non_private().for_groups(3)
    assert whole.epsilon == math.inf
    assert guarantee(900.0, 1e-9).for_groups(3).delta < 1.0
