"""Sampled training and correlated noise: integrals, lower bounds, traps, refusals."""

import math
from dataclasses import replace

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from dp_accounting.pld import PLDAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting
from dpjax.accounting import Sampling, noise_multiplier, noise_multiplier_to_epsilon
from dpjax.accounting._sampled_gaussian import (
    fixed_size_log_moment,
    fixed_size_losses,
    poisson_capacity,
    poisson_log_moment,
)
from dpjax.accounting._subsampling import gaussian_event
from dpjax.batching import CyclicPoisson, Disjoint, Full
from dpjax.mechanisms import BandedToeplitz, BufferedToeplitz
from tests.unit.refusals import refused

POISSON = Sampling(num_steps=1000, sampling_prob=0.01)
SHORT = Sampling(num_steps=50, sampling_prob=0.1)
FIXED_SIZE = Sampling(num_steps=1000, num_samples=100_000, batch_size=1000)
STEPS = [(REPLACE_ONE, 0.6, 0.3, 1e-6), (REPLACE_ONE, 2.0, 0.01, 1e-6)]
STEPS += [(ADD_OR_REMOVE_ONE, *x, 1e-3) for x in ((0.6, 0.01), (2.0, 0.3))]
GRID = np.linspace(-16, 16, 40_001)
SAMPLED = [POISSON, FIXED_SIZE, replace(POISSON, relation=ADD_OR_REMOVE_ONE)]
BANDS = BandedToeplitz.square_root(40, 4)


def mixture(prob, center):
    """The density of a step: batches without the record, and with it."""
    density = scipy.stats.norm.pdf
    return (1 - prob) * density(GRID) + prob * density(GRID - center)


def hockey_stick(first, second, epsilon):
    excess = first - math.exp(epsilon) * second
    return scipy.integrate.trapezoid(np.maximum(excess, 0), GRID)


@pytest.mark.parametrize(("relation", "stddev", "prob", "delta"), STEPS)
def test_one_poisson_step_by_direct_integration(stddev, prob, delta, relation):
    is_replaced = relation is REPLACE_ONE
    sensitivity = 2.0 if is_replaced else 1.0
    run = Sampling(num_steps=1, sampling_prob=prob, relation=relation)
    epsilon = noise_multiplier_to_epsilon(stddev / sensitivity, delta, run)
    # A thousandth of delta pays for overflow; the rest is tight.
    pair = mixture(prob, 1 / stddev), mixture(prob, -is_replaced / stddev)
    integral = max(hockey_stick(*x, epsilon) for x in (pair, pair[::-1]))
    assert integral == pytest.approx(0.999 * delta, rel=2e-3)
    assert integral <= delta


@pytest.mark.parametrize(
    ("multiplier", "prob", "delta"),
    [(0.5, 0.01, 1e-6), (0.5, 0.3, 1e-3), (2.0, 0.3, 1e-6), (2.0, 0.01, 0.02)],
)
def test_one_step_of_fixed_size_by_direct_integration(multiplier, prob, delta):
    scheme = Sampling(num_steps=1, num_samples=1000, batch_size=int(1000 * prob))
    epsilon = noise_multiplier_to_epsilon(multiplier, delta, scheme)
    # All other records +C, this one +C or -C: attained.
    densities = mixture(prob, 1 / multiplier), scipy.stats.norm.pdf(GRID)
    attained = hockey_stick(*densities, epsilon)
    assert attained <= delta * (1 + 1e-6)
    assert (epsilon > 0) == (delta < prob)
    if epsilon > 0:
        assert attained == pytest.approx(delta, rel=1e-4)
    # The losses that are composed are the same, by a grid.
    losses = fixed_size_losses(multiplier, prob, epsilon / 50 + 1e-4)
    assert losses.get_epsilon_for_delta(delta) >= epsilon - 1e-9
    assert losses.get_epsilon_for_delta(delta) <= 1.01 * epsilon + 1e-4


