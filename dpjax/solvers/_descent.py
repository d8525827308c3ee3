"""The scan that all iterative solvers share: batch, gradient, update, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._types import Key, PyTree
from dpjax.batching import Batching

GradFn = Callable[[PyTree, PyTree, jax.Array | None], PyTree]


class Watch(NamedTuple):
    """A callback that sees the step and the iterate every so many steps.

    Attributes:
        callback: `callback(step, params)`, called on the host with step = 1, 2, ...; it
            sees released numbers only. Its return value is ignored.
        every: how many steps lie between two calls; the last step is always shown.
    """

    callback: Callable[[Any, PyTree], None]
    every: int = 1


class Loop(NamedTuple):
    """The static part of a run: a call with another one compiles anew.

    Attributes:
        batching: which records a step sees.
        num_steps: T.
        microbatch_size: samples processed at once; speed and memory only.
        watch: shows steps and iterates while the compiled scan runs.
    """

    batching: Batching
    num_steps: int
    microbatch_size: int | None = None
    watch: Watch | None = None

    def checked(self) -> "Loop":
        """Returns itself, or raises `ValueError` for a field out of its range."""
        _validate.require(
            isinstance(self.batching, Batching),
            "batching",
            self.batching,
            "Full(), Disjoint(), Poisson(...) or WithoutReplacement(...)",
        )
        _validate.count(num_steps=self.num_steps)
        if self.microbatch_size is not None:
            _validate.count(microbatch_size=self.microbatch_size)
        if self.watch is not None:
            _validate.require(
                isinstance(self.watch, Watch) and callable(self.watch.callback),
                "watch",
                self.watch,
                "a Watch(callback, every)",
            )
            _validate.count(every=self.watch.every)
        return self


def descend(
    loop: Loop,
    grad_fn: GradFn,
    optimizer: optax.GradientTransformation,
    params: PyTree,
    data: PyTree,
    key: Key,
) -> tuple[PyTree, optax.OptState]:
    """Runs w <- w + update(gradient on the step's batch), T times, in one scan.

    Args:
        loop: the static part.
        grad_fn: `grad_fn(params, batch, is_padding_example) -> gradient`.
        optimizer: turns gradients into updates; noise and choices happen here.
        params: where to start.
        data: pytree, leaves of shape (n, ...).
        key: a typed key for drawing batches.

    Returns:
        The last iterate, and the optimizer's last state.
    """

    @jax.checkpoint
    def step(carry, index):
        params, state, key = carry
        key, draw_key = jax.random.split(key)
        batch, is_padding_example = loop.batching.draw(
            draw_key, data, step=index, num_steps=loop.num_steps
        )
        grads = grad_fn(params, batch, is_padding_example)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        if loop.watch is not None:
            _show(loop.watch, index + 1, loop.num_steps, params)
        return (params, state, key), None

    start = (params, optimizer.init(params), key)
    (params, state, _), _ = jax.lax.scan(step, start, jnp.arange(loop.num_steps))
    return params, state


def _show(watch: Watch, step: jax.Array, num_steps: int, params: PyTree) -> None:
    is_due = (step % watch.every == 0) | (step == num_steps)
    jax.lax.cond(
        is_due,
        lambda: jax.debug.callback(watch.callback, step, params, ordered=False),
        lambda: None,
    )
