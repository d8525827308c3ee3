"""Fixed clipping with its settings chosen in hindsight: the bar of deep networks.

Not private: norm, rate and number of steps are the best of a grid by the very test loss
that the page reports, on keys of their own; what is reported comes from fresh keys, and
nothing is paid for the choice. Rates are in units of the norm: an update is the rate
times the noisy mean over the norm.

All settings of one key share batches and noise, so that a grid is one program.
"""

from itertools import product

import jax
import numpy as np

from benchmarks.deep.methods import NUM_STEPS, Recipe, plan, train_all
from benchmarks.deep.tasks import Task
from benchmarks.utility.hindsight import CHOICE, Setting
from dpjax.estimators import Clipping

NORMS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STEPS = (NUM_STEPS // 4, NUM_STEPS)
NUM_CHOICE_KEYS = 2

BARS = {
    recipe.name: recipe
    for recipe in (
        Recipe("hindsight", "clipping, in hindsight", Clipping, power=0.0),
        Recipe("hindsight_falling", "the same, rates that fall", Clipping),
    )
}


def grid_losses(task: Task, bar: Recipe, epsilon: float, key: jax.Array):
    """Returns the mean test loss of every setting over keys of the choice."""
    keys = jax.random.split(jax.random.fold_in(key, CHOICE), NUM_CHOICE_KEYS)
    settings = list(product(NORMS, RATES))
    found = {}
    for num_steps in STEPS:
        how = plan(task.num_samples, epsilon, task.delta, num_steps)
        losses = train_all(task, bar, how, *zip(*settings, strict=True), keys)
        means = np.nan_to_num(losses.mean(axis=0), nan=np.inf)
        for (norm, rate), mean in zip(settings, means, strict=True):
            found[Setting(norm, rate, num_steps)] = float(mean)
    return found
