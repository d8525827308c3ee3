"""Records in files, read by each process for its own devices.

Where a share of them fits into memory, a solver gets them dealt out over the devices:

    source = loading.MemoryMapped(("features.npy", "targets.npy"))
    mesh = jax.make_mesh((jax.device_count(),), ("records",))
    data = loading.load(source, NamedSharding(mesh, PartitionSpec("records")))

A loop of one's own reads batches, and holds no more:

    for batch, is_padding_example in loading.batches(
        source, batching, key=batch_key, num_steps=T, sharding=sharding):
        grads = grad_fn(params, batch, is_padding_example)

with everything else as in `dpjax.batching`, where n is `len(source)`. Of what a file
says about itself, the number of records, the columns and their types are used, which
are public; the smallest and largest values that Parquet keeps are not.
"""

from dpjax.loading._parquet import Parquet
from dpjax.loading._records import MemoryMapped, Records
from dpjax.loading._shards import batches, load

__all__ = ["MemoryMapped", "Parquet", "Records", "batches", "load"]
