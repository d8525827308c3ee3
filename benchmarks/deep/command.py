"""What `python -m benchmarks deep` runs; a row's `excess` is the test loss itself."""

import dataclasses
import time
from functools import cache
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.comparison import LARGEST_EXCESS, Suite, key_of, keys_of
from benchmarks.deep import methods, tasks
from benchmarks.deep.methods import BARS, NUM_STEPS, Recipe, plan, train_all
from benchmarks.deep.tasks import Task
from benchmarks.record import RESULTS, Row, rounded
from dpjax.estimators import Clipping

PATH = RESULTS / "deep.json"
EPSILONS = (1.0, 3.0, 8.0)
METHODS = {**BARS, **methods.RECIPES}
TITLES = {name: one.title for name, one in METHODS.items()} | methods.UNTUNED
SEED = 23


def run_named(problem, method, epsilon, repetitions) -> tuple[Row, dict[str, Any]]:
    """Returns the row and the facts of the task."""
    task = tasks.task(problem)
    return run_one(task, method, epsilon, repetitions), facts(task)


def run_one(task: Task, method: str, epsilon: float, repetitions: int) -> Row:
    """Trains a method's repetitions, with keys that depend on all that is run."""
    key = key_of(SEED, task.name, method, epsilon)
    start, keys = time.perf_counter(), keys_of(key, repetitions)
    if method in methods.UNTUNED:
        found = methods.measured(task, method, epsilon, keys)
        return _row(found.pop("loss"), start, {k: v.mean() for k, v in found.items()})
    recipe, budget = METHODS[method], (task.num_samples, epsilon, task.delta)
    if method in BARS:
        found = methods.grid_losses(task, recipe, epsilon, key)
        size, learning_rate, num_steps = min(found, key=lambda one: found[one])
        how = plan(*budget, num_steps)
        taken = {"norm": size, "rate": learning_rate, "num_steps": num_steps}
    else:
        how = plan(*budget, NUM_STEPS, recipe.num_bands, recipe.head_share(task))
        size, learning_rate = methods.settings(recipe, how, task)
        taken = {"size": size, "rate": learning_rate, "stddev": how.stddev}
    losses = train_all(task, recipe, how, [size], [learning_rate], keys)[:, 0]
    return _row(losses, start, taken)


def _row(losses, start: float, taken: dict[str, Any]) -> Row:
    losses = np.minimum(np.nan_to_num(losses, nan=LARGEST_EXCESS), LARGEST_EXCESS)
    seconds = round(time.perf_counter() - start, 3)
    facts = {name: rounded(value, 4) for name, value in taken.items()}
    return {"excess": [rounded(x) for x in losses], "seconds": seconds, "facts": facts}


def facts(task: Task) -> dict[str, Any]:
    """What the page says of a task."""
    known = {name: getattr(task, name) for name in ("title", "model", "loss")}
    known |= {"n": task.num_samples, "d": task.num_params}
    known |= {"num_test": len(task.test[1]), "delta": task.delta}
    known |= {"is_made": task.name in tasks.MADE_NAMES}
    known |= {"constant_loss": task.constant_loss}
    return known | {"noiseless_loss": noiseless_loss(task)}


@cache
def noiseless_loss(task: Task) -> float:
    """The test loss by adam without noise, where hardly a gradient is clipped."""
    recipe = Recipe("", "", Clipping, adam=optax.scale_by_adam)
    how = plan(task.num_samples, 1.0, task.delta, NUM_STEPS)
    how = dataclasses.replace(how, multiplier=0.0)
    keys = jax.random.split(jax.random.key(SEED), 1)
    return float(train_all(task, recipe, how, [1e4], [methods.ADAM_RATE], keys)[0, 0])


PARTS = {
    "run": Suite(
        *(run_named, TITLES, tasks.NAMES, EPSILONS, 4, PATH, ("optax",)),
        others=(*tasks.MADE_NAMES, *tasks.PUBLISHED_NAMES),
    )
}
