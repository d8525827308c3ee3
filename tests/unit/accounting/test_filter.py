"""The privacy filter: what adaptive releases cost, and where it stops."""

import contextlib
import functools
import math

import dp_accounting as dpa
import numpy as np
import pytest
import scipy.stats

from dpjax import ADD_OR_REMOVE_ONE, accounting
from dpjax.accounting import PrivacyFilter, PrivacyGuarantee, Sampling
from dpjax.accounting._filter import Spending
from dpjax.accounting._sampled_gaussian import poisson_capacity
from dpjax.accounting._selection import selection_event
from dpjax.accounting._subsampling import gaussian_event

# Randomised response that may leak its bit: (epsilon, delta) in units of the limit.
STEPS = [(0.0, 0.0), (0.2, 0.0), (0.5, 0.0), (0.1, 0.1), (0.05, 0.4)]


def guarantee(epsilon=1.0, delta=0.0, event=None, **options):
    event = event or dpa.UnsupportedDpEvent()
    return PrivacyGuarantee.of(epsilon, delta, dp_event=event, **options)


def gaussian(multiplier, num_steps=1, **options):
    run = Sampling(num_steps, **options)
    return guarantee(50.0, 1e-9, gaussian_event(multiplier, run))


def after(table, release):
    """The filter after a release, None where it is beyond the limit."""
    with contextlib.suppress(ValueError):
        return table.spend(release)


def num_admitted(table, release):
    for _ in range(2_000):  # no limit of a test admits as many
        if (following := after(table, release)) is None:
            return len(table.spent)
        table = following
    raise AssertionError("the filter does not stop")


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_gaussian_releases_keep_the_limit_and_nearly_reach_it(epsilon, delta):
    multiplier = 20 / epsilon
    number = num_admitted(PrivacyFilter(epsilon, delta), gaussian(multiplier))
    price = functools.partial(
        accounting.gaussian_epsilon, multiplier, delta, sensitivity=1.0
    )
    assert price(num_releases=number) <= epsilon
    # What is lost: Renyi divergence against the exact price, and half of delta.
    lost = 1.45 if delta < 0.001 else 2.5
    assert price(num_releases=math.ceil(lost * number) + 1) > epsilon


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0])
def test_an_unknown_event_costs_the_worst_of_its_epsilon(epsilon):
    table = PrivacyFilter(2.0, 1e-5)
    order = table.order or 0
    p = np.array([math.exp(epsilon), 1.0]) / (1 + math.exp(epsilon))
    divergence = math.log(np.sum(p**order * p[::-1] ** (1 - order))) / (order - 1)
    price = table.price(guarantee(epsilon, 1e-7))
    assert price.delta == 1e-7
    assert price.divergence == pytest.approx(divergence, rel=1e-6, abs=2e-12)
    assert price.divergence >= divergence * (1 - 1e-12)
    # Of a pure epsilon the event may say less: that of bounded range does.
    for rho in (epsilon**2 / 8, 99.0):
        known = guarantee(epsilon, 0.0, dpa.ZCDpEvent(rho))
        least = min(order * rho, divergence)
        price = table.price(known).divergence
        assert price == pytest.approx(least, rel=1e-6, abs=2e-12)


def test_known_events_are_read_by_the_accountant_that_they_are_for():
    table = PrivacyFilter(1.0, 1e-5)
    full = table.price(gaussian(5.0, num_steps=3))
    assert full.divergence == pytest.approx(3 * (table.order or 0) / 50)
    assert full.delta == 0.0
    fixed = gaussian(5.0, num_steps=3, num_samples=1000, batch_size=10)
    assert 0 < table.price(fixed).divergence < full.divergence / 100
    # Poisson batches under replace-one: no Renyi accountant reads them.
    poisson = gaussian(5.0, num_steps=3, sampling_prob=0.01)
    assert table.price(poisson) == table.price(guarantee(50.0, 1e-9))
    assert table.price(guarantee(800.0, 1e-9)).divergence == math.inf
    assert table.price(PrivacyGuarantee.non_private()).divergence == math.inf
    assert after(PrivacyFilter(99.0, 0.5), guarantee(math.inf, 0.0)) is None
    no_event = guarantee(1.0, 1e-6, dpa.NonPrivateDpEvent())
    assert table.price(no_event) == table.price(guarantee(1.0, 1e-6))