def test_no_step_of_fixed_size_passes_the_pair_that_dominates_it():
    # Batches without, with and with another record: pairs within the sensitivity.
    multiplier, prob = 0.8, 0.1
    losses = fixed_size_losses(multiplier, prob, 1e-3)
    laws = {a: mixture(prob, a) for a in np.linspace(-1, 1, 9) / multiplier}
    pairs = [(a, b) for a in laws for b in laws if abs(a - b) <= 1 / multiplier]
    for epsilon in (-1.0, -0.02, 0.0, 0.005, 0.05, 0.5, 2.0):
        bound = losses.get_delta_for_epsilon(epsilon)
        largest = max(hockey_stick(laws[a], laws[b], epsilon) for a, b in pairs)
        assert 0.95 * bound <= largest <= bound + 1e-9


def test_whole_data_as_one_batch_is_exact():
    exact = accounting.gaussian_stddev(1.0, 1e-5, sensitivity=1.0, num_releases=50)
    for sizes in ({}, {"num_samples": 70, "batch_size": 70}):
        assert noise_multiplier(1.0, 1e-5, Sampling(50, **sizes)) == exact


@pytest.mark.parametrize("scheme", [POISSON, FIXED_SIZE])
def test_sampling_never_costs_more_than_full_batches(scheme):
    for multiplier in (1e-6, 0.02, 10.0, 1e9):
        sampled = noise_multiplier_to_epsilon(multiplier, 1e-5, scheme)
        times = {"sensitivity": 1.0, "num_releases": 1000}
        assert sampled <= accounting.gaussian_epsilon(multiplier, 0.999e-5, **times)


@pytest.mark.parametrize(
    ("scheme", "other"), [*((x, math.inf) for x in SAMPLED), (POISSON, 20.0)]
)
def test_there_is_no_cliff_where_the_accountant_cannot_resolve_delta(scheme, other):
    # Its FFT resolves 1e-15 a step: without another bound epsilon is there 487.
    deltas = np.r_[2e-11, 1e-11, np.geomspace(1.3e-12, 0.9e-12, 7), 1e-13, 1e-15]
    run = replace(scheme, other_multiplier=other)
    epsilons = [noise_multiplier_to_epsilon(3.0, x, run) for x in deltas]
    # From 1e-15 to 2e-11 a Gaussian's epsilon grows by a fifth.
    assert np.all(np.diff(epsilons) >= 0)
    assert np.max(np.diff(epsilons) / epsilons[1:]) < 0.09
    assert epsilons[-1] < 1.5 * epsilons[0]
    # Some moments overflow at little noise: they must not pass for no cost.
    multipliers = (0.003, 0.03, 0.14, 0.3) if other == math.inf else ()
    costs = [noise_multiplier_to_epsilon(m, 1e-12, scheme) for m in multipliers]
    assert np.all(np.diff(costs) < 0)
    assert all(cost > 10 for cost in costs)


@pytest.mark.parametrize(
    ("multiplier", "prob", "order"),
    [(0.8, 1e-3, 16.0), (0.8, 0.4, 1.5), (3.0, 0.4, 7.0), (3.0, 1e-3, 1.5)],
)
def test_renyi_divergences_of_a_step_by_direct_integration(multiplier, prob, order):
    x = np.linspace(-36, 36, 100_001)
    bound, mu = 0.5 / multiplier, 1 / multiplier

    def log_ratio(shift):
        return np.log1p(prob * np.expm1(shift * x - shift**2 / 2))

    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    loss = log_ratio(mu)
    poisson = np.exp(order * log_ratio(bound) + (1 - order) * log_ratio(-bound))
    fixed = np.exp(order * loss) + np.exp((1 - order) * loss) - 1 - np.exp(loss)
    fixed = 1 + fixed * (x > mu / 2)
    moments = (poisson_log_moment, poisson), (fixed_size_log_moment, fixed)
    for log_moment, integrand in moments:
        exact = math.log(scipy.integrate.trapezoid(normal * integrand, x))
        stated = log_moment(order, multiplier, prob)
        assert exact * (1 - 1e-5) - 1e-12 <= stated <= exact * 1.02 + 1e-12


