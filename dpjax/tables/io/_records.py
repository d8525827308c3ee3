"""Records by number from files, and sharded over devices, all at once or in batches."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from dpjax import _sharding, _validate
from dpjax._lazy import optional
from dpjax._tree import narrowed
from dpjax._types import PyTree
from dpjax.batching._batching import BatchState

Rows = int | slice | np.ndarray
Path = str | os.PathLike[str]
Layout = tuple[np.dtype, tuple[int, ...]]  # type and shape of one value


class Records(Protocol):
    """Records by number, 0 to len - 1: any random-access source or map of Grain."""

    def __len__(self) -> int:
        """Returns n, which is public."""
        ...

    def __getitem__(self, row: Any) -> PyTree:
        """Returns one record. `MemoryMapped` and `Parquet` also take many numbers."""
        ...


@dataclasses.dataclass(frozen=True)
class MemoryMapped:
    """Memory-mapped arrays in .npy files.

    Numbers are read in the type that JAX uses for the type in the file. Without
    `jax_enable_x64` integers beyond int32 or uint32 become the nearest number in range,
    and numbers beyond float32 become infinite. Renumber identifiers that are larger.

    Attributes:
        files: a pytree of paths to arrays of shape (n, ...).

    Raises:
        ValueError: If an array has another type than real numbers or booleans, or if
            the arrays have different lengths.

    Example:
        >>> import tempfile, numpy as np
        >>> file = tempfile.mkdtemp() + "/squares.npy"
        >>> np.save(file, np.arange(5.0) ** 2)
        >>> source = MemoryMapped({"square": file})
        >>> len(source), source[3:]
        (5, {'square': array([ 9., 16.], dtype=float32)})
    """

    files: PyTree

    def __post_init__(self):
        arrays = self._arrays
        paths = jax.tree.leaves(self.files)
        for path, array in zip(paths, jax.tree.leaves(arrays), strict=True):
            rule = "arrays of real numbers or booleans"
            is_fine = array.dtype.kind in "fiub"
            _validate.require(is_fine, "files", f"{path} of {array.dtype}", rule)
        _validate.leading_size(arrays, "files")

    @cached_property
    def _arrays(self) -> PyTree:
        return jax.tree.map(partial(np.load, mmap_mode="r"), self.files)

    def __len__(self) -> int:
        return len(jax.tree.leaves(self._arrays)[0])

    def __getitem__(self, rows: Rows) -> PyTree:
        read = jax.tree.map(lambda x: np.asarray(x[rows]), self._arrays)
        return jax.tree.map(narrowed, read)


@dataclasses.dataclass(frozen=True)
class Parquet:
    """Columns of Parquet files, read by row groups.

    Reading a row means reading its whole row group, so for random batches use small row
    groups, or `MemoryMapped`. A missing value is NaN in a column of floats (estimators
    count NaN as zero), and 0 or False in other columns. Large numbers are read as in
    `MemoryMapped`.

    Attributes:
        files: a path, or several paths to files; their records are concatenated.
        columns: a pytree of names of columns, which hold numbers, booleans, or lists of
            one fixed length.

    Raises:
        ValueError: If a column is missing, or of another type.
        ImportError: Without `pip install "dpjax[loading]"` (pyarrow).

    Example:
        >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
        >>> file = tempfile.mkdtemp() + "/people.parquet"
        >>> table = pa.table({"name": ["Ann", "Bo", "Cy"], "age": [70, None, 31]})
        >>> pq.write_table(table, file, row_group_size=2)
        >>> Parquet(file, {"age": "age"})[1:]
        {'age': array([ 0, 31], dtype=int32)}
    """

    files: Path | Sequence[Path]
    columns: PyTree

    def __post_init__(self):
        """Requires that all files have the named columns, with the same types."""
        names, paths = self._names, self._paths
        is_fine = bool(names) and all(isinstance(name, str) for name in names)
        rule = "a pytree of at least one name"
        _validate.require(is_fine, "columns", self.columns, rule)
        rule = "a path, or a list of paths"
        _validate.require(len(paths) > 0, "files", self.files, rule)
        for path, metadata in zip(paths, self._metadata, strict=True):
            types = _types(metadata, names, path)
            rule = f"files with the same columns: {self._layout}"
            is_fine = types == self._layout
            _validate.require(is_fine, "files", f"{path} of {types}", rule)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, rows: Rows) -> PyTree:
        """Returns one record, or for a slice or array of k numbers leaves (k, ...)."""
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(len(self)))
        else:
            numbers = np.atleast_1d(np.asarray(rows))
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise IndexError(f"rows must be 0 to {len(self) - 1}, got {rows!r}.")
        # Each row group is read once, for all of its requested rows.
        read = {
            name: np.empty((len(numbers), *shape), dtype)
            for name, (dtype, shape) in self._layout.items()
        }
        order = np.argsort(numbers, kind="stable")
        cuts = np.searchsorted(numbers[order], self._starts)
        for group in np.flatnonzero(np.diff(cuts)):
            places = order[cuts[group] : cuts[group + 1]]
            path, metadata, number = self._groups[group]
            # Each call opens the file, because threads must not share an open file.
            with _parquet().ParquetFile(path, metadata=metadata) as opened:
                table = opened.read_row_group(number, columns=sorted(set(self._names)))
            for name, column in read.items():
                values = _numbers(table[name], *self._layout[name])
                column[places] = values[numbers[places] - self._starts[group]]
        which = 0 if isinstance(rows, int | np.integer) else slice(None)
        read = {name: np.asarray(column[which]) for name, column in read.items()}
        return jax.tree.map(lambda name: narrowed(read[name]), self.columns)

    @cached_property
    def _names(self) -> list[str]:
        return jax.tree.leaves(self.columns)

    @cached_property
    def _paths(self) -> list[Path]:
        if isinstance(self.files, str | os.PathLike):
            return [self.files]
        return list(self.files)

    @cached_property
    def _metadata(self) -> list[Any]:
        return [_parquet().read_metadata(path) for path in self._paths]

    @cached_property
    def _layout(self) -> dict[str, Layout]:
        return _types(self._metadata[0], self._names, self._paths[0])

    @cached_property
    def _groups(self) -> list[tuple[Path, Any, int]]:
        return [
            (path, metadata, group)
            for path, metadata in zip(self._paths, self._metadata, strict=True)
            for group in range(metadata.num_row_groups)
        ]

    @cached_property
    def _starts(self) -> np.ndarray:
        sizes = [metadata.row_group(j).num_rows for _, metadata, j in self._groups]
        return np.cumsum([0, *sizes])


def _parquet() -> Any:
    return optional("pyarrow.parquet", "Parquet needs pyarrow", "loading")


def _types(metadata: Any, names: list[str], path: Path) -> dict[str, Layout]:
    """Returns NumPy type and shape of each column's values; raises unless numeric."""
    # So `Parquet` compares files; `metadata` is of the file at `path`.
    schema = metadata.schema.to_arrow_schema()
    types = {}
    for name in names:
        rule = f"names of columns of {path}, {schema.names}"
        _validate.require(name in schema.names, "columns", name, rule)
        column = schema.field(name).type
        layout = _numpy_type(column)
        rule = "columns of numbers, booleans, or lists of these of one fixed length"
        shown = f"{name!r} of {column} in {path}"
        _validate.require(layout is not None, "columns", shown, rule)
        types[name] = layout
    return types


