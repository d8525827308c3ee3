"""Clipped gradient descent with its settings chosen in hindsight: the bar of the page.

Not private: the best of a grid by the excess itself, on keys of their own. The gradient
of a linear model is x phi'(<w, x>), and clipping it to norm C clips phi' to C / ||x||:
all settings and keys are columns of one matrix of weights.
"""

from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.utility.problems import Problem
from dpjax.accounting import Sampling, noise_multiplier

NORMS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
STEPS = NORMS
# Rows of BlogFeedback are long: its best step and norm lie outside the grid.
WIDE_NORMS = (*NORMS, 1_000.0, 3_000.0)
WIDE_STEPS = (0.001, 0.003, 0.01, *STEPS)
NUM_STEPS = (10, 30, 100, 300)
NUM_CHOICE_KEYS = 5
CHOICE = 1_000_000  # folded into a key for these; steps fold in their numbers
# Of the products with the features, in bytes: 3 arrays of float32 a record and column.
MEMORY = 3e9


class Setting(NamedTuple):
    """One point of the grid."""

    l2_clip_norm: float
    learning_rate: float
    num_steps: int


@lru_cache(maxsize=1)
def on_device(data: Problem) -> tuple[jax.Array, jax.Array]:
    """Returns the training pair of a problem as JAX arrays, and keeps the last."""
    features, targets = data.train
    return jnp.asarray(features), jnp.asarray(targets)


def clipped_gradients(features, targets, params, norms, loss):
    """Returns mean clipped gradients, and the share of those that are not clipped.

    A run is a column of `params`, (d, k), and clips to one of `norms`, (k,).
    """
    matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    predictions = matmul(features, params)
    if loss != "squared":
        predictions = jax.nn.sigmoid(predictions)
        targets = jnp.where(targets > 0, 1.0, 0.0)
    slopes = predictions - targets[:, None]
    lengths = jnp.linalg.norm(features, axis=1)[:, None]
    bounds = norms[None] / jnp.maximum(lengths, 1e-30)
    share = jnp.mean(jnp.where(jnp.abs(slopes) <= bounds, 1.0, 0.0), axis=0)
    gradients = matmul(features.T, jnp.clip(slopes, -bounds, bounds))
    return gradients / len(targets), share


def draws(keys, step, num):
    """Returns the normal numbers of a step, a column a key."""
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
    return jax.vmap(lambda key: jax.random.normal(key, (num,)))(keys).T


@partial(jax.jit, static_argnames="loss")
def _descend(features, targets, norms, rates, keys, num_steps, noise, loss):
    """Returns last iterates of shape (d, settings, keys)."""
    num_features = features.shape[1]
    shape = (num_features, norms.size, keys.size)
    clips = jnp.repeat(norms, keys.size)  # of a column

    def step(index, params):
        columns = params.reshape(num_features, -1)
        gradients, _ = clipped_gradients(features, targets, columns, clips, loss)
        stddevs = noise * norms  # of the mean of the clipped gradients
        noises = stddevs[None, :, None] * draws(keys, index, num_features)[:, None, :]
        return params - rates[None, :, None] * (gradients.reshape(shape) + noises)

    return jax.lax.fori_loop(0, num_steps, step, jnp.zeros(shape))


def descend(data, settings, keys, epsilon) -> np.ndarray:
    """Returns last iterates (d, settings, keys) of every setting with every key.

    Settings share draws; steps are Gaussian mechanisms of sensitivity 2 C / n.
    """
    num_samples, num_features = data.shape
    chunk = max(1, int(MEMORY / (12 * num_samples * keys.size)))
    params = np.empty((num_features, len(settings), keys.size), np.float32)
    for num_steps in sorted({setting.num_steps for setting in settings}):
        sampling = Sampling(num_steps=num_steps)
        multiplier = noise_multiplier(epsilon, data.delta, sampling)
        noise = np.float32(multiplier * 2 / num_samples)
        places = [i for i, one in enumerate(settings) if one.num_steps == num_steps]
        for start in range(0, len(places), chunk):
            part = places[start : start + chunk]
            norms, rates, _ = np.array([settings[i] for i in part], np.float32).T
            runs = norms, rates, keys, num_steps, noise
            params[:, part] = _descend(*on_device(data), *runs, loss=data.loss)
    return params


def grid(*, is_wide: bool = False) -> list[Setting]:
    """Every setting."""
    norms, steps = (WIDE_NORMS, WIDE_STEPS) if is_wide else (NORMS, STEPS)
    return [Setting(*values) for values in product(norms, steps, NUM_STEPS)]


def choose(data, keys, epsilon, settings) -> Setting:
    """Returns the setting of least mean excess over the keys."""
    params = descend(data, settings, keys, epsilon)
    excess = data.excess(params.reshape(len(params), -1)).reshape(params.shape[1:])
    return settings[int(np.argmin(np.mean(excess, axis=1)))]


def fit(data, keys, epsilon, *, is_wide=False) -> tuple[np.ndarray, dict[str, float]]:
    """Chooses on keys of its own; returns weights (d, keys) of those given."""
    own = jax.random.split(jax.random.fold_in(keys[0], CHOICE), NUM_CHOICE_KEYS)
    setting = choose(data, own, epsilon, grid(is_wide=is_wide))
    return descend(data, [setting], keys, epsilon)[:, 0], setting._asdict()