@pytest.mark.parametrize("scheme", [SHORT, replace(SHORT, relation=ADD_OR_REMOVE_ONE)])
def test_other_releases_share_the_budget(scheme):
    other = noise_multiplier(1.0, 1e-5, Sampling(num_steps=1)) / math.sqrt(0.4)
    shared = replace(scheme, other_multiplier=other)
    multiplier = noise_multiplier(1.0, 1e-5, shared)
    assert multiplier > 1.01 * noise_multiplier(1.0, 1e-5, scheme)
    price = noise_multiplier_to_epsilon(multiplier, 1e-5, shared)
    assert 0.99 < price <= 1.0
    # An accountant by itself, with both events.
    relation = scheme.relation
    accountant, unit = PLDAccountant(relation), 2 if relation is REPLACE_ONE else 1
    accountant.compose(gaussian_event(multiplier, scheme))
    accountant.compose(dpa.GaussianDpEvent(unit * other))
    assert accountant.get_epsilon(0.999e-5) == pytest.approx(price, rel=0.01)
    assert price > accounting.gaussian_epsilon(other, 1e-5, sensitivity=1.0)


def test_other_releases_beside_full_batches_add_precisions():
    for noise in ("gaussian", "laplace_log_normal"):
        total = noise_multiplier(1.0, 1e-5, Sampling(num_steps=1, noise=noise))
        run = Sampling(10, other_multiplier=total / math.sqrt(0.4), noise=noise)
        multiplier = noise_multiplier(1.0, 1e-5, run)
        assert multiplier == pytest.approx(total * math.sqrt(10 / 0.6), rel=2e-3)
        if noise == "gaussian":
            assert multiplier >= total * math.sqrt(10 / 0.6)


def test_other_releases_that_leave_nothing_are_refused():
    for other in (0.9 * noise_multiplier(1.0, 1e-5, Sampling(num_steps=1)), 0.0):
        with pytest.raises(ValueError, match=r"^other_multiplier must be larger: its"):
            noise_multiplier(1.0, 1e-5, Sampling(num_steps=5, other_multiplier=other))
    free = Sampling(num_steps=5, other_multiplier=0.0)
    assert noise_multiplier_to_epsilon(1.0, 1e-5, free) == math.inf


BLANKED = dpa.NeighboringRelation.REPLACE_SPECIAL
SIZES = {"num_samples": 5, "batch_size": 1}
BANDED = {"strategy": BandedToeplitz.square_root(9, 4)}
BUFFERED = {"strategy": BufferedToeplitz(9, (0.5,), (0.5,)), "sampling_prob": 0.5}
CYCLIC = {"sampling_prob": 0.1, "min_separation": 4, "max_participations": 3}
test_options_of_sampling_that_do_not_fit_are_named = refused(
    lambda options: Sampling(**{"num_steps": 9} | options),
    ({"batch_size": 5}, "num_samples"),
    ({"num_samples": 5}, "batch_size"),
    (SIZES | {"batch_size": 6}, "batch_size"),
    (SIZES | {"num_samples": 5.5}, "num_samples"),
    (SIZES | {"sampling_prob": 0.5}, "sampling_prob"),
    (SIZES | {"relation": ADD_OR_REMOVE_ONE}, "relation"),
    ({"relation": BLANKED}, "relation"),
    ({"num_bins": 0}, "num_bins"),
    ({"num_bins": 4, "sampling_prob": 0.1}, "num_bins"),
    (SIZES | {"num_bins": 4}, "num_bins"),
    ({"num_bins": 4, "noise": "laplace"}, "noise"),
    ({"group_size": 2, "num_bins": 4}, "group_size"),
    (SIZES | {"group_size": 2}, "group_size"),
    (BANDED | CYCLIC | {"group_size": 2}, "group_size"),
    ({"strategy": 4}, "strategy"),
    ({"max_participations": 2}, "max_participations"),
    ({"min_separation": 2}, "min_separation"),
    (BANDED | SIZES, "num_samples"),
    (BANDED | {"noise": "laplace_log_normal"}, "noise"),
    (BANDED | {"other_multiplier": 3.0}, "other_multiplier"),
    (BANDED | {"num_steps": 10}, "num_steps"),
    (BANDED | {"sampling_prob": 0.5, "min_separation": 3}, "min_separation"),
    (BUFFERED | {"min_separation": 5}, "min_separation"),
    said="^{} must be",
)


