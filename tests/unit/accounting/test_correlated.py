"""What runs with correlated noise cost, against other accountants."""

import math

import numpy as np
from dp_accounting import GaussianDpEvent, SingleEpochTreeAggregationDpEvent
from dp_accounting.rdp import RdpAccountant

from dpjax import NeighboringRelation, accounting
from dpjax.accounting import noise_multiplier_to_epsilon
from dpjax.batching import CyclicPoisson, Disjoint, Full
from dpjax.mechanisms import BandedToeplitz, BinaryTree

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
BANDED = BandedToeplitz.square_root(40, 4)


def test_one_band_is_independent_noise():
    one = BandedToeplitz(40, (1.0,))
    for batching in (Full(), Disjoint(), CyclicPoisson(2.0, 5)):
        correlated = noise_multiplier_to_epsilon(
            3.0, 1e-5, batching.sampling(400, 40, strategy=one)
        )
        independent = accounting.noise_multiplier_to_epsilon(
            3.0, 1e-5, batching.sampling(400, 40)
        )
        np.testing.assert_allclose(correlated, independent, rtol=1e-6)


def test_sampling_costs_less_and_full_groups_the_same():
    def epsilon(expected, strategy=BANDED):
        sampling = CyclicPoisson(expected, 5).sampling(400, 40, strategy=strategy)
        return noise_multiplier_to_epsilon(4.0, 1e-5, sampling)

    whole = BANDED.sensitivity(max_participations=8, min_separation=5)
    expected = accounting.gaussian_epsilon(4.0, 1e-5, sensitivity=whole)
    np.testing.assert_allclose(epsilon(80.0), expected)
    assert epsilon(10.0) < 0.5 * epsilon(80.0)


def test_a_tree_is_dp_accountings():
    # One epoch of 40 steps: 6 nodes hold a step. Theirs goes through Renyi divergences.
    sampling = Disjoint().sampling(400, 40, strategy=BinaryTree(40))
    ours = noise_multiplier_to_epsilon(7.0, 1e-5, sampling)
    accountant = RdpAccountant(neighboring_relation=REPLACE_SPECIAL)
    accountant.compose(SingleEpochTreeAggregationDpEvent(7.0, 40))
    theirs = accountant.get_epsilon(1e-5)
    same = RdpAccountant().compose(GaussianDpEvent(7.0 / math.sqrt(6)))
    np.testing.assert_allclose(theirs, same.get_epsilon(1e-5))
    assert 0.8 * theirs < ours <= theirs