def _numpy_type(arrow_type: Any) -> Layout | None:
    """Returns NumPy type and shape of a value of an Arrow type, None if not numeric."""
    import pyarrow as pa

    if not isinstance(arrow_type, pa.DataType):
        return None
    if pa.types.is_fixed_size_list(arrow_type):
        inner = _numpy_type(arrow_type.value_type)
        return inner and (inner[0], (arrow_type.list_size, *inner[1]))
    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean
    if not any(is_kind(arrow_type) for is_kind in kinds):
        return None
    # Some versions of pyarrow need pandas for `to_pandas_dtype`.
    return pa.array([], arrow_type).to_numpy(zero_copy_only=False).dtype, ()


def _numbers(column: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an Arrow column as an array (n, *shape), missing values as NaN or 0."""
    missing = {"f": np.nan, "b": False}.get(dtype.kind, 0)
    array = column.combine_chunks() if hasattr(column, "chunks") else column
    if not shape:
        return array.fill_null(missing).to_numpy(zero_copy_only=False).astype(dtype)
    start, stop = (i * shape[0] for i in (array.offset, array.offset + len(array)))
    values = _numbers(array.values[start:stop], dtype, shape[1:])
    values = values.reshape(len(array), *shape).copy()
    values[array.is_null().to_numpy(zero_copy_only=False)] = missing
    return values


def load(source: Records, sharding: NamedSharding | None = None) -> PyTree:
    """Returns all records, sharded over devices, as solvers take them.

    Each process reads the shards of its own devices, one after the other. All shards
    have the same size: the last n mod devices records are left out. This is public, and
    so is the leading size of the result, which is the n of all guarantees. Files must
    not change while the arrays are in use, because on a CPU the arrays may be
    memory-mapped.

    Args:
        source: the same on all processes: `MemoryMapped`, `Parquet`, a
            `grain.MapDataset`, or any object with a length and records by number.
        sharding: the sharding of the records, such as NamedSharding(mesh,
            PartitionSpec("records")). By default one device has all records.

    Raises:
        ValueError: If there are fewer records than devices, or if processes have
            different records.

    Example:
        >>> import tempfile, jax, numpy as np
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> from dpjax.loading import MemoryMapped
        >>> file = tempfile.mkdtemp() + "/numbers.npy"
        >>> np.save(file, np.arange(4.0))
        >>> mesh = jax.make_mesh((jax.device_count(),), ("records",))
        >>> load(MemoryMapped(file), NamedSharding(mesh, PartitionSpec("records")))
        Array([0., 1., 2., 3.], dtype=float32)
    """
    placement, num_shares = _shards(sharding)
    num_records = len(source) - len(source) % num_shares
    rule = f"at least one record for each of {num_shares} devices"
    _validate.require(num_records > 0, "source", f"{len(source)} records", rule)
    _check_same(source, placement)
    return _placed(num_records, placement, partial(_read, source))


def batches(
    source: Records, state: BatchState, *, sharding: NamedSharding | None = None
) -> Iterable[tuple[PyTree, jax.Array]]:
    """Returns the batches of a run and their padding masks, as a Grain dataset.

    All processes draw the rows that the batching draws from this state, and each
    reads the rows of its own devices. One batch is prefetched. Padding rows are zeros;
    they also fill a batch up to a multiple of the number of devices. There is one batch
    for each step that the state has left. `get_state()` of the dataset's iterator
    returns the number of batches read, and after `set_state` the same batches follow.

    Args:
        source: as for `load`.
        state: from `batching.init(key, len(source), T, ...)`, the same on all
            processes. Use it for these batches only.
        sharding: as for `load`, of a batch.

    Raises:
        ValueError: If an argument is out of its range, if the state was made for
            another number of records, or if processes have different arguments.
        ImportError: Without `pip install "dpjax[loading]"` (grain).

    Privacy:
        Which records enter a batch depends on the key alone, so the privacy cost of T
        steps is the privacy cost of `batching.sampling(len(source), T)`. Use each batch
        for one step: a batch that two steps use is not two samples.

    Example:
        >>> import tempfile, jax, numpy as np
        >>> from dpjax.batching import WithoutReplacement
        >>> from dpjax.loading import MemoryMapped
        >>> file = tempfile.mkdtemp() + "/numbers.npy"
        >>> np.save(file, np.arange(100.0))
        >>> state = WithoutReplacement(8).init(jax.random.key(0), 100, num_steps=2)
        >>> for batch, is_padding_example in batches(MemoryMapped(file), state):
        ...     print(batch.shape, bool(is_padding_example.any()))
        (8,) False
        (8,) False
    """
    grain = optional("grain", "batches need Grain", "loading")
    is_state = isinstance(state, BatchState)
    _validate.require(is_state, "state", state, "the state that batching.init returns")
    num_records, (placement, num_shares) = len(source), _shards(sharding)
    rule = f"the {state.num_samples} records that the state was made for, below 2^31"
    is_fine = num_records == state.num_samples < 2**31
    _validate.require(is_fine, "source", f"{num_records} records", rule)
    _check_same(
        source,
        placement,
        key=state.key,
        step=state.step,
        batching=repr((state.batching, state.num_steps, state.capacity)),
    )
    num_steps = state.num_steps - int(state.step)

    @jax.jit
    def drawn(state: BatchState) -> tuple[jax.Array, jax.Array, BatchState]:
        return state.batching.draw(state, jnp.arange(num_records))

    def following(state: BatchState, _: None) -> tuple[BatchState, BatchState]:
        return drawn(state)[2], state

    # The states of all steps are computed first, so that any batch can be drawn.
    states = jax.jit(lambda state: jax.lax.scan(following, state, length=num_steps)[1])
    states = states(state)

    def batch(step: int) -> tuple[PyTree, jax.Array]:
        """Returns the sharded batch of a step, and the mask of its padding rows."""
        # The keys are cloned, so that reading a dataset again gives the same batches.
        again = dataclasses.replace(
            states,
            key=jax.random.clone(states.key),
            run_key=jax.random.clone(states.run_key),
        )
        *drawn_rows, _ = drawn(jax.tree.map(lambda x: x[step], again))
        chosen, is_padding = map(np.asarray, drawn_rows)
        # Padding rows, -1, fill the batch to a multiple of the number of shards.
        num_rows = math.ceil(chosen.size / num_shares) * num_shares
        rows = np.full(num_rows, -1)
        rows[: chosen.size] = np.where(is_padding, -1, chosen)
        read = _placed(num_rows, placement, lambda part: _rows_at(source, rows[part]))
        return read, _placed(num_rows, placement, lambda part: rows[part] < 0)

    return (
        grain.MapDataset.range(num_steps)
        .map(batch)
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))
    )


def _rows_at(source: Records, rows: np.ndarray) -> PyTree:
    """Returns records by their numbers `rows` (k,), in this order; zeros for -1."""
    places = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]

    def placed(x: np.ndarray) -> np.ndarray:
        filled = np.zeros((len(rows), *x.shape[1:]), x.dtype)
        filled[places] = x
        return filled

    return jax.tree.map(placed, _read(source, rows[places]))


def _read(source: Records, rows: slice | np.ndarray) -> PyTree:
    """Returns the records of a slice or an array of k numbers, leaves (k, ...)."""
    if isinstance(source, MemoryMapped | Parquet):
        return source[rows]
    # Other sources may take one number only. The first record shows the types of none.
    numbers = np.arange(len(source))[rows]
    records = [source[int(row)] for row in (numbers if numbers.size else [0])]
    stacked = jax.tree.map(lambda *values: np.stack(values), *records)
    return jax.tree.map(lambda x: narrowed(x[: len(numbers)]), stacked)


def _placed(
    num_rows: int, sharding: Sharding, read: Callable[[slice], PyTree]
) -> PyTree:
    """Returns sharded arrays (num_rows, ...); each process reads its own shards."""
    # `read` takes a slice of rows, and returns a pytree of arrays with these rows.
    places = sharding.addressable_devices_indices_map((num_rows,))
    shares = [
        jax.tree.map(partial(jax.device_put, device=device), read(rows))
        for device, (rows,) in cast(Any, places).items()
    ]
    return jax.tree.map(
        lambda *parts: jax.make_array_from_single_device_arrays(
            (num_rows, *parts[0].shape[1:]), sharding, list(parts)
        ),
        *shares,
    )


def _shards(sharding: NamedSharding | None) -> tuple[Sharding, int]:
    """Requires a sharding of rows or None, one device; returns it and its shards."""
    if sharding is None:
        return SingleDeviceSharding(jax.local_devices()[0]), 1
    is_named = isinstance(sharding, NamedSharding)
    rule = 'a NamedSharding of rows alone, such as one by PartitionSpec("records")'
    is_fine = is_named and len(sharding.spec) == 1 and sharding.spec[0] is not None
    _validate.require(is_fine, "sharding", sharding, rule)
    num_devices = sharding.num_devices
    return sharding, num_devices // sharding.shard_shape((num_devices,))[0]


def _check_same(source: Records, sharding: Sharding, **others: Any) -> None:
    """Requires that all processes have the same arguments and as many like records."""
    like = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(_read(source, slice(0)))]
    arguments = {"source": repr((len(source), like)), **others}
    _sharding.digests(arguments, _sharding.spanning(sharding.device_set))