@pytest.mark.parametrize("field", [{"other_multiplier": 3.0}, {"group_size": 2}])
def test_an_event_is_of_these_steps_and_of_one_record(field):
    with pytest.raises(ValueError, match=f"^{next(iter(field))} must be"):
        gaussian_event(1.0, Sampling(9, **field))


def test_one_band_is_independent_noise():
    one = BandedToeplitz(40, (1.0,))
    for batching in (Full(), Disjoint(), CyclicPoisson(2.0, 5)):
        runs = batching.sampling(400, 40, strategy=one), batching.sampling(400, 40)
        costs = [noise_multiplier_to_epsilon(3.0, 1e-5, run) for run in runs]
        np.testing.assert_allclose(*costs, rtol=1e-6)


def test_sampling_costs_less_and_full_groups_the_same():
    def epsilon(expected):
        sampling = CyclicPoisson(expected, 5).sampling(400, 40, strategy=BANDS)
        return noise_multiplier_to_epsilon(4.0, 1e-5, sampling)

    sensitivity = BANDS.sensitivity(max_participations=8, min_separation=5)
    expected = accounting.gaussian_epsilon(4.0, 1e-5, sensitivity=sensitivity)
    np.testing.assert_allclose(epsilon(80.0), expected)
    assert epsilon(10.0) < 0.5 * epsilon(80.0)


# -- The capacity of padded Poisson batches --------------------------------------------
def exact_tail(capacity, n, q):
    """Pr[Binomial(n, q) > capacity], summed in 50 digits."""
    with mpmath.workdps(50):
        q = mpmath.mpf(q)
        return mpmath.fsum(
            mpmath.binomial(n, k) * q**k * (1 - q) ** (n - k)
            for k in range(capacity + 1, n + 1)
        )


@pytest.mark.parametrize(("n", "q"), [(1, 0.3), (40, 0.02), (600, 0.1), (600, 0.95)])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_capacity_is_the_smallest_within_its_share_of_delta(n, q, delta):
    steps = 30
    for epsilon in (0.1, 1.0, 20.0):
        capacity = poisson_capacity(n, q, num_steps=steps, epsilon=epsilon, delta=delta)
        factor = (1 + math.exp(epsilon)) * steps
        assert 1 <= capacity <= n
        assert factor * exact_tail(capacity, n, q) <= 1e-3 * delta * (1 + 1e-9)
        if capacity > 1:
            assert factor * exact_tail(capacity - 1, n, q) > 1e-3 * delta


def test_limits_of_the_capacity():
    base = {"num_steps": 10, "epsilon": 1.0, "delta": 1e-5}
    assert poisson_capacity(100, 1.0, **base) == 100
    assert poisson_capacity(100, 0.01, **{**base, "delta": 0.0}) == 100
    assert poisson_capacity(100, 0.01, **{**base, "epsilon": math.inf}) == 100
    assert poisson_capacity(100, 0.01, **{**base, "epsilon": 1e4}) == 100
    assert poisson_capacity(10**9, 1e-15, **base) == 1
    assert poisson_capacity(10**9, 1e-6, **base) < 1300


@pytest.mark.parametrize("seed", range(5))
def test_factor_of_the_overflow(seed):
    # Any truncated pair P, Q within tau of an (epsilon, delta~)-DP pair stays within
    # delta~ + (1 + e^epsilon) tau; the extreme pair spends all of it.
    rng = np.random.default_rng(seed)
    epsilon, tau = 0.7, 1e-3

    def hockey_stick(p, q):
        return np.maximum(p - math.exp(epsilon) * q, 0).sum()

    p, q = rng.dirichlet(np.ones(8), size=2)
    delta = hockey_stick(p, q)
    top, low = np.argmax(p / q), np.argmin(p / q)
    move = min(tau, p[low], q[top])
    shift = np.zeros(8)
    shift[[top, low]] = move, -move
    worst = hockey_stick(p + shift, q - shift)
    assert worst <= delta + (1 + math.exp(epsilon)) * move + 1e-12
    assert worst == pytest.approx(delta + (1 + math.exp(epsilon)) * move, rel=0.02)
