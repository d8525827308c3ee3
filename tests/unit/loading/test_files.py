"""Records in files: what is read, and that it is what was written."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpjax.loading import MemoryMapped, Parquet

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


def arrow_column(name, values, with_missing):
    mask = is_missing(name) if with_missing else np.zeros(N, bool)
    if values.ndim == 1:
        return pa.array(values, mask=mask)
    flat = pa.array(values.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=pa.array(mask))


def write_parquet(folder, with_missing):
    """Two files, the row groups of which are of several sizes."""
    columns = {k: arrow_column(k, v, with_missing) for k, v in COLUMNS.items()}
    table = pa.table(columns | {"name": pa.array(["x"] * N)})
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


ROWS = {
    "all": slice(None),
    "none": slice(0, 0),
    "a share": slice(7, 16),
    "backwards": slice(None, None, -2),
    "an array": np.array([22, 3, 3, 0, 11]),
    "an empty array": np.empty(0, int),
    "one": 9,
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("with_missing", [False, True])
def test_parquet_reads_what_was_written(rows, with_missing, tmp_path):
    source = Parquet(
        write_parquet(tmp_path, with_missing), {name: name for name in COLUMNS}
    )
    assert len(source) == N
    read = source[rows]
    for name in COLUMNS:
        assert_same(read[name], expected(name, with_missing)[rows])


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_memory_mapped_reads_what_was_written(rows, tmp_path):
    for name, values in COLUMNS.items():
        np.save(tmp_path / f"{name}.npy", values)
    source = MemoryMapped({name: tmp_path / f"{name}.npy" for name in COLUMNS})
    assert len(source) == N
    for name, values in source[rows].items():
        assert_same(values, expected(name)[rows])


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


LARGE = {
    "float64": [1e300, -1e300, np.nan],
    "int64": [2**53 + 1, -(2**32) - 1, 7],
    "uint64": [2**64 - 1, 2**32 + 1, 7],
}
NEAREST = {
    "float64": np.array([np.inf, -np.inf, np.nan], np.float32),
    "int64": np.array([2**31 - 1, -(2**31), 7], np.int32),
    "uint64": np.array([2**32 - 1, 2**32 - 1, 7], np.uint32),
}


@pytest.mark.parametrize("name", LARGE)
def test_numbers_beyond_32_bits_become_the_nearest(name, tmp_path):
    """In silence, by the declared type alone; none wraps around."""
    cells = np.array(LARGE[name], name)
    np.save(tmp_path / "x.npy", cells)
    pq.write_table(pa.table({"x": cells}), tmp_path / "x.parquet")
    assert_same(MemoryMapped(tmp_path / "x.npy")[:], NEAREST[name])
    assert_same(Parquet(tmp_path / "x.parquet", "x")[:], NEAREST[name])


def test_it_is_a_source_of_grain(tmp_path):
    import grain

    source = Parquet(write_parquet(tmp_path, False), {"int64": "int64"})
    dataset = grain.MapDataset.source(source).map(lambda x: int(x["int64"]))
    assert [dataset[i] for i in range(N)] == list(range(N))


def test_names_what_it_cannot_read(tmp_path):
    paths = write_parquet(tmp_path, False)
    with pytest.raises(ValueError, match=r"columns must be .*'name' of string"):
        Parquet(paths, ["name"])
    with pytest.raises(ValueError, match=r"columns must be .*'missing' of nothing"):
        Parquet(paths[0], ["missing"])
    with pytest.raises(ValueError, match="columns must be a pytree of at least one"):
        Parquet(paths, [])
    with pytest.raises(ValueError, match="files must be a path"):
        Parquet([], ["int64"])
    with pytest.raises(IndexError, match="rows must be 0 to 22"):
        Parquet(paths, ["int64"])[23]
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"int64": np.arange(3.0)}), other)
    with pytest.raises(ValueError, match="files must be files with the same columns"):
        Parquet([*paths, other], ["int64"])


def test_names_arrays_it_cannot_map(tmp_path):
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.save(tmp_path / "two.npy", np.zeros(2))
    np.save(tmp_path / "three.npy", np.zeros(3))
    np.save(tmp_path / "none.npy", np.zeros(()))
    with pytest.raises(ValueError, match="files must be arrays of real numbers"):
        MemoryMapped(tmp_path / "text.npy")
    with pytest.raises(ValueError, match="files must be arrays that share one"):
        MemoryMapped((tmp_path / "two.npy", tmp_path / "three.npy"))
    with pytest.raises(ValueError, match="files must be arrays that share one"):
        MemoryMapped(tmp_path / "none.npy")
