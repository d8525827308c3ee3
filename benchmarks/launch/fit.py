"""Fits a linear model to tables of any size, over all processes of a cluster.

    python fit.py --files 'rows/*.parquet' --target charge --folder RUN \
      --max-records 1000000 --epsilon 1 --delta 1e-8

Each process streams its own files, once. Together they draw one secret sample, which is
fitted over all devices. Columns are numbers; what is missing is NaN. Folder, key and
processes are as of train.py.
"""

import argparse
import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from pyarrow import dataset, float32, types

from dpjax import loading, solvers

NUMBERS = types.is_floating, types.is_integer, types.is_boolean, types.is_decimal


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", required=True, help="a pattern, the same on all")
    parser.add_argument("--target", required=True, help="a column")
    parser.add_argument("--loss", default="squared", help="of dp_linear_model")
    parser.add_argument("--folder", type=Path, required=True, help="shared by all")
    parser.add_argument("--max-records", type=int, required=True, help="of the sample")
    for name in ("--epsilon", "--delta"):
        parser.add_argument(name, type=float, required=True)
    parser.add_argument("--coordinator", help="host:port of process 0")
    for name in ("--num-processes", "--process-id"):
        parser.add_argument(name, type=int)
    return parser.parse_args()


def rows_of(path: str, names: list[str]) -> Iterator[np.ndarray]:
    """Yields float32 rows of columns (k, d); types may stop the job, no cell does."""
    table = dataset.dataset(path)
    for name in names:
        kind = table.schema.field(name).type
        if not any(is_of(kind) for is_of in NUMBERS):
            raise SystemExit(f"column {name} must be of numbers, is {kind} in {path}.")
    for batch in table.to_batches(columns=names):
        if batch.num_rows:
            columns = (column.cast(float32(), safe=False) for column in batch.columns)
            arrays = [column.to_numpy(zero_copy_only=False) for column in columns]
            yield np.stack(arrays, axis=1)


def main() -> None:
    args = arguments()
    if (args.folder / "model.json").exists():
        raise SystemExit("--folder has model.json: its key was used, make another.")
    files = sorted(glob.glob(args.files))
    jax.distributed.initialize(args.coordinator, args.num_processes, args.process_id)
    mesh = jax.make_mesh((jax.device_count(),), ("records",))
    if len(files) < jax.process_count():
        raise SystemExit(f"--files must be one a process at least, got {files}.")
    own = files[jax.process_index() :: jax.process_count()]
    names = dataset.dataset(files[0]).schema.names
    names = [name for name in names if name != args.target] + [args.target]
    # One secret key on all processes, the same when the job is started again.
    words = jnp.asarray(np.fromfile(args.folder / "key", np.uint32))
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    sample_key, fit_key = jax.random.split(key)
    stream = (rows for path in own for rows in rows_of(path, names))
    drawn, sample = loading.sample(stream, args.max_records, key=sample_key, mesh=mesh)
    num_records = sample.num_samples
    epsilon, delta = sample.budget(args.epsilon, args.delta)
    # As many for each device. Those left out are of the sample: it is no smaller.
    drawn = drawn[: len(drawn) // jax.device_count() * jax.device_count()]
    targets = drawn[:, -1].copy()
    drawn[:, -1] = 1  # the column of the intercept
    by_records = NamedSharding(mesh, PartitionSpec("records"))
    data = [
        jax.make_array_from_callback(array.shape, by_records, array.__getitem__)
        for array in (drawn, targets)
    ]
    options = {"epsilon": epsilon, "delta": delta, "intercept": -1}
    solution = solvers.dp_linear_model(args.loss, tuple(data), key=fit_key, **options)
    weights = np.asarray(solution.params).tolist()
    if jax.process_index() == 0:
        weights = dict(zip([*names[:-1], "intercept"], weights, strict=True))
        released = {"weights": weights, "epsilon": args.epsilon, "delta": args.delta}
        released |= {"records": num_records, "used": len(drawn)}
        part = args.folder / ".model.json"
        part.write_text(json.dumps(released, indent=2))
        os.replace(part, args.folder / "model.json")
        print(f"({args.epsilon}, {args.delta})-DP for {num_records} records")


if __name__ == "__main__":
    main()
