"""Trains over all processes of a cluster: each runs this one command.

    python train.py --features X --targets Y --folder RUN --epsilon 1 --delta 1e-6

The processes find each other through Slurm; elsewhere they are told, by --coordinator,
--num-processes and --process-id. RUN is a folder that all of them share. A job that was
stopped goes on when the same commands are given again. X and Y are .npy files.
"""

import argparse
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dpjax import loading, losses, solvers
from dpjax.estimators import SmoothedTruncation


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, required=True, help="(n, d) .npy")
    parser.add_argument("--targets", type=Path, required=True, help="(n,) .npy")
    parser.add_argument("--folder", type=Path, required=True, help="shared by all")
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, required=True)
    parser.add_argument("--scale", type=float, default=5.0, help="of the truncation")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--coordinator", help="host:port of process 0")
    counts = {"--steps": 100, "--save-every": 10}
    counts |= {"--num-processes": None, "--process-id": None}
    counts |= {"--seconds-to-start": 300, "--seconds-of-silence": 100}
    for name, default in counts.items():
        parser.add_argument(name, type=int, default=default)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    jax.distributed.initialize(
        args.coordinator,
        args.num_processes,
        args.process_id,
        initialization_timeout=args.seconds_to_start,
        # A process that is silent for so long counts as dead, and ends the others.
        heartbeat_timeout_seconds=args.seconds_of_silence,
    )
    mesh = jax.make_mesh((jax.device_count(),), ("records",))
    source = loading.MemoryMapped((args.features, args.targets))
    data = loading.load(source, NamedSharding(mesh, PartitionSpec("records")))
    # One secret key on all processes, the same when the job is started again.
    words = jnp.asarray(np.fromfile(args.folder / "key", np.uint32))
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    checkpoint = solvers.Checkpoint(args.folder / "states", args.save_every)
    options = {"epsilon": args.epsilon, "delta": args.delta, "num_steps": args.steps}
    options["execution"] = solvers.Execution(checkpoint=checkpoint)
    solution = solvers.dp_gradient_descent(
        *(losses.squared, jnp.zeros(data[0].shape[1]), data),
        key=key,
        estimator=SmoothedTruncation(args.scale),
        learning_rate=args.learning_rate,
        **options,
    )
    if jax.process_index() == 0:
        released = np.asarray(solution.params)
        part = args.folder / ".params.npy"
        np.save(part, released)
        os.replace(part, args.folder / "params.npy")
        (args.folder / "privacy.txt").write_text(f"{solution.privacy}\n")
        print(solution.privacy, flush=True)


if __name__ == "__main__":
    main()
