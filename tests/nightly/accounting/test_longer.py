"""Longer searches against costs and perturbed objectives, and what they rest on."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpjax import solvers
from tests.privacy.accounting import test_perturbed_objectives as short
from tests.unit.accounting.test_smooth import MECHANISMS, check_cost


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("t", "s", "sigma"),
    [
        *((0.3, 0.05, 0.5), (0.05, 0.5, 0.5), (0.02, 0.2, 0.3)),
        *((0.2, 0.5, 1.0), (1e-3, 1, 1)),
    ],
)
def test_cost_covers_the_renyi_divergence(mechanism, t, s, sigma):
    check_cost(mechanism, t, s, sigma)


@pytest.mark.parametrize("is_printed", [False, True])
@pytest.mark.parametrize("strength", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("loss", short.LOSSES)
def test_exact_losses_of_chosen_neighbours(loss, strength, is_printed):
    others = np.array([short.direction(0.2), short.direction(1.0)])
    for angle in (math.pi, math.pi / 2, math.pi / 2 + 0.02, 0.3):
        records = np.array([short.direction(0.2), short.direction(0.2 + angle)])
        attack = short.Attack(loss, 1.0, 1e-3, strength, records, others)
        assert attack.ratio(is_printed) <= 1 + short.QUADRATURE


@pytest.mark.parametrize("seed", [10, 11, 12])
@pytest.mark.parametrize("is_printed", [False, True])
def test_no_attack_that_is_found_exceeds_what_is_stated(is_printed, seed):
    assert 0.9 < short.search(is_printed, seed, 300, 60) <= 1 + short.QUADRATURE


def test_released_points_have_the_density_that_is_attacked():
    rows = np.array(
        [short.direction(0.2), short.direction(1.8), short.direction(3.0, 0.4)]
    )

    def solve(key):
        data, budget = (jnp.float32(rows), jnp.ones(3)), {"epsilon": 1.0, "delta": 1e-3}
        return solvers.dp_objective_perturbation(
            *data, key=key, regularization=0.0, **budget
        )

    keys = jax.random.split(jax.random.key(5), 2000)
    stats = solve(jax.random.key(0)).stats
    params = np.asarray(jax.vmap(lambda key: solve(key).params)(keys), np.float64)
    total, stddev = 3 * float(stats["regularization"]), float(stats["stddev"])
    rows = rows.astype(np.float32).astype(np.float64)
    slopes = -scipy.special.expit(-params @ rows.T)
    eta = -(total * params + slopes @ rows)
    # False alarms 1e-6 each: the law along three directions, five standard errors.
    for values in (eta[:, 0], eta[:, 1], eta.sum(axis=1) / math.sqrt(2)):
        assert scipy.stats.kstest(values / stddev, "norm").pvalue > 1e-6
    error = 5 / math.sqrt(2 * eta.size)
    assert np.sqrt(np.mean(eta**2)) / stddev == pytest.approx(1, abs=error)
