"""The price of a private selection, against selections whose privacy is computed."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax.accounting import PrivacyGuarantee, gaussian_epsilon
from dpjax.accounting._tuning import TrialCount, tuning_budget, tuning_epsilon

DELTA = 1e-5
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "negative_binomial": -0.5}
DISTRIBUTIONS = (*SHAPES, "poisson", "binomial")


def generating_function(distribution, mean):
    """x -> E x^K, of the law of K with this mean, written anew."""
    if distribution == "poisson":
        return lambda x: np.exp(mean * (x - 1))
    if distribution == "binomial":
        n = math.ceil(2 * mean)
        return lambda x: (1 + mean / n * (x - 1)) ** n
    if distribution == "geometric":
        return lambda x: x / mean / (1 - (1 - 1 / mean) * x)
    if distribution == "negative_binomial":  # its root of gamma is 1 / (2 mean - 1)
        root = 1 / (2 * mean - 1)
        return lambda x: (1 - np.sqrt(1 - (1 - root**2) * x)) / (1 - root)
    gamma = scipy.optimize.brentq(
        lambda x: (1 / x - 1) / math.log(1 / x) - mean, 1e-12, 1 - 1e-9, xtol=1e-16
    )
    return lambda x: np.log1p(-(1 - gamma) * x) / math.log(gamma)


def gaussian_atoms(mu):
    ends = np.r_[-np.inf, np.linspace(-8, 8 + mu, 800), np.inf]
    return (np.diff(scipy.special.ndtr(ends - shift)) for shift in (mu, 0.0))


def laplace_atoms(epsilon):
    ends = np.r_[-np.inf, np.linspace(-40 / epsilon, 40 / epsilon + 1, 999), np.inf]
    return (np.diff(scipy.stats.laplace.cdf(ends, s, 1 / epsilon)) for s in (1, 0))


def response_atoms(epsilon):
    """Randomised response, each answer in parts: ties are broken by one of them."""
    truth = scipy.special.expit(epsilon)
    parts = np.full(400, 1 / 400)
    yield np.r_[(1 - truth) * parts, truth * parts]
    yield np.r_[truth * parts, (1 - truth) * parts]


def discrete_atoms(stddev):
    """Whole numbers of a discrete Gaussian: each in parts, as ties are broken."""
    x = np.arange(-12 * stddev, 12 * stddev + 1)
    parts = np.full(10, 0.1)
    for shift in (1, 0):
        mass = np.exp(-((x - shift) ** 2) / (2 * stddev**2))
        yield np.outer(mass / mass.sum(), parts).ravel()


def exact_delta(p, q, f, epsilon):
    """The delta of a selection among outputs in order, worst last, for p against q."""
    p, q = (np.diff(f(np.minimum(np.r_[0, np.cumsum(x)], 1.0))) for x in (p, q))
    return np.sum(np.maximum(p - np.exp(epsilon) * q, 0.0))


def exact_epsilon(p, q, f, delta, least=0.0):
    """That of one selection among outputs in order, by bisection."""
    low, high = least, 50.0
    if exact_delta(p, q, f, low) <= delta:
        return low
    for _ in range(30):
        middle = (low + high) / 2
        is_above = exact_delta(p, q, f, middle) > delta
        low, high = (middle, high) if is_above else (low, middle)
    return low


def attacked_epsilon(atoms, f, delta):
    """The largest epsilon of orders of the atoms: by ratio, some of them put on top."""
    p, q = atoms
    ratios = np.argsort(np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(q, 1e-300)))
    size, epsilon = len(p), 0.0
    for top in range(0, size, size // 60):
        order = np.r_[ratios[top:], ratios[:top]]
        epsilon = exact_epsilon(p[order], q[order], f, delta, epsilon)
        epsilon = exact_epsilon(q[order[::-1]], p[order[::-1]], f, delta, epsilon)
    return epsilon


# What one run costs, and its laws on two neighbours.
BASES = {
    "gaussian": (dpa.GaussianDpEvent(2.0), lambda: gaussian_atoms(0.5)),
    "gaussian, twice": (
        dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(8 * math.sqrt(2)), 2),
        lambda: gaussian_atoms(1 / 8),
    ),
    "response": (0.5, lambda: response_atoms(0.5)),
    "laplace": (dpa.LaplaceDpEvent(1 / 0.7), lambda: laplace_atoms(0.7)),
    "discrete": (dpa.ZCDpEvent(1 / 18), lambda: discrete_atoms(3)),
}


@pytest.mark.quick(7)
@pytest.mark.parametrize("mean", [1.5, 10.0])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("base", BASES)
def test_no_selection_costs_more_and_some_cost_about_as_much(base, distribution, mean):
    event, atoms = BASES[base]
    f = generating_function(distribution, mean)
    price = tuning_epsilon(event, DELTA, mean_trials=mean, distribution=distribution)
    attacked = attacked_epsilon(tuple(atoms()), f, DELTA)
    assert attacked <= price
    # The profile of a discrete Gaussian is known by its zCDP alone.
    assert price <= attacked * (1.35 if base == "discrete" else 1.04)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_price_of_pure_runs_is_met(distribution):
    epsilon = 3.0 if distribution == "geometric" else 0.5
    f = generating_function(distribution, 7.5)
    price = tuning_epsilon(epsilon, 0.0, mean_trials=7.5, distribution=distribution)
    attacked = attacked_epsilon(tuple(response_atoms(epsilon)), f, 1e-12)
    assert 0.98 * price <= attacked <= price


def test_pure_runs_cost_less_than_the_theorems():
    for mean in (1.5, 10.0, 300.0):
        for distribution, shape in SHAPES.items():
            options = {"mean_trials": mean, "distribution": distribution}
            price = tuning_epsilon(0.4, 0.0, **options)
            assert 0.4 < price < (2 + shape) * 0.4  # Papernot, Steinke (2022)
        price = tuning_epsilon(0.4, 0.0, mean_trials=mean, distribution="poisson")
        assert price == pytest.approx(0.4 + mean * math.tanh(0.2), rel=1e-8)
    assert tuning_epsilon(0.4, 0.0, mean_trials=1e6) > 0.9999 * 1.2


@pytest.mark.parametrize(
    ("rho", "distribution", "mean"),
    [(0.002, "poisson", 3.0), (0.1, "geometric", 30.0), (0.1, "logarithmic", 3.0)],
)
def test_no_price_is_above_the_renyi_theorems(rho, distribution, mean):
    options = {"mean_trials": mean, "distribution": distribution}
    by_orders = tuning_epsilon(dpa.ZCDpEvent(rho), DELTA, **options)
    gaussian = dpa.GaussianDpEvent(math.sqrt(0.5 / rho))
    by_profile = tuning_epsilon(gaussian, DELTA, **options)
    shape = SHAPES.get(distribution, math.inf)  # at least 0 for that accountant
    event = RepeatAndSelectDpEvent(dpa.ZCDpEvent(rho), mean, shape)
    theorem = RdpAccountant().compose(event).get_epsilon(DELTA)
    assert by_profile < by_orders <= theorem * 1.01
    assert by_orders > 0.5 * theorem


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("mean", [1.0, 40.0])
def test_laws_are_what_their_generating_functions_say(distribution, mean):
    law = TrialCount(distribution, mean)
    k = np.arange(250_000)
    probs = law.prob(k)
    assert np.sum(probs) == pytest.approx(1, abs=1e-9)
    assert np.sum(k * probs) == pytest.approx(mean, rel=1e-7)
    assert (probs[0] == 0) == law.is_truncated
    z = np.array([0.0, 0.2, 0.7, 1.0])
    slope = np.sum((k * probs)[1:] * (1 - z[:, None]) ** (k[1:] - 1), axis=1)
    np.testing.assert_allclose(law.rise(z), np.log(mean / slope), atol=1e-6)
    near = (law.rise(z + 1e-6) - law.rise(z)) / 1e-6
    np.testing.assert_allclose(law.steepness(z), near, rtol=1e-2, atol=1e-9)
    if mean > 1:
        expected = np.sum(probs * (1 - z[:, None]) ** k, axis=1)
        generated = generating_function(distribution, mean)(1 - z)
        np.testing.assert_allclose(generated, expected, atol=1e-9)


@pytest.mark.parametrize("distribution", ["geometric", "binomial"])
def test_the_budget_of_a_run_is_the_inverse(distribution):
    options = {"mean_trials": 12.0, "distribution": distribution}
    for epsilon, delta in [(0.1, 0.0), (1.0, 1e-6)]:
        base = tuning_budget(epsilon, delta, **options)
        assert 0.999 * epsilon <= tuning_epsilon(base, delta, **options) <= epsilon


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:3])
def test_a_tuning_of_one_run_costs_what_the_run_costs(distribution):
    options = {"mean_trials": 1, "distribution": distribution}
    assert tuning_epsilon(0.7, 0.0, **options) == pytest.approx(0.7, rel=1e-8)
    exact = gaussian_epsilon(2.0, DELTA, sensitivity=1.0)
    price = tuning_epsilon(dpa.GaussianDpEvent(2.0), DELTA, **options)
    assert exact <= price <= exact * (1 + 1e-8)


def test_a_guarantee_counts_where_its_event_is_unknown():
    def guarantee(event, delta=1e-6):
        return PrivacyGuarantee.of(0.3, delta, dp_event=event)

    options = {"mean_trials": 5.0, "distribution": "geometric"}
    stated = tuning_epsilon(guarantee(dpa.UnsupportedDpEvent()), DELTA, **options)
    assert 0.3 < stated < 0.9
    # The five runs' delta cannot be paid from less.
    assert tuning_epsilon(guarantee(dpa.UnsupportedDpEvent()), 1e-6, **options) > 5
    known = tuning_epsilon(guarantee(dpa.GaussianDpEvent(20.0)), DELTA, **options)
    assert known < stated
    alone = tuning_epsilon(dpa.GaussianDpEvent(20.0), DELTA, **options)
    assert known == pytest.approx(alone, rel=1e-3)
    pure = tuning_epsilon(guarantee(dpa.UnsupportedDpEvent(), 0.0), 0.0, **options)
    assert pure == tuning_epsilon(0.3, 0.0, **options)
    assert tuning_epsilon(PrivacyGuarantee.non_private(), DELTA, **options) == math.inf


def test_a_tuning_costs_zero_or_infinity_where_its_runs_do():
    assert tuning_epsilon(0.0, 0.0, mean_trials=5) == 0
    assert tuning_epsilon(math.inf, 0.0, mean_trials=5) == math.inf
    assert tuning_epsilon(math.inf, DELTA, mean_trials=5) == math.inf
    lies = dpa.RandomizedResponseDpEvent(0.0, 2)
    assert tuning_epsilon(lies, 0.0, mean_trials=5) == math.inf
    assert tuning_epsilon(dpa.GaussianDpEvent(1.0), 0.0, mean_trials=5) == math.inf
    assert tuning_epsilon(dpa.GaussianDpEvent(0.0), 0.1, mean_trials=5) == math.inf
    assert tuning_epsilon(dpa.GaussianDpEvent(math.inf), 0.1, mean_trials=5) == 0