def test_padded_poisson_batches_pay_for_their_overflow():
    # The law of a run is a tau away from that of its event, at most.
    table = PrivacyFilter(2.0, 1e-5, relation=ADD_OR_REMOVE_ONE)
    run = Sampling(100, sampling_prob=0.01, relation=ADD_OR_REMOVE_ONE)
    event = gaussian_event(3.0, run)
    one = guarantee(0.5, 1e-6, event, relation=ADD_OR_REMOVE_ONE)
    capacity = poisson_capacity(1000, 0.01, num_steps=100, epsilon=0.5, delta=1e-6)
    tau = 100 * scipy.stats.binom.sf(capacity, 1000, 0.01)
    assert tau > 0
    price = table.price(one)
    assert (1 + math.exp(2.0)) * tau <= price.delta <= 1e-8
    assert table.spend(one).spend(one).total.delta == pytest.approx(2 * price.delta)
    # Beside another release, the epsilon of the run itself is not known.
    both = dpa.ComposedDpEvent((event, gaussian_event(9.0)))
    both = guarantee(0.5, 1e-6, both, relation=ADD_OR_REMOVE_ONE)
    assert table.price(both).delta > price.delta
    full = guarantee(0.5, 1e-6, gaussian_event(9.0), relation=ADD_OR_REMOVE_ONE)
    assert table.price(full).delta == 0


@pytest.mark.parametrize(
    ("limit", "each", "most"),
    [(1.0, 0.1, 10), (0.3, 0.1, 3), (0.7, 0.1, 7), (4.2, 0.6, 7), (2e-5, 1e-6, 20)],
)
def test_decimals_add_up_exactly(limit, each, most):
    assert num_admitted(PrivacyFilter(limit, 0.0), guarantee(each)) == most
    halves = PrivacyFilter(1.0, float(f"{2 * most}e-6"))
    assert num_admitted(halves, guarantee(0.0, 1e-6)) == most
    more = guarantee(math.nextafter(each, 1.0))
    assert num_admitted(PrivacyFilter(limit, 0.0), more) == most - 1


def test_deltas_of_unknown_events_add_up_to_half():
    assert num_admitted(PrivacyFilter(9.0, 1e-5), guarantee(1e-3, 1e-6)) == 5
    pure = PrivacyFilter(1.0, 0.0)
    assert pure.order == math.inf
    assert num_admitted(pure, guarantee(0.25, 0.0, selection_event(0.25))) == 4
    assert after(pure, guarantee(0.25, 1e-300)) is None


def test_disjoint_parts_cost_the_maximum():
    table = PrivacyFilter(1.0, 1e-5)
    large, small, unknown = gaussian(5.0), gaussian(9.0), guarantee(1e-4, 1e-7)
    together = table.price(small, unknown, large)
    assert together == Spending(table.price(large).divergence, 1e-7)
    spent = table.spend(small, large).spend(unknown)
    assert spent.total.divergence >= table.price(large).divergence
    assert spent.left.delta == pytest.approx(5e-6 - 1e-7)


def laws(epsilon, delta):
    """Pr and Pr' of the four outcomes."""
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    lie = (1 - delta) / (1 + math.exp(epsilon))
    return [(truth, lie), (lie, truth), (delta, 0.0), (0.0, delta)]


def hockey_stick(table, choose, depth, law=(1.0, 1.0), loss=0.0):
    """The delta at the limit's epsilon of an interaction that `choose` steers."""
    if depth > 0:
        for epsilon, delta in choose(loss):
            epsilon, delta = epsilon * table.epsilon, delta * table.delta
            release = guarantee(epsilon, delta)
            if epsilon > 0 and (following := after(table, release)) is not None:
                total = 0.0
                for p, q in laws(epsilon, delta):
                    both = law[0] * p, law[1] * q
                    if max(both) > 0:
                        more = math.log(p / q) if min(p, q) > 0 else 0.0
                        rest = choose, depth - 1, both, loss + more
                        total += hockey_stick(following, *rest)
                return total
    return max(0.0, law[0] - math.exp(table.epsilon) * law[1])


@pytest.mark.parametrize("limit", [(0.5, 0.05), (2.0, 1e-3)])
def test_no_adversary_passes_the_limit(limit):
    table = PrivacyFilter(*limit)
    # It takes large steps while it loses, small ones while it wins; or all at once.
    adversaries = [
        lambda loss: STEPS[::-1],
        lambda loss: STEPS if loss > 0 else STEPS[2:] + STEPS[:2],
        lambda loss: STEPS[3:] if loss > 0 else STEPS[1:3],
    ]
    largest = max(hockey_stick(table, choose, 6) for choose in adversaries)
    # The last of it is spent: twice the steps' deltas would have passed.
    assert 0.3 * table.delta < largest <= table.delta


def test_releases_that_do_not_fit_the_filter_are_refused():
    table = PrivacyFilter(1.0, 1e-5)
    with pytest.raises(ValueError, match="order must be inf at delta = 0"):
        PrivacyFilter(1.0, 0.0, order=7)
    with pytest.raises(ValueError, match="parts must be one guarantee or more"):
        table.price()
    other = guarantee(relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="relation must be REPLACE_ONE, the rela"):
        table.spend(other)
    table = PrivacyFilter(1.0, 1e-5, relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="relation must be REPLACE_ONE if there"):
        table.spend(other, other)
