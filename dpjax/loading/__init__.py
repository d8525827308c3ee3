"""Records in files, read by each process for its own devices.

Where each device's shard fits into its memory, a solver takes all records, sharded:

    source = loading.MemoryMapped(("features.npy", "targets.npy"))
    mesh = jax.make_mesh((jax.device_count(),), ("records",))
    data = loading.load(source, NamedSharding(mesh, PartitionSpec("records")))

Your own loop reads one batch after another, and holds no more:

    state = batching.init(key, len(source), T, epsilon=epsilon, delta=delta)
    for batch, is_padding_example in loading.batches(source, state, sharding=sharding):
        grads = grad_fn(params, batch, is_padding_example)

with everything else as in `dpjax.batching`. Of a file's
metadata the number of records, the columns and their types are used, which are public;
the smallest and largest values that Parquet keeps are not.
"""

from dpjax.loading._parquet import Parquet
from dpjax.loading._records import MemoryMapped
from dpjax.loading._shards import batches, load

__all__ = ["MemoryMapped", "Parquet", "batches", "load"]
