"""A sample of a stream: uniform in any order, the same for any chunks, and small."""

import jax
import numpy as np
import pytest

from dpjax import mechanisms
from dpjax._reservoir import Reservoir, Tags
from dpjax.accounting import (
    PrivacyGuarantee,
    Sample,
    gaussian_event,
    gaussian_stddev,
)
from dpjax.audit import epsilon_lower_bound
from dpjax.loading import MemoryMapped, sample


def chunks(num, size):
    """Records 0 to num - 1 of two columns."""
    for start in range(0, num, size):
        numbers = np.arange(start, min(start + size, num))
        yield {"number": numbers, "pair": np.stack([numbers, -numbers], axis=1)}


def test_each_order_of_each_subset_is_as_likely():
    num, size, total = 5, 3, 1800
    counts = np.zeros((num,) * size)
    for key in jax.random.split(jax.random.key(0), total):
        drawn, _ = sample(chunks(num, 2), size, key=key)
        counts[tuple(drawn["number"])] += 1
    is_way = np.array([len(set(at)) == size for at in np.ndindex(counts.shape)])
    counts = counts.ravel()
    assert not counts[~is_way].any()
    expected = total / is_way.sum()
    chi_square = np.sum((counts[is_way] - expected) ** 2) / expected
    assert is_way.sum() == 60
    assert chi_square < 106  # of 59 degrees of freedom, exceeded once in 6,000 keys


@pytest.mark.parametrize("size", [1, 7, 200, 1000, 5000])
def test_how_it_is_cut_changes_nothing(size, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    source = MemoryMapped({"number": tmp_path / "x.npy", "pair": tmp_path / "x.npy"})
    mapped = (source[start : start + 300] for start in range(0, 1000, 300))
    streams = [*(chunks(1000, k) for k in (1, 13, 1000)), mapped]
    found = [sample(one, size, key=jax.random.key(1)) for one in streams]
    assert {(x.num_samples, x.sample_size) for _, x in found} == {
        (1000, min(size, 1000))
    }
    assert len({drawn for _, drawn in found}) == len(found)  # each is another
    numbers = found[0][0]["number"]
    np.testing.assert_array_equal(found[0][0]["pair"], np.c_[numbers, -numbers])
    assert len(set(numbers)) == min(size, 1000)
    assert (size >= 1000) == (numbers.tolist() == [*range(1000)])
    for other, _ in found:
        np.testing.assert_array_equal(other["number"], numbers)


def test_it_keeps_twice_its_size_at_most():
    tags, reservoir = Tags(jax.random.key(0)), Reservoir(20, np.concatenate)
    for start in range(0, 10_000, 10):
        reservoir.add([np.arange(start, start + 10)], tags.following(10))
        assert sum(len(part[0]) for part in reservoir._parts) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_an_attack_on_the_sum_of_a_sample(share, key):
    # One record of four is drawn. Of less noise than is said the attack finds it.
    inner, delta = 3.0, 0.04
    stddev = gaussian_stddev(inner, delta, sensitivity=1.0)
    event = gaussian_event(stddev)
    privacy = PrivacyGuarantee.of(inner, delta, dp_event=event)
    privacy = Sample(4, 1).privacy(privacy)

    def release(key, values):
        draw_key, key = jax.random.split(key)
        drawn, _ = sample([np.asarray(values)], 1, key=draw_key)
        return mechanisms.gaussian(key, drawn, stddev=share * stddev)

    found = epsilon_lower_bound(
        *(release, np.zeros(4, np.float32), np.eye(4, dtype=np.float32)[0]),
        key=key,
        delta=privacy.delta,
        num_releases=4000,
        vectorize=False,
    )
    assert (found.epsilon <= privacy.epsilon) == (share == 1.0)


@pytest.mark.parametrize(
    ("source", "size", "message"),
    [
        ([np.arange(3)], 0, "size must be an integer of at least 1"),
        ([], 2, "chunks must be at least one"),
        ([{"x": np.arange(3), "y": np.arange(2)}], 2, "chunks must"),
    ],
)
def test_bad_input_is_named(source, size, message):
    with pytest.raises(ValueError, match=message):
        sample(source, size, key=jax.random.key(0))
