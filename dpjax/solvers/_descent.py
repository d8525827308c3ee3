"""The scan that the gradient methods share."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.batching import Batching
from dpjax.estimators import Estimator
from dpjax.gradients import robust_grad
from dpjax.transforms import (
    add_gaussian_noise,
    average_iterates,
    average_params,
    project,
)

ProjectionFn = Callable[[PyTree], PyTree]


class Watch(NamedTuple):
    """A callback that sees the step and the iterate every so many steps.

    Attributes:
        callback: `callback(step, params)`, called on the host with step = 1, 2, ...; it
            sees released numbers only. Its return value is ignored.
        every: how many steps lie between two calls; the last step is always shown.
    """

    callback: Callable[[Any, PyTree], None]
    every: int = 1


class Method(NamedTuple):
    """The static part of a descent: a call with another one compiles anew."""

    loss_fn: LossFn
    batching: Batching
    num_steps: int
    schedule: optax.Schedule | None
    projection_fn: ProjectionFn | None
    averaging: bool
    microbatch_size: int | None
    watch: Watch | None


@partial(jax.jit, static_argnums=0)
def descend(
    method: Method,
    params: PyTree,
    data: PyTree,
    key: Key,
    estimator: Estimator,
    learning_rate: Any,
    noise_multiplier: Scalar | None,
) -> tuple[PyTree, dict[str, Scalar]]:
    """Runs w <- Proj(w - eta·(robust gradient + noise)) for num_steps steps.

    There is no noise where noise_multiplier is None; learning_rate is None where the
    method has a schedule.

    Returns:
        The last iterate, or the mean of all with averaging; and what was taken.
    """
    num_samples = jax.tree.leaves(data)[0].shape[0]
    num_steps = method.num_steps
    divisor = method.batching.divisor(num_samples, num_steps)
    grad_fn = robust_grad(
        method.loss_fn,
        estimator,
        microbatch_size=method.microbatch_size,
        normalize_by=divisor,
    )
    stats = {"num_steps": num_steps, "batch_size": divisor}
    noise_key, batch_key = jax.random.split(key)
    noise = optax.identity()
    if noise_multiplier is not None:
        num_params = sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))
        is_sampled = method.batching.is_sampled
        measure = estimator.sampled_sensitivity if is_sampled else estimator.sensitivity
        sensitivity = measure(divisor, num_params).l2
        stddev = noise_multiplier * sensitivity
        stats |= {"l2_sensitivity": sensitivity, "stddev": stddev}
        noise = add_gaussian_noise(stddev=stddev, key=noise_key)
    optimizer = optax.chain(
        noise,
        optax.sgd(method.schedule or learning_rate),
        project(method.projection_fn) if method.projection_fn else optax.identity(),
        average_iterates() if method.averaging else optax.identity(),
    )

    @jax.checkpoint
    def step(carry, index):
        params, state, batch_key = carry
        batch_key, draw_key = jax.random.split(batch_key)
        batch, is_padding_example = method.batching.draw(
            draw_key, data, step=index, num_steps=num_steps
        )
        grads = grad_fn(params, batch, is_padding_example)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        if method.watch is not None:
            _show(method.watch, index + 1, num_steps, params)
        return (params, state, batch_key), None

    start = (params, optimizer.init(params), batch_key)
    (params, state, _), _ = jax.lax.scan(step, start, jnp.arange(num_steps))
    return (average_params(state) if method.averaging else params), stats


def _show(watch: Watch, step: jax.Array, num_steps: int, params: PyTree) -> None:
    is_due = (step % watch.every == 0) | (step == num_steps)
    jax.lax.cond(
        is_due,
        lambda: jax.debug.callback(watch.callback, step, params, ordered=False),
        lambda: None,
    )
