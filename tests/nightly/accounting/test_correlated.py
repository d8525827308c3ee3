"""Correlated noise costs what the accountant of another library says."""

import math

import jax
import numpy as np
import pytest

from dpjax import ADD_OR_REMOVE_ONE
from dpjax.accounting import noise_multiplier_to_epsilon
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
    pattern = CyclicPoisson(10.0, 5).participation(400, 40)
    epsilon = noise_multiplier_to_epsilon(
        2.0, 1e-5, strategy=BANDED, relation=ADD_OR_REMOVE_ONE, **pattern
    )
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
            6.0, 1e-5, strategy=strategy, num_steps=40, **pattern
        )
        expected = accountant.compute_epsilon(40, params)
        np.testing.assert_allclose(epsilon, expected, rtol=2e-3)
