"""What runs with correlated noise cost, against other accountants."""

import math

import jax
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SingleEpochTreeAggregationDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import ADD_OR_REMOVE_ONE, NeighboringRelation, accounting
from dpjax.accounting import noise_multiplier, noise_multiplier_to_epsilon
from dpjax.batching import CyclicPoisson, Disjoint, Full
from dpjax.mechanisms import BandedToeplitz, BinaryTree, BufferedToeplitz

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
BANDED = BandedToeplitz.square_root(40, 4)


def test_one_band_is_independent_noise():
    one = BandedToeplitz(40, (1.0,))
    for batching in (Full(), Disjoint(), CyclicPoisson(2.0, 5)):
        correlated = noise_multiplier_to_epsilon(
            3.0, 1e-5, strategy=one, **batching.participation(400, 40)
        )
        independent = accounting.noise_multiplier_to_epsilon(
            3.0, 1e-5, **batching.accounting(400, 40)
        )
        np.testing.assert_allclose(correlated, independent, rtol=1e-6)


def test_sampling_costs_less_and_full_groups_the_same():
    def epsilon(expected, strategy=BANDED):
        pattern = CyclicPoisson(expected, 5).participation(400, 40)
        return noise_multiplier_to_epsilon(4.0, 1e-5, strategy=strategy, **pattern)

    whole = BANDED.sensitivity(max_participations=8, min_separation=5)
    expected = accounting.gaussian_epsilon(4.0, 1e-5, sensitivity=whole)
    np.testing.assert_allclose(epsilon(80.0), expected)
    assert epsilon(10.0) < 0.5 * epsilon(80.0)


def test_a_tree_is_dp_accountings():
    # One epoch of 40 steps: 6 nodes hold a step. Theirs goes through Renyi divergences.
    pattern = Disjoint().participation(400, 40)
    ours = noise_multiplier_to_epsilon(7.0, 1e-5, strategy=BinaryTree(40), **pattern)
    accountant = RdpAccountant(neighboring_relation=REPLACE_SPECIAL)
    accountant.compose(SingleEpochTreeAggregationDpEvent(7.0, 40))
    theirs = accountant.get_epsilon(1e-5)
    same = RdpAccountant().compose(GaussianDpEvent(7.0 / math.sqrt(6)))
    np.testing.assert_allclose(theirs, same.get_epsilon(1e-5))
    assert 0.8 * theirs < ours <= theirs


@pytest.mark.slow
def test_costs_are_jax_privacys():
    theirs = pytest.importorskip("jax_privacy.accounting")
    config = theirs.PldAccountantConfig()
    # Amplified bands under cyclic Poisson batches: of add/remove, as they have it.
    pattern = CyclicPoisson(10.0, 5).participation(400, 40)
    scale = BANDED.sensitivity()
    params = theirs.DpParams(
        noise_multipliers=2.0 / scale,
        num_samples=400,
        delta=1e-5,
        batch_size=10,
        cycle_length=5,
    )
    expected = theirs.DpsgdTrainingAccountant(config).compute_epsilon(40, params)
    found = noise_multiplier_to_epsilon(
        2.0, 1e-5, strategy=BANDED, relation=ADD_OR_REMOVE_ONE, **pattern
    )
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    # One release of C g, by their sensitivity of two strategies and patterns.
    from jax_privacy.matrix_factorization import toeplitz

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
        params = theirs.DpParams(
            noise_multipliers=6.0 / math.sqrt(squared),
            num_samples=400,
            delta=1e-5,
            batch_size=10,
        )
        accountant = theirs.SingleReleaseTrainingAccountant(config)
        expected = accountant.compute_epsilon(40, params)
        found = noise_multiplier_to_epsilon(
            6.0,
            1e-5,
            strategy=strategy,
            num_steps=40,
            max_participations=most,
            min_separation=apart,
        )
        np.testing.assert_allclose(found, expected, rtol=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": 4}, "strategy must be one of dpjax.mechanisms"),
        (
            {"strategy": None, "max_participations": 2},
            "max_participations must be 1 without a strategy, got 2",
        ),
        ({"strategy": None, "min_separation": 2}, "min_separation must be 1 without"),
        ({"batch_size": 5, "num_samples": 10}, "num_samples must be None, the default"),
        ({"noise": "laplace_log_normal"}, "noise must be gaussian, the default, with"),
        ({"other_multiplier": 3.0}, "other_multiplier must be inf, the default, with"),
        ({"num_steps": 41}, "num_steps must be at most the 40 steps of Banded"),
        (
            {"sampling_prob": 0.5, "min_separation": 3},
            "min_separation must be at least the 4 bands",
        ),
        (
            {"sampling_prob": 0.5, "min_separation": 5, "strategy": BinaryTree(40)},
            "min_separation must be at least the 32 bands",
        ),
    ],
)
def test_what_does_not_fit_is_named(options, message):
    options = {"strategy": BANDED, "num_steps": 40} | options
    with pytest.raises(ValueError, match=message):
        noise_multiplier(1.0, 1e-5, **options)
    with pytest.raises(ValueError, match=message):
        noise_multiplier_to_epsilon(1.0, 1e-5, **options)
