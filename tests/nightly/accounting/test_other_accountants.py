"""Costs are those that other accountants, or other batches, have."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.stats
from dp_accounting import SelfComposedDpEvent
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE, accounting, batching
from dpjax.accounting import Sampling, noise_multiplier, noise_multiplier_to_epsilon
from dpjax.accounting._profiles import overflow_of
from dpjax.batching import CyclicPoisson
from dpjax.mechanisms import BandedToeplitz, BufferedToeplitz

BANDED = BandedToeplitz.square_root(40, 4)


def test_costs_are_jax_privacys():
    theirs = pytest.importorskip("jax_privacy.accounting")
    from jax_privacy.matrix_factorization import toeplitz

    config = theirs.PldAccountantConfig()
    sizes = {"num_samples": 400, "delta": 1e-5, "batch_size": 10}
    # Amplified bands under cyclic Poisson batches: of add/remove, as they have it.
    multiplier = 2.0 / BANDED.sensitivity()
    params = theirs.DpParams(noise_multipliers=multiplier, cycle_length=5, **sizes)
    expected = theirs.DpsgdTrainingAccountant(config).compute_epsilon(40, params)
    fields = {"strategy": BANDED, "relation": ADD_OR_REMOVE_ONE}
    sampling = CyclicPoisson(10.0, 5).sampling(400, 40, **fields)
    epsilon = noise_multiplier_to_epsilon(2.0, 1e-5, sampling)
    np.testing.assert_allclose(epsilon, expected, rtol=2e-3)
    # One release of C g, by their sensitivity of two strategies and patterns.
    accountant = theirs.SingleReleaseTrainingAccountant(config)
    for strategy, most, apart in (
        (BANDED, 8, 5),
        (BufferedToeplitz(40, (0.9, 0.4), (0.3, 0.3)), 4, 10),
    ):
        with (
            jax.enable_x64(True),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            squared = toeplitz.minsep_sensitivity_squared(
                jax.numpy.asarray(strategy.toeplitz()), apart, most
            )
        params = theirs.DpParams(noise_multipliers=6.0 / math.sqrt(squared), **sizes)
        pattern = {"max_participations": most, "min_separation": apart}
        epsilon = noise_multiplier_to_epsilon(
            6.0, 1e-5, Sampling(40, strategy=strategy, **pattern)
        )
        expected = accountant.compute_epsilon(40, params)
        np.testing.assert_allclose(epsilon, expected, rtol=2e-3)


def test_groups_cost_what_the_library_says():
    weights = tuple(scipy.stats.binom.pmf(range(4), 3, 0.1))
    step = MixtureOfGaussiansDpEvent(1.4, tuple(range(4)), weights)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    expected = accountant.compose(SelfComposedDpEvent(step, 20)).get_epsilon(1e-6)
    run = Sampling(num_steps=20, sampling_prob=0.1, relation=ADD_OR_REMOVE_ONE)
    delta = 1e-6 / (1 - 1e-3)
    epsilon = noise_multiplier_to_epsilon(1.4, delta, replace(run, group_size=3))
    assert epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("num_bins", [5, 40, 200])
@pytest.mark.parametrize("epochs", [1, 20])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_costs_no_more_than_poisson_batches(num_bins, epochs, epsilon):
    run = Sampling(num_steps=num_bins * epochs, relation=ADD_OR_REMOVE_ONE)
    bins = noise_multiplier(epsilon, 1e-8, replace(run, num_bins=num_bins))
    poisson = noise_multiplier(epsilon, 1e-8, replace(run, sampling_prob=1 / num_bins))
    assert 0.8 * poisson < bins <= 1.005 * poisson


def test_replaced_records_in_an_order_of_256_of_10_000():
    sampling = batching.BallsInBins(39).sampling(10_000, 200)
    assert sampling == Sampling(200, num_bins=39)
    multiplier = noise_multiplier(1.0, 1e-5, sampling)
    without_gain = noise_multiplier(1.0, 1e-5, Sampling(num_steps=6))
    poisson = noise_multiplier(1.0, 1e-5, Sampling(num_steps=200, sampling_prob=1 / 39))
    assert poisson < multiplier < 1.04 * poisson < without_gain / 6


@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE_ONE])
def test_profile_of_a_run(relation):
    run = Sampling(num_steps=33, num_bins=10, relation=relation)
    deltas, event = np.array([1e-4, 1e-6]), accounting.gaussian_event(1.0, run)
    epsilons = [noise_multiplier_to_epsilon(1.0, d, run) for d in deltas]
    assert 0 < overflow_of(epsilons[1], 1e-6, event) < 1e-9
    spent = [accounting.delta_of(event, e, relation=relation) for e in epsilons]
    # Both are bounds, of which one has a thousandth of delta for overflow.
    assert (spent >= 0.995 * deltas).all()
    assert (spent <= 1.02 * deltas).all()
