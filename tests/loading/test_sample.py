"""A sample of a stream: uniform in any order, the same for any chunks, and small."""

import jax
import numpy as np
import pytest

from dpjax import _reservoir
from dpjax._reservoir import Reservoir, Tags, as_numbers
from dpjax.loading import MemoryMapped, sample, sample_chunks


def chunks(num, size):
    """Records 0 to num - 1 of two columns."""
    for start in range(0, num, size):
        numbers = np.arange(start, min(start + size, num))
        yield {"number": numbers, "pair": np.stack([numbers, -numbers], axis=1)}


def test_each_order_of_each_subset_is_as_likely():
    num, size, total = 5, 3, 1800
    counts = np.zeros((num,) * size)
    for key in jax.random.split(jax.random.key(0), total):
        drawn = sample_chunks(chunks(num, 2), size, key=key).records["number"]
        counts[tuple(drawn)] += 1
    is_way = np.array([len(set(at)) == size for at in np.ndindex(counts.shape)])
    counts = counts.ravel()
    assert not counts[~is_way].any()
    expected = total / is_way.sum()
    chi_square = np.sum((counts[is_way] - expected) ** 2) / expected
    assert is_way.sum() == 60
    assert chi_square < 106  # of 59 degrees of freedom, exceeded once in 6,000 keys


@pytest.mark.parametrize("size", [1, 7, 200])
def test_how_it_is_cut_changes_nothing(size):
    found = [
        sample_chunks(chunks(1000, k), size, key=jax.random.key(1))
        for k in (1, 13, 1000)
    ]
    for drawn in found:
        assert drawn.num_records == 1000
        np.testing.assert_array_equal(
            drawn.records["number"], found[0].records["number"]
        )
        np.testing.assert_array_equal(
            drawn.records["pair"][:, 1], -drawn.records["number"]
        )
    assert len(set(found[0].records["number"])) == size


@pytest.mark.parametrize("size", [12, 13, 500])
def test_all_of_few_records_stay_as_they_are(size):
    drawn = sample_chunks(chunks(12, 5), size, key=jax.random.key(1))
    assert drawn.records["number"].tolist() == [*range(12)]


def test_records_by_number(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(100_000.0))
    source, key = MemoryMapped(tmp_path / "x.npy"), jax.random.key(2)
    drawn = sample(source, 50, key=key)
    streamed = sample_chunks(chunks(100_000, 999), 50, key=jax.random.clone(key))
    assert drawn.num_records == 100_000
    assert drawn.records.tolist() == streamed.records["number"].tolist()


def test_it_keeps_twice_its_size_at_most():
    tags, reservoir, most = Tags(jax.random.key(0)), Reservoir(20, np.concatenate), 0
    for start in range(0, 10_000, 10):
        reservoir.add([np.arange(start, start + 10)], tags.following(10))
        most = max(most, sum(len(part[0]) for part in reservoir._parts))
    assert 20 < most <= 40


def test_rows_of_one_name_stay_together_in_their_order():
    names = [f"p{(7 * i) % 30}" for i in range(300)]
    tags = Tags(jax.random.key(4))
    of_names = tags.of_names(names)
    reservoir = Reservoir(5, np.concatenate, each=3)
    for at in range(0, 300, 20):
        part = slice(at, at + 20)
        reservoir.add([np.arange(300)[part]], as_numbers(of_names[part]))
    (numbers,), _ = reservoir.kept()
    chosen = sorted(set(of_names))[:5]
    rows = [[i for i in range(300) if of_names[i] == tag][:3] for tag in chosen]
    assert numbers.tolist() == np.ravel(rows).tolist()
    assert tags.of_names(["p1"]) != Tags(jax.random.key(5)).of_names(["p1"])


@pytest.mark.parametrize(
    ("source", "size", "message"),
    [
        ([np.arange(3)], 0, "size must be an integer of at least 1"),
        ([np.arange(3)], 1.5, "size must be an integer of at least 1"),
        ([], 2, "chunks must be at least one"),
        ([{"x": np.arange(3), "y": np.arange(2)}], 2, "chunks must"),
    ],
)
def test_bad_input_is_named(source, size, message):
    with pytest.raises(ValueError, match=message):
        sample_chunks(source, size, key=jax.random.key(0))


def test_no_records():
    with pytest.raises(ValueError, match="source must be of at least one"):
        sample(np.zeros(0), 3, key=jax.random.key(0))


def test_tags_are_the_key_s_alone(monkeypatch):
    monkeypatch.setattr(_reservoir.np.random, "default_rng", None)
    pairs = [Tags(jax.random.key(0)).following(4) for _ in range(2)]
    np.testing.assert_array_equal(*pairs)
