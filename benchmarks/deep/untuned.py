"""Methods with nothing to set: `PrivateTraining`, and a last layer.

A last layer is `dp_linear_model` on the features of the network before any step.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.deep.tasks import Task
from dpjax import PrivateTraining, losses
from dpjax.solvers import dp_linear_model

TITLES = {
    "private_training": "PrivateTraining, nothing set",
    "last_layer": "dp_linear_model as the last layer, nothing set",
}


def measured(task: Task, method: str, epsilon: float, keys) -> dict[str, np.ndarray]:
    """Returns test losses, and of classes accuracies, of shape (keys,)."""
    train = _trained if method == "private_training" else _last_layer
    budget = {"epsilon": epsilon, "delta": task.delta}
    measures = {"loss": task.test_loss}
    if task.loss != "squared":
        measures["accuracy"] = task.accuracy
    found = [train(task, budget, key) for key in keys]
    return {
        name: np.array([float(jax.jit(measure)(params)) for params in found])
        for name, measure in measures.items()
    }


def _trained(task, budget, key):
    init_key, key = jax.random.split(key)
    run = PrivateTraining(task.loss_fn, num_samples=task.num_samples, **budget)
    data = jax.tree.map(jnp.asarray, task.train)

    def step(_, state):
        return run.step(state, data)[0]

    @jax.jit
    def train(state):
        return jax.lax.fori_loop(0, run.num_steps, step, state).params

    return train(run.init(task.init(init_key), key))


def _last_layer(task, budget, key):
    init_key, key = jax.random.split(key)
    params = task.init(init_key)
    features, targets = task.head_data(params)
    num_outputs = params["b_head"].size
    loss = losses.softmax(num_outputs) if task.loss != "squared" else "squared"
    weights = dp_linear_model(
        loss, (features, targets), key=key, intercept=-1, **budget
    ).params.reshape(-1, num_outputs)
    return params | {"w_head": weights[:-1], "b_head": weights[-1]}
