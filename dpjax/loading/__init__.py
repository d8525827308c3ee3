"""Reading of records from files, in each process for its own devices.

If each device's shard fits into its memory, pass all records, sharded, to a solver:

    source = loading.MemoryMapped(("features.npy", "targets.npy"))
    mesh = jax.make_mesh((jax.device_count(),), ("records",))
    data = loading.load(source, NamedSharding(mesh, PartitionSpec("records")))

To hold one batch at a time in memory, write your own loop:

    state = batching.init(key, len(source), T, epsilon=epsilon, delta=delta)
    for batch, is_padding_example in loading.batches(source, state, sharding=sharding):
        grads = grad_fn(params, batch, is_padding_example)

Everything else is as in `dpjax.batching`. To hold a random sample in memory, see
`sample`. Only public metadata of a file are used: the number of records, the columns
and their types, and not the smallest and largest values that Parquet stores.
"""

from typing import TYPE_CHECKING

from dpjax._lazy import lazily

if TYPE_CHECKING:
    from dpjax.tables.io._records import MemoryMapped, Parquet, batches, load
    from dpjax.tables.io._sample import sample

__getattr__, __dir__ = lazily(
    __name__,
    {
        "dpjax.tables.io._records": "MemoryMapped Parquet batches load",
        "dpjax.tables.io._sample": "sample",
    },
)

__all__ = ["MemoryMapped", "Parquet", "batches", "load", "sample"]
