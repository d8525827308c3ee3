"""A sample of a stream: uniform in any order, the same for any chunks, and small."""

import tracemalloc

import jax
import numpy as np
import pytest

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
    sizes = {(x.num_samples, x.sample_size) for _, x in found}
    assert sizes == {(1000, min(size, 1000))}
    assert len({drawn for _, drawn in found}) == len(found)  # each is another
    numbers = found[0][0]["number"]
    np.testing.assert_array_equal(found[0][0]["pair"], np.c_[numbers, -numbers])
    assert len(set(numbers)) == min(size, 1000)
    assert (size >= 1000) == (numbers.tolist() == [*range(1000)])
    for other, _ in found:
        np.testing.assert_array_equal(other["number"], numbers)


def test_it_keeps_a_few_times_its_size_at_most():
    def peak(num):
        tracemalloc.start()
        parts = (np.full((10, 10_000), 1.0) for _ in range(num))
        drawn, _ = sample(parts, 20, key=jax.random.key(0))
        bytes_at_most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return bytes_at_most / drawn[0].nbytes

    peak(30)  # compiles
    assert peak(300) < 200  # of 3,000 records


def test_bad_input_is_named():
    for source, size, message in (
        ([np.arange(3)], 0, "size must be an integer of at least 1"),
        ([], 2, "chunks must be at least one"),
        ([{"x": np.arange(3), "y": np.arange(2)}], 2, "chunks must"),
    ):
        with pytest.raises(ValueError, match=message):
            sample(source, size, key=jax.random.key(0))
