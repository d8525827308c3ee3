"""Records in files: what is read is what was written; a sample of a stream of them."""

import tracemalloc
from functools import partial

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpjax.loading import MemoryMapped, Parquet, sample

N = 23
RNG = np.random.default_rng(0)
COLUMNS = {
    "float64": RNG.standard_normal(N),
    "float32": RNG.standard_normal(N).astype(np.float32),
    "float16": RNG.standard_normal(N).astype(np.float16),
    "int64": np.arange(N),
    "uint8": np.arange(N, dtype=np.uint8),
    "bool": np.arange(N) % 3 == 0,
    "list": RNG.standard_normal((N, 4)).astype(np.float32),
}


def is_missing(name):
    return np.arange(N) % (4 + len(name)) == 1


def write_parquet(folder, with_missing):
    """Two files, the row groups of which are of several sizes."""
    columns = {"name": pa.array(["x"] * N)}
    for name, values in COLUMNS.items():
        mask = is_missing(name) & with_missing
        if values.ndim == 1:
            columns[name] = pa.array(values, mask=mask)
        else:
            flat, mask = pa.array(values.reshape(-1)), pa.array(mask)
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, 4, mask=mask)
    table = pa.table(columns)
    paths = [folder / "0.parquet", folder / "1.parquet"]
    pq.write_table(table[:10], paths[0], row_group_size=4)
    pq.write_table(table[10:], paths[1], row_group_size=5)
    return paths


def expected(name, with_missing=False):
    """What JAX has for a column: 32 bits, and a number where one is missing."""
    values = COLUMNS[name].copy()
    if with_missing:
        values[is_missing(name)] = np.nan if values.dtype.kind == "f" else 0
    types = {"float64": np.float32, "int64": np.int32}
    return values.astype(types.get(str(values.dtype), values.dtype))


def assert_same(actual, wanted):
    assert actual.dtype == wanted.dtype
    np.testing.assert_array_equal(actual, wanted)


ROWS = [slice(None), slice(0, 0), slice(7, 16), slice(None, None, -2), 9]
ROWS += [np.array([22, 3, 3, 0, 11]), np.empty(0, int)]


@pytest.mark.parametrize("kind", ["parquet", "parquet with missing", "mapped"])
def test_what_was_written_is_read(kind, tmp_path):
    for name, values in COLUMNS.items():
        np.save(tmp_path / f"{name}.npy", values)
    is_missing = kind == "parquet with missing"
    if kind == "mapped":
        source = MemoryMapped({name: tmp_path / f"{name}.npy" for name in COLUMNS})
    else:
        paths = write_parquet(tmp_path, is_missing)
        source = Parquet(paths, {name: name for name in COLUMNS})
    assert len(source) == N
    for rows in ROWS:
        for name, values in source[rows].items():
            assert_same(values, expected(name, is_missing)[rows])


def test_only_the_row_groups_and_columns_asked_for_are_read(tmp_path, monkeypatch):
    read = []

    def recorded(self, group, columns):
        read.append((group, columns))
        return original(self, group, columns=columns)

    original = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", recorded)
    source = Parquet(write_parquet(tmp_path, False), ("bool", "int64"))
    assert not read
    assert isinstance(source[np.array([22, 5])], tuple)
    assert read == [(1, ["bool", "int64"]), (2, ["bool", "int64"])]


LARGE = {  # numbers, and the nearest of 32 bits
    "float64": ([1e300, -1e300, np.nan], np.array([np.inf, -np.inf, np.nan], "f4")),
    "int64": ([2**53 + 1, -(2**32) - 1, 7], np.array([2**31 - 1, -(2**31), 7], "i4")),
    "uint64": ([2**64 - 1, 2**32 + 1, 7], np.array([2**32 - 1, 2**32 - 1, 7], "u4")),
}


@pytest.mark.parametrize("name", LARGE)
def test_numbers_beyond_32_bits_become_the_nearest(name, tmp_path):
    """In silence, by the declared type alone; none wraps around."""
    numbers, nearest = LARGE[name]
    cells = np.array(numbers, name)
    np.save(tmp_path / "x.npy", cells)
    pq.write_table(pa.table({"x": cells}), tmp_path / "x.parquet")
    assert_same(MemoryMapped(tmp_path / "x.npy")[:], nearest)
    assert_same(Parquet(tmp_path / "x.parquet", "x")[:], nearest)


def test_it_is_a_source_of_grain(tmp_path):
    import grain

    source = Parquet(write_parquet(tmp_path, False), {"int64": "int64"})
    dataset = grain.MapDataset.source(source).map(lambda x: int(x["int64"]))
    assert [dataset[i] for i in range(N)] == list(range(N))


def test_names_what_it_cannot_read(tmp_path):
    paths, other = write_parquet(tmp_path, False), tmp_path / "other.parquet"
    pq.write_table(pa.table({"int64": np.arange(3.0)}), other)
    arrays = {"text": np.array(["a", "b"]), "two": np.zeros(2), "none": np.zeros(())}
    for name, array in (arrays | {"three": np.zeros(3)}).items():
        np.save(tmp_path / f"{name}.npy", array)
    text, two, none, three = (tmp_path / f"{x}.npy" for x in (*arrays, "three"))
    for source, files, message in (
        (partial(Parquet, columns=["name"]), paths, "columns .*'name' of string"),
        (partial(Parquet, columns=["missing"]), paths[0], "'missing' of nothing"),
        (partial(Parquet, columns=[]), paths, "columns must be a pytree of at least"),
        (partial(Parquet, columns=["int64"]), [], "files must be a path"),
        (partial(Parquet, columns=["int64"]), [*paths, other], "with the same columns"),
        (MemoryMapped, text, "files must be arrays of real numbers"),
        (MemoryMapped, (two, three), "files must be arrays that share one"),
        (MemoryMapped, none, "files must be arrays that share one"),
    ):
        with pytest.raises(ValueError, match=message):
            source(files)
    with pytest.raises(IndexError, match="rows must be 0 to 22"):
        Parquet(paths, ["int64"])[23]


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
