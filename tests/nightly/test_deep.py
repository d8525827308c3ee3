"""Deep networks: a plan and its price, and hindsight."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks.deep import methods, tasks
from benchmarks.deep.methods import Setting, grid_losses
from dpjax.accounting import Sampling, noise_multiplier, noise_multiplier_to_epsilon


@pytest.mark.parametrize("num_bands", [1, 4])
def test_a_plan_costs_its_epsilon(num_bands):
    how, last, strategy = methods.plan(1_600, 3.0, 1e-4, 40, num_bands), 1.0, {}
    if num_bands > 1:
        sums = np.tri(40) @ np.linalg.inv(how.noise.matrix())
        last = np.linalg.norm(sums[-1]) / np.sqrt(40)
        strategy = {"strategy": how.noise}
    sampling = how.batching.sampling(1_600, 40, **strategy)
    assert how.stddev == pytest.approx(2 * how.multiplier / 100 * last)
    assert 2.97 < noise_multiplier_to_epsilon(how.multiplier, 1e-4, sampling) <= 3.0


def test_a_last_layer_anew_is_paid_with_the_steps():
    how = methods.plan(1_600, 3.0, 1e-4, 40, head_share=0.4)
    sampling = how.batching.sampling(1_600, 40)
    steps = noise_multiplier_to_epsilon(how.multiplier, 1e-4, sampling)
    # What dp_linear_model takes at that epsilon, for all of its releases.
    head = noise_multiplier(how.head_epsilon, 1e-4, Sampling(num_steps=1))
    both = noise_multiplier_to_epsilon(
        how.multiplier, 1e-4, dataclasses.replace(sampling, other_multiplier=head)
    )
    assert 2.97 < both <= 3.0
    assert max(steps, how.head_epsilon) < 2.7 < steps + how.head_epsilon


def test_hindsight_takes_the_best_of_its_grid_and_reports_fresh_keys(monkeypatch):
    monkeypatch.setattr("benchmarks.deep.methods.NORMS", (1.0, 10.0))
    monkeypatch.setattr("benchmarks.deep.methods.RATES", (0.001, 1.0))
    monkeypatch.setattr("benchmarks.deep.methods.STEPS", (10,))
    task, key = tasks.task("digits"), jax.random.key(0)
    losses = grid_losses(task, methods.METHODS["hindsight"], 8.0, key)
    assert len(losses) == 4
    best = min(losses, key=lambda one: losses[one])
    assert best.learning_rate == 1.0
    assert losses[best] < 0.9 * losses[Setting(1.0, 0.001, 10)]
    found = methods.run_one(task, "hindsight", 8.0, 2)
    assert (found["facts"]["rate"], found["facts"]["num_steps"]) == (1.0, 10)
    assert found["excess"][0] != found["excess"][1]
