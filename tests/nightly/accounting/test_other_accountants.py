"""Costs are those that other accountants, or other batches, have."""

import math
from dataclasses import replace

import dp_accounting as dpa
import jax
import numpy as np
import pytest
import scipy.stats
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting, batching, mechanisms
from dpjax.accounting import Sampling, noise_multiplier, noise_multiplier_to_epsilon
from dpjax.accounting import _sampled_gaussian as losses
from dpjax.accounting._profiles import overflow_of
from dpjax.accounting._subsampling import gaussian_event
from tests.unit.accounting.test_subsampling import FIXED_SIZE, POISSON
from tests.unit.accounting.test_tuning import DELTA

BANDED = mechanisms.BandedToeplitz.square_root(40, 4)


def test_epsilons_are_those_of_jax_privacy():
    theirs = pytest.importorskip("jax_privacy.accounting")
    from jax_privacy.matrix_factorization import toeplitz

    config = theirs.PldAccountantConfig()
    sizes = {"num_samples": 400, "delta": 1e-5, "batch_size": 10}
    # Amplified bands under cyclic Poisson batches: of add/remove, as they have it.
    multiplier = 2.0 / BANDED.sensitivity()
    params = theirs.DpParams(noise_multipliers=multiplier, cycle_length=5, **sizes)
    expected = theirs.DpsgdTrainingAccountant(config).compute_epsilon(40, params)
    fields = {"strategy": BANDED, "relation": ADD_OR_REMOVE_ONE}
    sampling = batching.CyclicPoisson(10.0, 5).sampling(400, 40, **fields)
    epsilon = noise_multiplier_to_epsilon(2.0, 1e-5, sampling)
    np.testing.assert_allclose(epsilon, expected, rtol=2e-3)
    # One release of C g, by their sensitivity of two strategies and patterns.
    accountant = theirs.SingleReleaseTrainingAccountant(config)
    buffered = mechanisms.BufferedToeplitz(40, (0.9, 0.4), (0.3, 0.3))
    for strategy, most, apart in ((BANDED, 8, 5), (buffered, 4, 10)):
        with (
            jax.enable_x64(True),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            column = jax.numpy.asarray(strategy.toeplitz())
            squared = toeplitz.minsep_sensitivity_squared(column, apart, most)
        params = theirs.DpParams(noise_multipliers=6.0 / math.sqrt(squared), **sizes)
        pattern = {"max_participations": most, "min_separation": apart}
        sampling = Sampling(40, strategy=strategy, **pattern)
        epsilon = noise_multiplier_to_epsilon(6.0, 1e-5, sampling)
        expected = accountant.compute_epsilon(40, params)
        np.testing.assert_allclose(epsilon, expected, rtol=2e-3)


def test_groups_cost_what_dp_accounting_says():
    weights = tuple(scipy.stats.binom.pmf(range(4), 3, 0.1))
    step = MixtureOfGaussiansDpEvent(1.4, tuple(range(4)), weights)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    expected = accountant.compose(dpa.SelfComposedDpEvent(step, 20)).get_epsilon(1e-6)
    run = Sampling(num_steps=20, sampling_prob=0.1, relation=ADD_OR_REMOVE_ONE)
    delta = 1e-6 / (1 - 1e-3)
    epsilon = noise_multiplier_to_epsilon(1.4, delta, replace(run, group_size=3))
    assert epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("num_bins", [5, 40, 200])
@pytest.mark.parametrize("epochs", [1, 20])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_balls_in_bins_cost_no_more_than_poisson_batches(num_bins, epochs, epsilon):
    run = Sampling(num_steps=num_bins * epochs, relation=ADD_OR_REMOVE_ONE)
    bins = noise_multiplier(epsilon, 1e-8, replace(run, num_bins=num_bins))
    poisson = noise_multiplier(epsilon, 1e-8, replace(run, sampling_prob=1 / num_bins))
    assert 0.8 * poisson < bins <= 1.005 * poisson


def test_bins_of_replaced_records_cost_nearly_as_poisson_batches_do():
    sampling = batching.BallsInBins(39).sampling(10_000, 200)
    assert sampling == Sampling(200, num_bins=39)
    multiplier = noise_multiplier(1.0, 1e-5, sampling)
    without_gain = noise_multiplier(1.0, 1e-5, Sampling(num_steps=6))
    poisson = noise_multiplier(1.0, 1e-5, Sampling(num_steps=200, sampling_prob=1 / 39))
    assert poisson < multiplier < 1.04 * poisson < without_gain / 6


@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
def test_delta_of_a_run_in_bins_is_the_inverse_of_its_epsilon(relation):
    run = Sampling(num_steps=33, num_bins=10, relation=relation)
    deltas, event = np.array([1e-4, 1e-6]), gaussian_event(1.0, run)
    epsilons = [noise_multiplier_to_epsilon(1.0, d, run) for d in deltas]
    assert 0 < overflow_of(epsilons[1], 1e-6, event) < 1e-9
    spent = [accounting.delta_of(event, e, relation=relation) for e in epsilons]
    # Both are bounds, of which one has a thousandth of delta for overflow.
    assert (spent >= 0.995 * deltas).all()
    assert (spent <= 1.02 * deltas).all()


def sampled(prob, stddev, num_steps):
    step = dpa.PoissonSampledDpEvent(prob, dpa.GaussianDpEvent(stddev))
    return dpa.SelfComposedDpEvent(step, num_steps)


def test_noise_multipliers_and_epsilons_of_the_pages():
    # In units of the norm bound C of a record: replace-one sensitivity is 2C.
    budget = (1.0, 1e-5)
    assert round(2 * noise_multiplier(*budget, Sampling(num_steps=1000)), 1) == 235.9
    assert 2 * noise_multiplier(*budget, FIXED_SIZE) == pytest.approx(3.18, abs=0.01)
    assert 2 * noise_multiplier(*budget, POISSON) == pytest.approx(2.36, abs=0.01)
    # One epoch over 100 disjoint batches is a single step for each record.
    assert round(2 * noise_multiplier(*budget, Sampling(num_steps=1)), 2) == 7.46
    scheme = Sampling(num_steps=10_000, sampling_prob=0.00033)
    replaced = noise_multiplier_to_epsilon(4.0, 1e-12, scheme)
    assert replaced == pytest.approx(0.0524, rel=0.02)  # 487 by full batches
    assert noise_multiplier(replaced, 1e-12, scheme) == pytest.approx(4.0, rel=2e-3)
    scheme = replace(scheme, relation=ADD_OR_REMOVE_ONE)
    removed = noise_multiplier_to_epsilon(4.0, 1e-12, scheme)
    assert removed == pytest.approx(0.0919, abs=1e-3)
    scheme = Sampling(num_steps=1, num_samples=100, batch_size=1)
    epsilon = noise_multiplier_to_epsilon(2.0, 1e-6, scheme)
    assert epsilon == pytest.approx(0.04367, abs=1e-5)  # 0.2602 by Renyi divergences


def test_named_accountants_report_no_less_and_others_refuse():
    run = replace(POISSON, relation=ADD_OR_REMOVE_ONE)
    for multiplier in (0.6, 1.18, 20.0):
        accountant = RdpAccountant().compose(gaussian_event(multiplier, run))
        ours = noise_multiplier_to_epsilon(multiplier, 1e-5, run)
        assert ours <= accountant.get_epsilon(1e-5)
    multiplier = noise_multiplier(1.0, 1e-5, POISSON)
    poisson = gaussian_event(multiplier, POISSON)
    accountant = PLDAccountant(REPLACE_ONE).compose(poisson)
    assert 0.995 < accountant.get_epsilon(1e-5) <= 1.0
    # Of batches of fixed size it knows less.
    fixed_size = gaussian_event(multiplier, FIXED_SIZE)
    accountant = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(fixed_size)
    claimed = noise_multiplier_to_epsilon(multiplier, 1e-5, FIXED_SIZE)
    assert claimed < 0.6 * accountant.get_epsilon(1e-5)
    for accountant, event in (
        (RdpAccountant(neighboring_relation=REPLACE_ONE), poisson),
        (PLDAccountant(REPLACE_ONE), fixed_size),
        (RdpAccountant(), fixed_size),
    ):
        with pytest.raises(dpa.UnsupportedEventError):
            accountant.compose(event)
    full = gaussian_event(3.7306)
    assert PLDAccountant(REPLACE_ONE).compose(full).get_epsilon(1e-5) > 2.0


@pytest.mark.parametrize("multiplier", [0.5, 2.7, 100.0, 1e4])
def test_fixed_size_covers_two_attainable_cases(multiplier):
    claimed = noise_multiplier_to_epsilon(multiplier, 1e-5, FIXED_SIZE)
    spacing = min(1e-4, 1e-3 / multiplier)

    def spent(relation, stddev):
        accountant = PLDAccountant(relation, value_discretization_interval=spacing)
        return accountant.compose(sampled(0.01, stddev, 1000)).get_epsilon(1e-5)

    # All other records zero: +C against -C, seen with probability 0.01.
    assert claimed >= spent(REPLACE_ONE, 2 * multiplier) * (1 - 5e-3)
    # All other records +C: the sum only moves, by 2C, when -C takes a place.
    moved = spent(ADD_OR_REMOVE_ONE, multiplier)
    assert moved * (1 - 5e-3) <= claimed <= 1.15 * moved


@pytest.mark.parametrize("num_steps", [100, 1000, 100_000])
def test_fft_error_of_the_accountant_is_set_aside(num_steps):
    # The full-batch Gaussian, composed by FFT, against its closed form.
    multiplier = math.sqrt(num_steps)
    accountant = PLDAccountant().compose(sampled(1.0, multiplier, num_steps))
    # The same by our own losses, of batches of (nearly) all records, on a finer grid.
    steps = [
        losses.fixed_size_losses(multiplier, 1.0, 0.1 / multiplier),
        losses.losses_where_replaced(multiplier, 1 - 2**-53, 0.1 / multiplier),
        losses.losses_where_removed(multiplier, 1 - 2**-53, 0.1 / multiplier),
    ]
    runs = [step.self_compose(num_steps).get_delta_for_epsilon for step in steps]
    for delta in (1e-9, 1e-11, 1e-13):
        epsilon = accounting.gaussian_epsilon(1.0, delta, sensitivity=1.0)
        for get_delta in (accountant.get_delta, *runs):
            assert delta - get_delta(epsilon) <= 1e-15 * num_steps


def test_a_tuning_pays_for_batches_that_overflow():
    run = Sampling(num_steps=20, sampling_prob=0.05)
    event = gaussian_event(1.5, run)

    def price_of(event):
        return accounting.tuning_epsilon(event, DELTA, mean_trials=1)

    exact = noise_multiplier_to_epsilon(1.5, DELTA, run)
    assert 0.99 * exact <= price_of(event) <= 1.01 * exact
    run_epsilon = noise_multiplier_to_epsilon(1.5, 1e-7, run)
    guarantee = accounting.PrivacyGuarantee.of(run_epsilon, 1e-7, dp_event=event)
    assert price_of(event) < price_of(guarantee) < 1.01 * price_of(event)
