"""Sampled training: exact one-step integrals, lower bounds, traps, inverse pairs."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    UnsupportedEventError,
    calibrate_dp_mechanism,
)
from dp_accounting.mechanism_calibration import ExplicitBracketInterval
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation
from dpjax.accounting import (
    gaussian_epsilon,
    gaussian_event,
    gaussian_stddev,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._fixed_size import fixed_size_losses
from dpjax.accounting._poisson_losses import (
    losses_where_removed,
    losses_where_replaced,
)
from dpjax.accounting._sampled_renyi import fixed_size_log_moment, poisson_log_moment

POISSON = {"num_steps": 1000, "sampling_prob": 0.01}
FIXED_SIZE = {"num_steps": 1000, "num_samples": 100_000, "batch_size": 1000}


@pytest.mark.slow
def test_numbers_of_a_typical_run():
    # In units of the norm bound C of a record: replace-one sensitivity is 2C.
    budget = (1.0, 1e-5)
    assert round(2 * noise_multiplier(*budget, num_steps=1000), 1) == 235.9
    assert 2 * noise_multiplier(*budget, **FIXED_SIZE) == pytest.approx(3.18, abs=0.01)
    assert 2 * noise_multiplier(*budget, **POISSON) == pytest.approx(2.36, abs=0.01)
    # One epoch over 100 disjoint batches is a single step for each record.
    assert round(2 * noise_multiplier(*budget, num_steps=1), 2) == 7.46


def one_step_delta(epsilon, stddev, prob, relation):
    """The hockey-stick integral of one Poisson step, at norm bound 1, the worse way."""
    x = np.linspace(-12 * stddev - 2, 12 * stddev + 2, 400_001)

    def law(center):
        density = scipy.stats.norm(scale=stddev).pdf
        return (1 - prob) * density(x) + prob * density(x - center)

    def delta(first, second):
        excess = law(first) - math.exp(epsilon) * law(second)
        return scipy.integrate.trapezoid(np.maximum(excess, 0), x)

    if relation is REPLACE_ONE:
        return delta(1.0, -1.0)
    return max(delta(1.0, 0.0), delta(0.0, 1.0))


@pytest.mark.quick(2)
@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
@pytest.mark.parametrize("prob", [0.01, 0.3])
@pytest.mark.parametrize("stddev", [0.6, 2.0])
def test_one_poisson_step_by_direct_integration(stddev, prob, delta, relation):
    sensitivity = 2.0 if relation is REPLACE_ONE else 1.0
    epsilon = noise_multiplier_to_epsilon(
        stddev / sensitivity, delta, num_steps=1, sampling_prob=prob, relation=relation
    )
    # A thousandth of delta pays for overflow; the rest is tight.
    integral = one_step_delta(epsilon, stddev, prob, relation)
    assert integral == pytest.approx(0.999 * delta, rel=2e-3)
    assert integral <= delta


@pytest.mark.slow
def test_one_sided_contributions_need_twice_their_sensitivity():
    # A record in [0, 1] against an absent one: more than "half of 1 either way".
    epsilon = noise_multiplier_to_epsilon(1.0, 1e-5, num_steps=1, sampling_prob=0.1)
    assert one_step_delta(epsilon, 1.0, 0.1, ADD_OR_REMOVE_ONE) > 1e-5
    doubled = noise_multiplier_to_epsilon(0.5, 1e-5, num_steps=1, sampling_prob=0.1)
    assert one_step_delta(doubled, 1.0, 0.1, ADD_OR_REMOVE_ONE) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
def test_poisson_agrees_with_dp_accounting_alone(relation):
    # The library's answer rebuilt without it, in stddev / norm bound.
    def event(stddev):
        step = PoissonSampledDpEvent(0.01, GaussianDpEvent(stddev))
        return SelfComposedDpEvent(step, 1000)

    stddev = calibrate_dp_mechanism(
        lambda: PLDAccountant(relation),
        event,
        1.0,
        1e-5,
        ExplicitBracketInterval(1.0, 4.0),
        tol=1e-4,
    )
    sensitivity = 2.0 if relation is REPLACE_ONE else 1.0
    ours = noise_multiplier(1.0, 1e-5, **POISSON, relation=relation)
    assert sensitivity * ours == pytest.approx(stddev, rel=2e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("multiplier", [0.6, 1.18, 20.0])
def test_poisson_add_remove_is_below_renyi(multiplier):
    event = gaussian_event(multiplier, **POISSON, relation=ADD_OR_REMOVE_ONE)
    by_rdp = RdpAccountant().compose(event).get_epsilon(1e-5)
    ours = noise_multiplier_to_epsilon(
        multiplier, 1e-5, **POISSON, relation=ADD_OR_REMOVE_ONE
    )
    assert ours <= by_rdp


@pytest.mark.slow
def test_the_named_accountant_reports_no_more_than_we_claim():
    multiplier = noise_multiplier(1.0, 1e-5, **POISSON)
    accountant = PLDAccountant(REPLACE_ONE).compose(
        gaussian_event(multiplier, **POISSON)
    )
    assert 0.995 < accountant.get_epsilon(1e-5) <= 1.0
    # Of batches of fixed size it knows less.
    event = gaussian_event(multiplier, **FIXED_SIZE)
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event)
    claimed = noise_multiplier_to_epsilon(multiplier, 1e-5, **FIXED_SIZE)
    assert claimed < 0.6 * accountant.get_epsilon(1e-5)


def test_events_misread_are_refused_or_reported_dearer():
    poisson = gaussian_event(1.18, **POISSON)
    with pytest.raises(UnsupportedEventError):
        RdpAccountant(neighboring_relation=REPLACE_ONE).compose(poisson)
    fixed_size = gaussian_event(2.7, **FIXED_SIZE)
    with pytest.raises(UnsupportedEventError):
        PLDAccountant(REPLACE_ONE).compose(fixed_size)
    with pytest.raises(UnsupportedEventError):
        RdpAccountant().compose(fixed_size)
    full = gaussian_event(3.7306)
    assert PLDAccountant(REPLACE_ONE).compose(full).get_epsilon(1e-5) > 2.0


GRID = np.linspace(-16, 16, 40_001)


def mixture(prob, center, other=0.0):
    """The density of a step: batches without the record, and with it."""
    density = scipy.stats.norm.pdf
    return (1 - prob) * density(GRID - other) + prob * density(GRID - center)


def hockey_stick(first, second, epsilon):
    excess = first - math.exp(epsilon) * second
    return scipy.integrate.trapezoid(np.maximum(excess, 0), GRID)


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 30.0])
@pytest.mark.parametrize("prob", [0.01, 0.3])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_one_step_of_fixed_size_by_direct_integration(multiplier, prob, delta):
    scheme = {"num_steps": 1, "num_samples": 1000, "batch_size": int(1000 * prob)}
    epsilon = noise_multiplier_to_epsilon(multiplier, delta, **scheme)
    # All other records +C, this one +C or -C: attained.
    attained = hockey_stick(
        mixture(prob, 1 / multiplier), scipy.stats.norm.pdf(GRID), epsilon
    )
    assert attained <= delta * (1 + 1e-6)
    if epsilon > 0:
        assert attained == pytest.approx(delta, rel=1e-4)
    # What is composed is the same, by a grid.
    losses = fixed_size_losses(multiplier, prob, epsilon / 50 + 1e-4)
    assert losses.get_epsilon_for_delta(delta) >= epsilon - 1e-9
    assert losses.get_epsilon_for_delta(delta) <= 1.01 * epsilon + 1e-4


def test_numbers_of_one_step_of_fixed_size():
    scheme = {"num_steps": 1, "num_samples": 100, "batch_size": 1}
    epsilon = noise_multiplier_to_epsilon(2.0, 1e-6, **scheme)
    assert epsilon == pytest.approx(0.04367, abs=1e-5)  # 0.2602 by Renyi divergences
    assert noise_multiplier_to_epsilon(2.0, 0.02, **scheme) == 0.0


@pytest.mark.parametrize("epsilon", [-1.0, -0.02, 0.0, 0.005, 0.05, 0.5, 2.0])
def test_no_step_of_fixed_size_passes_the_pair_that_dominates_it(epsilon):
    # Batches without the record, with it, and with its substitute: two of them are
    # within the sensitivity of each other.
    multiplier, prob = 0.8, 0.1
    bound = fixed_size_losses(multiplier, prob, 1e-3).get_delta_for_epsilon(epsilon)
    places = np.linspace(-1, 1, 9) / multiplier
    found = [
        hockey_stick(mixture(prob, a), mixture(prob, b), epsilon)
        for a in places
        for b in places
        if abs(a - b) <= 1 / multiplier
    ]
    assert 0.95 * bound <= max(found) <= bound + 1e-9


@pytest.mark.quick(1)
@pytest.mark.parametrize("multiplier", [0.5, 2.7, 100.0, 1e4])
def test_fixed_size_covers_two_attainable_cases(multiplier):
    claimed = noise_multiplier_to_epsilon(multiplier, 1e-5, **FIXED_SIZE)
    spacing = min(1e-4, 1e-3 / multiplier)

    def spent(relation, stddev):
        one = PoissonSampledDpEvent(0.01, GaussianDpEvent(stddev))
        accountant = PLDAccountant(relation, value_discretization_interval=spacing)
        return accountant.compose(SelfComposedDpEvent(one, 1000)).get_epsilon(1e-5)

    # All other records zero: +C against -C, seen with probability 0.01.
    assert claimed >= spent(REPLACE_ONE, 2 * multiplier) * (1 - 5e-3)
    # All other records +C: the sum only moves, by 2C, when -C takes a place.
    moved = spent(ADD_OR_REMOVE_ONE, multiplier)
    assert moved * (1 - 5e-3) <= claimed <= 1.15 * moved


def test_whole_data_as_one_batch_is_exact():
    ours = noise_multiplier(1.0, 1e-5, num_steps=50, num_samples=70, batch_size=70)
    exact = gaussian_stddev(1.0, 1e-5, sensitivity=1.0, num_releases=50)
    assert ours == exact
    assert ours == noise_multiplier(1.0, 1e-5, num_steps=50)


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheme", [POISSON, FIXED_SIZE])
def test_sampling_never_costs_more_than_full_batches(scheme):
    for multiplier in (1e-6, 0.02, 0.3, 10.0, 1e5, 1e9):
        sampled = noise_multiplier_to_epsilon(multiplier, 1e-5, **scheme)
        full = gaussian_epsilon(
            multiplier, 0.999e-5, sensitivity=1.0, num_releases=1000
        )
        assert sampled <= full


@pytest.mark.slow
def test_monotone():
    by_prob = [
        noise_multiplier(1.0, 1e-5, num_steps=500, sampling_prob=q)
        for q in (0.03, 0.3, 1.0)
    ]
    assert np.all(np.diff(by_prob) > 0)
    by_steps = [
        noise_multiplier(1.0, 1e-5, num_steps=t, sampling_prob=0.05)
        for t in (100, 1000)
    ]
    assert np.all(np.diff(by_steps) > 0)


SAMPLED = [POISSON, FIXED_SIZE, POISSON | {"relation": ADD_OR_REMOVE_ONE}]


@pytest.mark.parametrize("scheme", SAMPLED)
@pytest.mark.parametrize("other", [math.inf, 20.0])
def test_there_is_no_cliff_where_the_accountant_cannot_resolve_delta(scheme, other):
    # Its FFT resolves 1e-15 a step: without another bound epsilon is there 487.
    deltas = np.r_[2e-11, 1e-11, np.geomspace(1.3e-12, 0.9e-12, 12), 1e-13, 1e-15]
    epsilons = [
        noise_multiplier_to_epsilon(3.0, x, other_multiplier=other, **scheme)
        for x in deltas
    ]
    # From 1e-15 to 2e-11 a Gaussian's epsilon grows by a fifth.
    assert np.all(np.diff(epsilons) >= 0)
    assert np.max(np.diff(epsilons) / epsilons[1:]) < 0.09
    assert epsilons[-1] < 1.5 * epsilons[0]


@pytest.mark.parametrize("scheme", SAMPLED)
def test_little_noise_costs_much_at_a_tiny_delta(scheme):
    # Some moments overflow there: they must not pass for no cost.
    multipliers = (0.003, 0.01, 0.03, 0.1, 0.14, 0.3)
    found = [noise_multiplier_to_epsilon(m, 1e-12, **scheme) for m in multipliers]
    assert np.all(np.diff(found) < 0)
    assert found[-1] > 10


def test_numbers_of_a_tiny_delta():
    scheme = {"num_steps": 10_000, "sampling_prob": 0.00033}
    replaced = noise_multiplier_to_epsilon(4.0, 1e-12, **scheme)
    assert replaced == pytest.approx(0.0524, rel=0.02)  # 487 by full batches
    removed = noise_multiplier_to_epsilon(
        4.0, 1e-12, relation=ADD_OR_REMOVE_ONE, **scheme
    )
    assert removed == pytest.approx(0.0919, abs=1e-3)
    assert noise_multiplier(replaced, 1e-12, **scheme) == pytest.approx(4.0, rel=2e-3)


@pytest.mark.parametrize("multiplier", [0.8, 3.0])
@pytest.mark.parametrize("prob", [1e-3, 0.4])
@pytest.mark.parametrize("order", [1.5, 7.0, 16.0])
def test_renyi_divergences_of_a_step_by_direct_integration(multiplier, prob, order):
    x = np.linspace(-36, 36, 100_001)
    bound, mu = 0.5 / multiplier, 1 / multiplier

    def log_ratio(shift):
        return np.log1p(prob * np.expm1(shift * x - shift**2 / 2))

    normal = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    loss = log_ratio(mu)
    moments = {
        poisson_log_moment: np.exp(
            order * log_ratio(bound) + (1 - order) * log_ratio(-bound)
        ),
        fixed_size_log_moment: 1
        + (np.exp(order * loss) + np.exp((1 - order) * loss) - 1 - np.exp(loss))
        * (x > mu / 2),
    }
    for log_moment, integrand in moments.items():
        exact = math.log(scipy.integrate.trapezoid(normal * integrand, x))
        found = log_moment(order, multiplier, prob)
        assert exact * (1 - 1e-5) - 1e-12 <= found <= exact * 1.02 + 1e-12


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_steps", [100, 1000, 100_000])
def test_fft_error_of_the_accountant_is_set_aside(num_steps):
    # The full-batch Gaussian, composed by FFT, against its closed form.
    multiplier = math.sqrt(num_steps)
    step = PoissonSampledDpEvent(1.0, GaussianDpEvent(multiplier))
    accountant = PLDAccountant().compose(SelfComposedDpEvent(step, num_steps))
    # The same by our own losses, of batches of (nearly) all records, on a finer grid.
    steps = [
        fixed_size_losses(multiplier, 1.0, 0.1 / multiplier),
        losses_where_replaced(multiplier, 1 - 2**-53, 0.1 / multiplier),
        losses_where_removed(multiplier, 1 - 2**-53, 0.1 / multiplier),
    ]
    runs = [step.self_compose(num_steps).get_delta_for_epsilon for step in steps]
    for delta in (1e-9, 1e-11, 1e-13):
        epsilon = gaussian_epsilon(1.0, delta, sensitivity=1.0)
        for get_delta in (accountant.get_delta, *runs):
            assert delta - get_delta(epsilon) <= 1e-15 * num_steps


@pytest.mark.parametrize(
    "scheme",
    [
        {"num_steps": 50, "sampling_prob": 0.1},
        pytest.param(POISSON, marks=pytest.mark.slow),
        POISSON | {"relation": ADD_OR_REMOVE_ONE},
    ],
)
def test_other_releases_share_the_budget(scheme):
    other = noise_multiplier(1.0, 1e-5, num_steps=1) / math.sqrt(0.4)
    shared = scheme | {"other_multiplier": other}
    multiplier = noise_multiplier(1.0, 1e-5, **shared)
    assert multiplier > 1.01 * noise_multiplier(1.0, 1e-5, **scheme)
    found = noise_multiplier_to_epsilon(multiplier, 1e-5, **shared)
    assert 0.99 < found <= 1.0
    # An accountant by itself, with both events.
    relation = scheme.get("relation", REPLACE_ONE)
    accountant, unit = PLDAccountant(relation), 2 if relation is REPLACE_ONE else 1
    accountant.compose(gaussian_event(multiplier, **scheme))
    accountant.compose(GaussianDpEvent(unit * other))
    assert accountant.get_epsilon(0.999e-5) == pytest.approx(found, rel=0.01)
    assert found > gaussian_epsilon(other, 1e-5, sensitivity=1.0)


@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
def test_one_sampled_step_beside_another_release_by_direct_integration(relation):
    # The worse way of two: the pair of laws is a product of two pairs.
    prob, stddev, other, epsilon = 0.2, 1.5, 2.0, 0.6
    ends = (1.0, -1.0) if relation is REPLACE_ONE else (1.0, 0.0)
    distance = abs(ends[0] - ends[1])
    grid = np.linspace(-14, 14, 1401)

    def law(center):
        sampled = scipy.stats.norm(scale=stddev).pdf
        sampled = (1 - prob) * sampled(grid) + prob * sampled(grid - center)
        full = scipy.stats.norm(scale=other * distance).pdf(grid * distance - center)
        return np.outer(sampled, full * distance)

    first, second = map(law, ends)
    deltas = (
        np.maximum(p - math.exp(epsilon) * q, 0).sum() * (grid[1] - grid[0]) ** 2
        for p, q in ((first, second), (second, first))
    )
    scheme = {"num_steps": 1, "sampling_prob": prob, "relation": relation}
    claimed = noise_multiplier_to_epsilon(
        stddev / distance, max(deltas) / 0.999, other_multiplier=other, **scheme
    )
    assert epsilon - 1e-6 <= claimed <= epsilon + 2e-3  # the sum's own error


def test_other_releases_beside_full_batches_add_precisions():
    total = noise_multiplier(1.0, 1e-5, num_steps=1)
    other = total / math.sqrt(0.4)
    multiplier = noise_multiplier(1.0, 1e-5, num_steps=10, other_multiplier=other)
    assert multiplier == pytest.approx(total * math.sqrt(10 / 0.6), rel=2e-3)
    assert multiplier >= total * math.sqrt(10 / 0.6)
    zcdp = {"num_steps": 10, "noise": "laplace_log_normal"}
    total = noise_multiplier(1.0, 1e-5, num_steps=1, noise="laplace_log_normal")
    multiplier = noise_multiplier(
        1.0, 1e-5, other_multiplier=total / math.sqrt(0.4), **zcdp
    )
    assert multiplier == pytest.approx(total * math.sqrt(10 / 0.6), rel=2e-3)


def test_other_releases_that_leave_nothing_are_refused():
    alone = noise_multiplier(1.0, 1e-5, num_steps=1)
    for other in (0.9 * alone, 0.0):
        with pytest.raises(ValueError, match=r"^other_multiplier must be within the"):
            noise_multiplier(1.0, 1e-5, num_steps=5, other_multiplier=other)
    assert (
        noise_multiplier_to_epsilon(1.0, 1e-5, num_steps=5, other_multiplier=0.0)
        == math.inf
    )


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("num_samples", {"batch_size": 5}),
        ("batch_size", {"num_samples": 5}),
        ("batch_size", {"batch_size": 6, "num_samples": 5}),
        ("num_samples", {"batch_size": 1, "num_samples": 5.5}),
        ("sampling_prob", {"batch_size": 1, "num_samples": 5, "sampling_prob": 0.5}),
        (
            "relation",
            {"batch_size": 1, "num_samples": 5, "relation": ADD_OR_REMOVE_ONE},
        ),
        ("relation", {"relation": NeighboringRelation.REPLACE_SPECIAL}),
    ],
)
def test_bad_schemes_are_named(name, bad):
    scheme = {"num_steps": 10, **bad}
    with pytest.raises(ValueError, match=f"^{name} must be .*got"):
        noise_multiplier(1.0, 1e-5, **scheme)
    with pytest.raises(ValueError, match=f"^{name} must be .*got"):
        noise_multiplier_to_epsilon(1.0, 1e-5, **scheme)
    with pytest.raises(ValueError, match=f"^{name} must be .*got"):
        gaussian_event(1.0, **scheme)
