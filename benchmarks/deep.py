"""The command `python -m benchmarks deep`: trains networks, writes DEEP.md.

`run` trains what the record lacks, and merges each row as it comes; `page` writes the
page from the record. A row's `excess` is over a loss of zero: the test loss itself.
"""

import dataclasses
import time
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from zlib import crc32

import jax
import numpy as np
import optax

from benchmarks import deep_page, deep_tasks, utility
from benchmarks import record as records
from benchmarks.deep_hindsight import BARS, grid_losses
from benchmarks.deep_methods import (
    ADAM_RATE,
    NUM_STEPS,
    RECIPES,
    Recipe,
    plan,
    train_all,
    untuned,
)
from benchmarks.deep_tasks import Task
from benchmarks.record import ROOT
from benchmarks.utility_problems import LARGEST_EXCESS
from benchmarks.utility_record import Place, Row, write_page
from dpjax.estimators import Clipping

PATH = records.RESULTS / "deep.json"
EPSILONS = (1.0, 3.0, 8.0)
METHODS = {**BARS, **RECIPES}
SEED = 23


def add_arguments(parser):
    """Adds the commands below `deep`."""
    commands = parser.add_subparsers(dest="part", required=True)
    run_parser = commands.add_parser("run", help="train what the record lacks")
    utility.add_run_arguments(
        run_parser, METHODS, deep_tasks.NAMES, EPSILONS, repetitions=4, out=PATH
    )
    page_parser = commands.add_parser("page", help="write DEEP.md from the record")
    utility.add_page_arguments(page_parser, PATH)


def main(part, **options):
    """Runs the command."""
    if part == "run":
        run(**options)
    else:
        output = options["output"] or ROOT / "DEEP.md"
        print(write_page(options["record"], deep_page.page, output))


def run(
    methods: Sequence[str],
    problems: Sequence[str],
    epsilons: Sequence[float],
    repetitions: int,
    out: Path,
    again: bool = False,
) -> None:
    """Trains what the record lacks, and merges each row as it comes.

    Raises:
        ValueError: if a method or task is unknown, an epsilon is not positive, there
            are fewer than two repetitions, or out is no JSON file.
    """
    utility.check_choices(methods, METHODS, epsilons)

    def run_place(place: Place) -> tuple[Row, dict[str, object]]:
        task = deep_tasks.task(place.problem)
        return run_one(task, place.method, place.epsilon, repetitions), facts(task)

    places = product(problems, map(float, epsilons), methods)
    utility.fill(
        [Place(name, method, epsilon) for name, epsilon, method in places],
        run_place,
        repetitions,
        out,
        packages=["optax"],
        again=again,
    )


def run_one(task: Task, method: str, epsilon: float, repetitions: int) -> Row:
    """Trains a method's repetitions, with keys that depend on all that is run."""
    name = f"{task.name} {method} {epsilon:g}"
    key = jax.random.fold_in(jax.random.key(SEED), crc32(name.encode()) & 0x7FFFFFFF)
    start, recipe = time.perf_counter(), METHODS[method]
    if method in BARS:
        losses = grid_losses(task, recipe, epsilon, key)
        size, learning_rate, num_steps = min(losses, key=lambda one: losses[one])
        how = plan(task.num_samples, epsilon, task.delta, num_steps)
        taken = {"norm": size, "rate": learning_rate, "num_steps": num_steps}
    else:
        share = recipe.head_share(task)
        how = plan(
            *(task.num_samples, epsilon, task.delta, NUM_STEPS),
            *(recipe.num_bands, share),
        )
        size, learning_rate = untuned(recipe, how, task)
        taken = {"size": size, "rate": learning_rate, "stddev": how.stddev}
    keys = jax.vmap(lambda index: jax.random.fold_in(key, index))(
        np.arange(repetitions, dtype=np.uint32)
    )
    losses = train_all(task, recipe, how, [size], [learning_rate], keys)[:, 0]
    losses = np.nan_to_num(losses, nan=LARGEST_EXCESS)
    return Row(
        task.name,
        method,
        epsilon,
        excess=tuple(float(f"{min(x, LARGEST_EXCESS):.6g}") for x in losses),
        seconds=round(time.perf_counter() - start, 3),
        facts={key: float(f"{value:.4g}") for key, value in taken.items()},
    )


def facts(task: Task) -> dict[str, object]:
    """What the page says of a task."""
    return {
        "title": task.title,
        "model": task.model,
        "loss": task.loss,
        "n": task.num_samples,
        "d": task.num_params,
        "num_test": len(task.test[1]),
        "delta": task.delta,
        "is_made": task.name in deep_tasks.MADE_NAMES,
        "constant_loss": task.constant_loss,
        "noiseless_loss": noiseless_loss(task),
    }


@cache
def noiseless_loss(task: Task) -> float:
    """The test loss by adam without noise, where hardly a gradient is clipped."""
    recipe = Recipe("", "", Clipping, adam=optax.scale_by_adam)
    how = plan(task.num_samples, 1.0, task.delta, NUM_STEPS)
    how = dataclasses.replace(how, multiplier=0.0)
    keys = jax.random.split(jax.random.key(SEED), 1)
    return float(train_all(task, recipe, how, [1e4], [ADAM_RATE], keys)[0, 0])
