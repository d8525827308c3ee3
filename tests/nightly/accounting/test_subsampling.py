"""Sampled training: other accountants, printed numbers, and the error of an FFT."""

import math
from dataclasses import replace

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.accounting import (
    Sampling,
    gaussian_epsilon,
    gaussian_event,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._fixed_size import fixed_size_losses
from dpjax.accounting._poisson_losses import losses_where_removed, losses_where_replaced
from tests.unit.accounting.test_subsampling import FIXED_SIZE, POISSON


def sampled(prob, stddev, num_steps):
    step = dpa.PoissonSampledDpEvent(prob, dpa.GaussianDpEvent(stddev))
    return dpa.SelfComposedDpEvent(step, num_steps)


def test_printed_numbers():
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
        fixed_size_losses(multiplier, 1.0, 0.1 / multiplier),
        losses_where_replaced(multiplier, 1 - 2**-53, 0.1 / multiplier),
        losses_where_removed(multiplier, 1 - 2**-53, 0.1 / multiplier),
    ]
    runs = [step.self_compose(num_steps).get_delta_for_epsilon for step in steps]
    for delta in (1e-9, 1e-11, 1e-13):
        epsilon = gaussian_epsilon(1.0, delta, sensitivity=1.0)
        for get_delta in (accountant.get_delta, *runs):
            assert delta - get_delta(epsilon) <= 1e-15 * num_steps
