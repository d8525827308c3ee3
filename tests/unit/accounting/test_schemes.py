"""Settings of a run that do not fit each other are refused, and named."""

import pytest

from dpjax import ADD_OR_REMOVE_ONE, NeighboringRelation
from dpjax.accounting import Sampling, gaussian_event
from dpjax.mechanisms import BandedToeplitz, BinaryTree

SIZES = {"num_samples": 5, "batch_size": 1}
BANDED = {"strategy": BandedToeplitz.square_root(9, 4)}
TREE = {"strategy": BinaryTree(9), "sampling_prob": 0.5}
CYCLIC = {"sampling_prob": 0.1, "min_separation": 4, "max_participations": 3}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("num_samples", {"batch_size": 5}),
        ("batch_size", {"num_samples": 5}),
        ("batch_size", SIZES | {"batch_size": 6}),
        ("num_samples", SIZES | {"num_samples": 5.5}),
        ("sampling_prob", SIZES | {"sampling_prob": 0.5}),
        ("relation", SIZES | {"relation": ADD_OR_REMOVE_ONE}),
        ("relation", {"relation": NeighboringRelation.REPLACE_SPECIAL}),
        ("num_bins", {"num_bins": 0}),
        ("num_bins", {"num_bins": 4, "sampling_prob": 0.1}),
        ("num_bins", SIZES | {"num_bins": 4}),
        ("noise", {"num_bins": 4, "noise": "laplace"}),
        ("group_size", {"group_size": 2, "num_bins": 4}),
        ("group_size", SIZES | {"group_size": 2}),
        ("group_size", BANDED | CYCLIC | {"group_size": 2}),
        ("strategy", {"strategy": 4}),
        ("max_participations", {"max_participations": 2}),
        ("min_separation", {"min_separation": 2}),
        ("num_samples", BANDED | SIZES),
        ("noise", BANDED | {"noise": "laplace_log_normal"}),
        ("other_multiplier", BANDED | {"other_multiplier": 3.0}),
        ("num_steps", BANDED | {"num_steps": 10}),
        ("min_separation", BANDED | {"sampling_prob": 0.5, "min_separation": 3}),
        ("min_separation", TREE | {"min_separation": 5}),
    ],
)
def test_what_does_not_fit_is_named(name, options):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Sampling(**{"num_steps": 9} | options)


@pytest.mark.parametrize("field", [{"other_multiplier": 3.0}, {"group_size": 2}])
def test_an_event_is_of_these_steps_and_of_one_record(field):
    with pytest.raises(ValueError, match=f"^{next(iter(field))} must be"):
        gaussian_event(1.0, Sampling(9, **field))
