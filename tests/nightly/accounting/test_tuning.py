"""The price of a selection at every law and base, and of sampled runs."""

from dataclasses import replace

import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent

from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier_to_epsilon,
    tuning_epsilon,
)
from tests.unit.accounting.test_tuning import BASES, DELTA, DISTRIBUTIONS, check_price


@pytest.mark.parametrize("mean", [1.5, 10.0])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("base", BASES)
def test_no_selection_costs_more_and_some_cost_about_as_much(base, distribution, mean):
    check_price(base, distribution, mean)


def test_sampled_events_are_read_and_not_below_their_accountant():
    run = Sampling(num_steps=20, sampling_prob=0.05)
    exact = noise_multiplier_to_epsilon(1.5, DELTA, run)
    price = tuning_epsilon(gaussian_event(1.5, run), DELTA, mean_trials=1)
    assert 0.99 * exact <= price <= 1.01 * exact
    # Of a run's guarantee, batches that overflow are paid besides.
    run_epsilon = noise_multiplier_to_epsilon(1.5, 1e-7, run)
    guarantee = PrivacyGuarantee.of(
        run_epsilon, 1e-7, dp_event=gaussian_event(1.5, run)
    )
    paid = tuning_epsilon(guarantee, DELTA, mean_trials=1)
    assert price < paid < 1.01 * price
    batches = Sampling(num_steps=20, num_samples=1_000, batch_size=50)
    exact = noise_multiplier_to_epsilon(1.5, DELTA, batches)
    price = tuning_epsilon(gaussian_event(1.5, batches), DELTA, mean_trials=1)
    assert 0.99 * exact <= price <= 1.01 * exact
    both = ComposedDpEvent((gaussian_event(1.5, batches), GaussianDpEvent(6.0)))
    exact = noise_multiplier_to_epsilon(
        1.5, DELTA, replace(batches, other_multiplier=6.0)
    )
    price = tuning_epsilon(both, DELTA, mean_trials=1)
    assert 0.99 * exact <= price <= 1.01 * exact
