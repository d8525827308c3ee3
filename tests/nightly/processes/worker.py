"""One of several processes that train together; test_processes.py starts them."""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import loading, losses, solvers
from dpjax.batching import Poisson, WithoutReplacement
from dpjax.estimators import SmoothedTruncation
from dpjax.solvers import Checkpoint, Execution

address, num_processes, process, folder, *tasks = sys.argv[1:]
process, num_processes, folder = int(process), int(num_processes), Path(folder)
(folder / f"{process}.pid").write_text(str(os.getpid()))
if num_processes > 1:
    timeouts = {"initialization_timeout": 240, "heartbeat_timeout_seconds": 10}
    jax.distributed.initialize(address, num_processes, process, **timeouts)
mesh = jax.make_mesh((jax.device_count(),), ("records",))
by_records = NamedSharding(mesh, PartitionSpec("records"))
source = loading.MemoryMapped((folder / "features.npy", folder / "targets.npy"))


def train(data, key=1, **options):
    options |= {"epsilon": 0.1, "delta": 1e-2, "learning_rate": 0.3, "num_steps": 5}
    options |= {"key": jax.random.key(key), "estimator": SmoothedTruncation(3.0)}
    problem = losses.squared, jnp.zeros(3), data
    solution = solvers.dp_gradient_descent(*problem, **options)
    stats = {name: float(x) for name, x in solution.stats.items()}
    params = np.asarray(solution.params).tolist()
    return {"params": params, "privacy": repr(vars(solution.privacy)), "stats": stats}


def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except ValueError as error:
        return str(error)
    return "no error"


def rows_of(step_and_batch):
    """This process's part of a batch: where it lies, the records, the padding."""
    (features, targets), is_padding = step_and_batch
    columns = [x.addressable_shards for x in (features, targets, is_padding)]
    return [
        [shards[0].index[0].start or 0, *(shard.data.tolist() for shard in shards)]
        for shards in zip(*columns, strict=True)
    ]


def kill_another(step, params):
    """Ends process 1 by a signal that it cannot handle."""
    del params
    if step == 3:
        os.kill(int((folder / "1.pid").read_text()), signal.SIGKILL)


def undisturbed():
    data = loading.load(source, by_records)
    odd = loading.load(loading.MemoryMapped(folder / "odd.npy"), by_records)
    other = loading.MemoryMapped(folder / ("odd.npy", "targets.npy")[process % 2])
    errors = [error_of(train, data, key=process)]
    errors += [error_of(loading.load, other, by_records)]
    runs = {"full": train(data), "poisson": train(data, batching=Poisson(16.0))}
    return runs | {"odd": odd.shape[0], "errors": errors}


def read_by_batch():
    results = {}
    for batching in (Poisson(6.0), WithoutReplacement(7)):
        key = jax.random.key(5)
        state = batching.init(key, len(source), 2, epsilon=1.0, delta=1e-5)
        batches = loading.batches(source, state, sharding=by_records)
        results[f"batches {batching}"] = [rows_of(batch) for batch in batches]
    return results


def unshared():
    data = loading.load(source, by_records)
    own = Checkpoint(folder / f"own {process}")
    return {"unshared": error_of(train, data, execution=Execution(checkpoint=own))}


def saved():
    data = loading.load(source, by_records)
    callback = kill_another if "kill" in tasks else None
    checkpoint = Checkpoint(folder / "states", every=2)
    execution = Execution(callback=callback, checkpoint=checkpoint)
    return {"saved": train(data, execution=execution)}


def sampled():
    """Samples of streams of unequal length, as the test says what they are."""
    parts = np.array_split(np.arange(50, 70) if process else np.arange(50), 3)
    streams = [{"number": x, "pair": np.stack([x, -x], 1) / 2} for x in parts]
    draw = partial(loading.sample, mesh=mesh)
    drawn = []
    for size in (1, 10, 69, 70, 100):
        columns, sample = draw(streams, size, key=jax.random.key(size))
        total = sample.num_samples
        drawn.append([size, total, {k: x.tolist() for k, x in columns.items()}])
    key = jax.random.key(3)
    other = [parts[0].astype(("f4", "f8")[process])]
    late = [parts[0].astype("f4"), *other]
    refused = {
        "key": error_of(draw, parts, 5, key=jax.random.key(process)),
        "size": error_of(draw, parts, 5 + process, key=key),
        "chunks": error_of(draw, parts[: 1 - process], 5, key=key),
        "types": error_of(draw, other, 5, key=key),
        "types that change": error_of(draw, late, 5, key=key),
        "objects": error_of(draw, [np.array(["a", None])], 5, key=key),
    }
    return {"sampled": drawn, "not sampled": refused}


results = {}
for task in (undisturbed, read_by_batch, unshared, saved, sampled):
    results |= task() if task.__name__ in tasks else {}
print("RESULT", json.dumps(results), flush=True)
