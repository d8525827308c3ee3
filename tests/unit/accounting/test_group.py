"""Group privacy: events, budgets there and back, groups in Poisson batches."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from dp_accounting import ComposedDpEvent, UnsupportedDpEvent, ZCDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting, mechanisms
from dpjax.accounting import PrivacyGuarantee, Sampling
from dpjax.accounting._likelihood_ratios import losses_of, step_law
from dpjax.accounting._selection import selection_event
from dpjax.accounting._subsampling import gaussian_event


def guarantee(epsilon, delta, event=None):
    return PrivacyGuarantee.of(epsilon, delta, dp_event=event or UnsupportedDpEvent())


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_event_of_a_group_is_of_so_many_times_the_sensitivity(size):
    def price(event, *orders):
        accountant = RdpAccountant(*orders, neighboring_relation=REPLACE_ONE)
        return accountant.compose(event).get_epsilon(1e-6)

    one = guarantee(1.0, 1e-6, gaussian_event(6.0, Sampling(num_steps=9)))
    houses = one.for_groups(size, num_groups=1200, unit="house and who lives there")
    words = "Replacing any one of the 1,200 houses and who lives there changes"
    assert houses.description.startswith(words)
    words = f"Replacing any one group of up to {size} records changes"
    assert one.for_groups(size).description.startswith(words)
    # A shift k times as long; and the lemma says no less than that.
    exact = accounting.gaussian_epsilon(6.0, 1e-6, sensitivity=size, num_releases=9)
    assert exact <= price(houses.dp_event) < 1.2 * exact + 0.1
    mixed = guarantee(1.0, 1e-6, ComposedDpEvent((ZCDpEvent(0.1), gaussian_event(4.0))))
    expected = price(ZCDpEvent(0.1 * size**2 + 0.5 * (size / 4) ** 2), [3.0])
    assert price(mixed.for_groups(size).dp_event, [3.0]) == pytest.approx(expected)
    flips = selection_event(1.0, mechanism="permute_and_flip")
    flips = guarantee(1.0, 1e-6, flips).for_groups(size).dp_event
    assert not RdpAccountant(neighboring_relation=REPLACE_ONE).supports(flips)


def test_the_lemma_is_reached():
    # The chance of an event from neighbour to neighbour: delta is lost, and the rest
    # shrinks by e^epsilon. Over three steps that adds up to what the lemma says.
    epsilon, delta = 0.7, 1e-3
    mass = [1.0]
    for _ in range(3):
        mass.append((mass[-1] - delta) / math.exp(epsilon))
    group = guarantee(epsilon, delta).for_groups(3)
    needed = mass[0] - math.exp(group.epsilon) * mass[3]
    assert group.delta == pytest.approx(needed, rel=1e-9)


def test_what_protects_nobody_protects_no_group():
    assert PrivacyGuarantee.non_private().for_groups(3).epsilon == math.inf
    assert guarantee(900.0, 1e-9).for_groups(3).delta < 1.0


# -- Groups in Poisson batches ---------------------------------------------------------
RELATIONS = (REPLACE_ONE, ADD_OR_REMOVE_ONE)
EPSILONS = (0.0, 0.3, 1.0, 3.0)
BANDED = mechanisms.BandedToeplitz.square_root(9, 3)


def bounds(shift, prob, size, relation):
    """Deltas of a step at the epsilons, in both directions."""
    weights = scipy.stats.binom.pmf(np.arange(size + 1), size, prob)
    pairs = losses_of(step_law(shift * np.arange(size + 1), weights, relation))
    return np.array([x.get_delta_for_epsilon(EPSILONS) for x in pairs])


def divergences(density, other, cell):
    """The same of two densities, whose integrals are sums over cells."""
    pairs = (density, other), (other, density)
    growth = np.exp(EPSILONS)
    sums = [[np.maximum(p - x * q, 0.0).sum() for x in growth] for p, q in pairs]
    return cell * np.array(sums)


def line(moves, weights):
    x = np.linspace(-25.0, 25.0, 200_001)
    pairs = zip(moves, weights, strict=True)
    return sum(weight * scipy.stats.norm.pdf(x - move) for move, weight in pairs)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("shift", "prob", "size"), [(0.3, 0.02, 4), (2.0, 0.5, 3), (0.7, 1.0, 2)]
)
def test_one_step_by_integration(shift, prob, size, relation):
    counts = np.arange(size + 1)
    weights = scipy.stats.binom.pmf(counts, size, prob)
    is_replaced = relation is REPLACE_ONE
    other = line(-shift * counts, weights) if is_replaced else line([0.0], [1.0])
    exact = divergences(line(shift * counts, weights), other, 50 / 200_000)
    stated = bounds(shift, prob, size, relation)
    assert (stated >= exact * (1 - 1e-9) - 1e-13).all()
    assert (stated <= 1.01 * exact + 1e-12).all()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("kind", ["one", "random", "two steps", "opposite"])
def test_no_other_moves_pass_the_pair(relation, kind):
    rng, grid = np.random.default_rng(5), np.linspace(-9.0, 9.0, 721)
    points = np.stack(np.meshgrid(grid, grid), axis=-1)
    shift, prob, size = 1.5, 0.3, 1 if kind == "one" else 2
    stated = bounds(shift, prob, size, relation)

    def density(moves):
        total = 0.0
        for enters in np.ndindex(*[2] * size):
            weight = np.prod(np.where(enters, prob, 1 - prob)) / (2 * math.pi)
            squares = (points - np.array(enters) @ moves) ** 2
            total = total + weight * np.exp(-squares.sum(axis=-1) / 2)
        return total

    for _ in range(2):
        moves = rng.normal(size=(2, size, 2))
        moves *= shift / np.linalg.norm(moves, axis=-1, keepdims=True)
        if kind == "two steps":  # of a cycle, one record in each
            moves = shift * np.stack([np.eye(2), -np.eye(2)])
        if kind == "opposite":
            moves[1] = -moves[0, ::-1]
        other = density(moves[1] * (relation is REPLACE_ONE))
        exact = divergences(density(moves[0]), other, (grid[1] - grid[0]) ** 2)
        assert (exact <= stated * (1 + 1e-9) + 1e-12).all()


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_group_costs_no_more_than_its_records(relation):
    size = 3
    run = Sampling(num_steps=50, sampling_prob=0.05, relation=relation)
    epsilon = accounting.noise_multiplier_to_epsilon(1.5, 1e-8, run)
    event = gaussian_event(1.5, run)
    one = PrivacyGuarantee.of(epsilon, 1e-8, dp_event=event, relation=relation)
    group = one.for_groups(size)
    together = replace(run, group_size=size)
    price = accounting.noise_multiplier_to_epsilon(1.5, group.delta, together)
    assert 0.5 * group.epsilon < price < group.epsilon
    multiplier = accounting.noise_multiplier(3.0, 1e-6, together)
    beside = replace(together, other_multiplier=90.0)
    several = accounting.noise_multiplier(3.0, 1e-6, beside)
    assert multiplier < several < 1.5 * multiplier


def test_large_groups_and_other_releases_fall_back_to_full_batches():
    run = Sampling(num_steps=9, relation=ADD_OR_REMOVE_ONE)

    def cost(z, **options):
        return accounting.noise_multiplier_to_epsilon(z, 1e-6, replace(run, **options))

    # Of 3,000 records a batch has some dozens, if they are drawn rarely.
    few = cost(3_000.0, group_size=3_000, sampling_prob=0.01)
    assert few < 0.1 * cost(3_000.0, group_size=3_000, sampling_prob=1.0)
    for options in ({"group_size": 10**6}, {"group_size": 2, "other_multiplier": 0.01}):
        sampled, full = (cost(1e6, **options, sampling_prob=x) for x in (0.5, 1.0))
        assert full <= sampled <= 1.01 * full


@pytest.mark.parametrize(
    "options", [{}, {"noise": "laplace_log_normal"}, {"strategy": BANDED}], ids=str
)
def test_full_batches_of_a_group_have_so_many_times_the_noise(options):
    run = Sampling(num_steps=9, **options)
    runs = [replace(run, group_size=size) for size in (1, 4)]
    one, four = (accounting.noise_multiplier(1.0, 1e-6, run) for run in runs)
    assert four == pytest.approx(4 * one, rel=1e-6)
