"""Records in files, samples of a stream, and records dealt out over devices."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import batching as ways
from dpjax.batching import Full, Poisson, WithoutReplacement
from dpjax.loading import MemoryMapped, Parquet, batches, load, sample
from tests.unit.refusals import refused

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
ROWS = [slice(None), slice(0, 0), slice(7, 16), slice(None, None, -2), 9]
ROWS += [np.array([22, 3, 3, 0, 11]), np.empty(0, int)]
LARGE = {  # numbers, and the nearest of 32 bits
    "float64": ([1e300, -1e300, np.nan], np.array([np.inf, -np.inf, np.nan], "f4")),
    "int64": ([2**53 + 1, -(2**32) - 1, 7], np.array([2**31 - 1, -(2**31), 7], "i4")),
    "uint64": ([2**64 - 1, 2**32 + 1, 7], np.array([2**32 - 1, 2**32 - 1, 7], "u4")),
}
BATCHINGS = [Full(), ways.Disjoint(), WithoutReplacement(7), Poisson(8.0)]
BATCHINGS += [ways.CyclicPoisson(8.0, 3), ways.BallsInBins(3)]


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


@pytest.mark.parametrize("kind", ["parquet", "parquet with missing", "mapped"])
def test_records_are_read_as_they_were_written(kind, tmp_path):
    for name, values in COLUMNS.items():
        np.save(tmp_path / f"{name}.npy", values)
    is_missing = kind == "parquet with missing"
    pytest.importorskip("pyarrow", "25" if is_missing else None)  # writes missing lists
    if kind == "mapped":
        source = MemoryMapped({name: tmp_path / f"{name}.npy" for name in COLUMNS})
    else:
        source = Parquet(write_parquet(tmp_path, is_missing), {x: x for x in COLUMNS})
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


@pytest.mark.parametrize("name", LARGE)
def test_numbers_beyond_32_bits_become_the_nearest(name, tmp_path):
    """In silence, by the declared type alone; none wraps around."""
    numbers, nearest = LARGE[name]
    cells = np.array(numbers, name)
    np.save(tmp_path / "x.npy", cells)
    pq.write_table(pa.table({"x": cells}), tmp_path / "x.parquet")
    assert_same(MemoryMapped(tmp_path / "x.npy")[:], nearest)
    assert_same(Parquet(tmp_path / "x.parquet", "x")[:], nearest)


def test_files_are_a_source_of_grain(tmp_path):
    import grain

    source = Parquet(write_parquet(tmp_path, False), {"int64": "int64"})
    dataset = grain.MapDataset.source(source).map(lambda x: int(x["int64"]))
    assert [dataset[i] for i in range(N)] == list(range(N))


def test_columns_and_files_that_cannot_be_read_are_refused(tmp_path):
    paths, other = write_parquet(tmp_path, False), tmp_path / "other.parquet"
    pq.write_table(pa.table({"int64": np.arange(3.0)}), other)
    arrays = {"text": np.array(["a", "b"]), "two": np.zeros(2), "none": np.zeros(())}
    for name, array in (arrays | {"three": np.zeros(3)}).items():
        np.save(tmp_path / f"{name}.npy", array)
    text, two, none, three = (tmp_path / f"{x}.npy" for x in (*arrays, "three"))
    for source, given, message in (
        (Parquet, (paths, ["name"]), "columns .*'name' of string"),
        (Parquet, (paths[0], ["missing"]), "names of columns of .*got 'missing'"),
        (Parquet, (paths, []), "columns must be a pytree of at least"),
        (Parquet, ([], ["int64"]), "files must be a path"),
        (Parquet, ([*paths, other], ["int64"]), "with the same columns"),
        (MemoryMapped, [text], "files must be arrays of real numbers"),
        (MemoryMapped, [(two, three)], "files must be arrays that share one"),
        (MemoryMapped, [none], "files must be arrays that share one"),
    ):
        with pytest.raises(ValueError, match=message):
            source(*given)
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
def test_a_sample_is_the_same_however_the_stream_is_cut(size, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    source = MemoryMapped({"number": tmp_path / "x.npy", "pair": tmp_path / "x.npy"})
    mapped = (source[start : start + 300] for start in range(0, 1000, 300))
    streams = [*(chunks(1000, k) for k in (1, 13, 1000)), mapped]
    samples = [sample(one, size, key=jax.random.key(1)) for one in streams]
    sizes = {(x.num_samples, x.sample_size) for _, x in samples}
    assert sizes == {(1000, min(size, 1000))}
    assert len({drawn for _, drawn in samples}) == len(samples)  # each is another
    numbers = samples[0][0]["number"]
    np.testing.assert_array_equal(samples[0][0]["pair"], np.c_[numbers, -numbers])
    assert len(set(numbers)) == min(size, 1000)
    assert (size >= 1000) == (numbers.tolist() == [*range(1000)])
    for other, _ in samples:
        np.testing.assert_array_equal(other["number"], numbers)


def test_sampling_keeps_a_few_times_the_sample_at_most():
    def peak(num):
        tracemalloc.start()
        parts = (np.full((10, 10_000), 1.0) for _ in range(num))
        drawn, _ = sample(parts, 20, key=jax.random.key(0))
        bytes_at_most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return bytes_at_most / drawn[0].nbytes

    peak(30)  # compiles
    assert peak(300) < 200  # of 3,000 records


test_bad_samples_are_refused = refused(
    lambda given: sample(*given, key=jax.random.key(0)),
    (([np.arange(3)], 0), "size must be an integer of at least 1"),
    (([], 2), "chunks must be at least one"),
    (([{"x": np.arange(3), "y": np.arange(2)}], 2), "chunks must"),
)


# -- Records that are dealt out over devices -------------------------------------------
NUM, T = 40, 4
FEATURES = np.random.default_rng(0).standard_normal((NUM, 2)).astype(np.float32)


class Recorder:
    """Records in memory that write down which of them were read."""

    def __init__(self, data):
        self.data, self.read = data, []

    def __len__(self):
        return len(self.data[0])

    def __getitem__(self, row):
        assert type(row) is int
        self.read.append(row)
        return tuple(x[row] for x in self.data)


def by_records():
    # On one device: on more, batches are padded to a multiple of them.
    mesh = jax.make_mesh((1,), ("records",), devices=jax.devices()[:1])
    return NamedSharding(mesh, PartitionSpec("records"))


def state_of(batching, num_steps=T):
    return batching.init(jax.random.key(3), NUM, num_steps, epsilon=1.0, delta=1e-5)


def source():
    return Recorder((FEATURES, np.arange(NUM, dtype=np.int32)))


def test_all_records_are_loaded():
    features, _ = load(source(), by_records())
    assert features.sharding == by_records()
    np.testing.assert_array_equal(features, FEATURES)


@pytest.mark.quick(2)
@pytest.mark.parametrize("batching", BATCHINGS, ids=repr)
def test_batches_are_those_that_are_drawn_in_memory(batching):
    records, state = source(), state_of(batching)
    read = [0]  # the first record shows the types
    loaded = list(batches(records, state_of(batching), sharding=by_records()))
    assert len(loaded) == T
    for (features, numbers), mask in loaded:
        data = jnp.asarray(FEATURES), jnp.arange(NUM)
        (wanted, rows), wanted_mask, state = batching.draw(state, data)
        np.testing.assert_array_equal(features, wanted)
        np.testing.assert_array_equal(numbers, rows)
        np.testing.assert_array_equal(mask, wanted_mask)
        assert not np.any(np.asarray(features)[np.asarray(mask)])
        read += sorted(np.asarray(rows)[~np.asarray(mask)].tolist()) or [0]
    assert records.read == read  # no record but those of the batches
    assert not list(batches(records, state, sharding=by_records()))  # it is over


def test_maps_of_grain_are_sources_and_one_device_is_the_default():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.source(FEATURES).map(lambda x: {"x": x, "n": 2**40})
    state = state_of(Poisson(8.0))
    for (batch, mask), (same, _) in zip(
        batches(data, state_of(Poisson(8.0))), batches(source(), state), strict=True
    ):
        np.testing.assert_array_equal(batch["x"], same[0])
        assert {*np.asarray(batch["n"][~mask])} <= {2**31 - 1}  # the nearest int32
    np.testing.assert_array_equal(load(data)["x"], FEATURES)


def test_batches_go_on_from_a_state():
    batching = Poisson(8.0)

    def dataset():
        return batches(source(), state_of(batching), sharding=by_records())

    numbers_of_all = [np.asarray(numbers) for (_, numbers), _ in dataset()]
    iterator = iter(dataset())
    next(iterator)
    state = iterator.get_state()
    again = iter(dataset())
    again.set_state(state)
    _, _, following = batching.draw(state_of(batching), jnp.arange(NUM))
    for rest in (again, batches(source(), following, sharding=by_records())):
        rest = [np.asarray(numbers) for (_, numbers), _ in rest]
        np.testing.assert_array_equal(rest, numbers_of_all[1:])


def test_bad_arguments_of_batches_are_refused():
    right = {"source": source(), "state": state_of(Full()), "sharding": by_records()}
    nothing = Recorder((FEATURES[:0],))
    unsharded = NamedSharding(by_records().mesh, PartitionSpec(None))
    loaded = {"source": source(), "sharding": by_records()}
    for call, given, message in (
        (batches, right | {"state": WithoutReplacement(7)}, "state .* batching.init"),
        (batches, right | {"source": nothing}, "source .* 40 records .*'0 records'"),
        (batches, right | {"sharding": jax.devices()[0]}, "sharding .* NamedSharding"),
        (load, loaded | {"sharding": unsharded}, "sharding .* NamedSharding of rows"),
        (load, loaded | {"source": nothing}, "source must be at least one record"),
    ):
        with pytest.raises(ValueError, match=message):
            call(**given)
