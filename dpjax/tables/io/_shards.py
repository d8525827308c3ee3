"""Records sharded over devices, all at once or batch by batch."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dpjax import _sharding, _validate
from dpjax._types import PyTree
from dpjax.batching._batching import BatchState
from dpjax.tables.io._records import Records


def load(source: Records, sharding: NamedSharding) -> PyTree:
    """Returns all records, sharded over devices, as solvers take them.

    Each process reads the shards of its own devices, one after the other. All shards
    have the same size: the last n mod devices records are left out. This is public, and
    so is the leading size of the result, which is the n of all guarantees. Files must
    not change while the arrays are in use, because on a CPU the arrays may be
    memory-mapped.

    Args:
        source: the same on all processes, such as `MemoryMapped` or `Parquet`.
        sharding: the sharding of the records, such as NamedSharding(mesh,
            PartitionSpec("records")).

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
    num_shares = _num_shares(sharding)
    _check_same(source, sharding)
    num_records = len(source) - len(source) % num_shares
    rule = f"at least one record for each of {num_shares} devices"
    _validate.require(num_records > 0, "source", f"{len(source)} records", rule)
    return _placed(num_records, sharding, lambda rows: source[rows])


def batches(
    source: Records, state: BatchState, *, sharding: NamedSharding
) -> Iterable[tuple[PyTree, jax.Array]]:
    """Returns the batches of a run and their padding masks, as a Grain dataset.

    All processes draw the rows that `Batching.draw` draws from the same state, and each
    reads the rows of its own devices. One batch is prefetched. Padding rows are zeros;
    they also fill a batch up to a multiple of the number of devices. There is one batch
    for each step that the state has left. `get_state()` of the dataset's iterator
    returns the number of batches read, and after `set_state` the same batches follow.

    Args:
        source: the same on all processes, such as `MemoryMapped` or `Parquet`.
        state: from `batching.init(key, len(source), T, ...)`, the same on all
            processes. Use it for these batches only.
        sharding: the sharding of a batch, such as NamedSharding(mesh,
            PartitionSpec("records")).

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
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> file = tempfile.mkdtemp() + "/numbers.npy"
        >>> np.save(file, np.arange(100.0))
        >>> state = WithoutReplacement(8).init(jax.random.key(0), 100, num_steps=2)
        >>> mesh = jax.make_mesh((jax.device_count(),), ("records",))
        >>> for batch, is_padding_example in batches(
        ...     MemoryMapped(file), state,
        ...     sharding=NamedSharding(mesh, PartitionSpec("records"))):
        ...     print(batch.shape, bool(is_padding_example.any()))
        (8,) False
        (8,) False
    """
    try:
        import grain
    except ImportError as why:
        raise ImportError('batches need Grain: pip install "dpjax[loading]"') from why
    is_state = isinstance(state, BatchState)
    _validate.require(is_state, "state", state, "what batching.init returned")
    num_records, num_shares = len(source), _num_shares(sharding)
    rule = f"the {state.num_samples} records that the state was made for, below 2^31"
    is_fine = num_records == state.num_samples < 2**31
    _validate.require(is_fine, "source", f"{num_records} records", rule)
    _check_same(
        source,
        sharding,
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
        read = _placed(num_rows, sharding, lambda part: _rows_at(source, rows[part]))
        return read, _placed(num_rows, sharding, lambda part: rows[part] < 0)

    return (
        grain.MapDataset.range(num_steps)
        .map(batch)
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=1))
    )


def _rows_at(source: Records, rows: np.ndarray) -> PyTree:
    """Returns records by number, read in the order of the file; zeros for -1."""
    places = np.argsort(rows, kind="stable")[np.count_nonzero(rows < 0) :]

    def placed(x: np.ndarray) -> np.ndarray:
        filled = np.zeros((len(rows), *x.shape[1:]), x.dtype)
        filled[places] = x
        return filled

    return jax.tree.map(placed, source[rows[places]])


def _placed(
    num_rows: int, sharding: NamedSharding, read: Callable[[slice], PyTree]
) -> PyTree:
    """Returns sharded arrays of `num_rows`; `read` returns the rows of one shard."""
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


def _num_shares(sharding: NamedSharding) -> int:
    """Requires a sharding of rows, and returns the number of shards."""
    is_named = isinstance(sharding, NamedSharding)
    rule = 'a NamedSharding of rows alone, such as one by PartitionSpec("records")'
    is_fine = is_named and len(sharding.spec) == 1 and sharding.spec[0] is not None
    _validate.require(is_fine, "sharding", sharding, rule)
    num_devices = sharding.num_devices
    return num_devices // sharding.shard_shape((num_devices,))[0]


def _check_same(source: Records, sharding: NamedSharding, **others: Any) -> None:
    """Requires that all processes have the same arguments and as many like records."""
    like = [(x.shape, str(x.dtype)) for x in jax.tree.leaves(source[:0])]
    arguments = {"source": repr((len(source), like)), **others}
    _sharding.digests(arguments, _sharding.spanning(sharding.device_set))
