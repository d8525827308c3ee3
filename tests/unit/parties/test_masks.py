"""Masks: they cancel, they are fresh, and they look like noise to everyone else."""

import itertools

import numpy as np
import pytest

from dpjax.parties._secure_sum import PairwiseMasks
from tests.parties import FALSE_ALARM, uniformity


def agreed(num_parties, make=PairwiseMasks):
    masks = [make(party) for party in range(num_parties)]
    public_keys = [mask.public_key for mask in masks]
    for mask in masks:
        mask.agree(public_keys)
    return masks


@pytest.mark.parametrize("num_parties", [1, 2, 5])
def test_masks_cancel_in_any_group(num_parties):
    masks = agreed(num_parties)
    groups = itertools.combinations(range(num_parties), max(1, num_parties - 1))
    for group in [tuple(range(num_parties)), *groups]:
        total = sum(masks[i].mask(group, attempt=3, size=7) for i in group)
        np.testing.assert_array_equal(total, np.zeros(7, np.uint64))


def test_a_missing_mask_leaves_noise_and_each_attempt_has_its_own():
    masks = agreed(4)
    total = sum(masks[i].mask(range(4), attempt=1, size=20_000) for i in range(3))
    assert uniformity(total) > FALSE_ALARM
    first, second, same = (
        masks[0].mask([0, 1], attempt=attempt, size=20_000) for attempt in (1, 2, 1)
    )
    assert uniformity(first - second) > FALSE_ALARM
    np.testing.assert_array_equal(first, same)
    assert uniformity(first - same) < FALSE_ALARM  # the test can fail


def test_a_short_mask_begins_a_long_one_and_no_two_runs_agree():
    masks = agreed(2)
    long, short = (masks[0].mask([0, 1], attempt=1, size=n) for n in (100, 10))
    np.testing.assert_array_equal(long[:10], short)
    other = agreed(2)[0].mask([0, 1], attempt=1, size=100)
    assert not np.any(long == other)  # false alarm 1e-17


def test_known_entropy_gives_known_keys_and_replaced_ones_other_masks():
    def known(party):
        return PairwiseMasks(party, np.random.default_rng(party).bytes)

    first, second = agreed(3, known), agreed(3, known)
    keys = [m.public_key for m in first]
    assert keys == [m.public_key for m in second]
    victim, middle = known(0), PairwiseMasks(1)
    victim.agree([keys[0], middle.public_key, keys[2]])
    masks = [m.mask([0, 2], attempt=1, size=9) for m in (first[0], second[0], victim)]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert not np.any(masks[0] == masks[2])


@pytest.mark.parametrize("key", [bytes(32), b"short"])
def test_a_bad_public_key_names_its_party(key):
    masks = PairwiseMasks(0)
    with pytest.raises(ValueError, match="party 1"):
        masks.agree([masks.public_key, key])
