"""The loop that all iterative solvers share: batch, gradient, update, step by step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._processes import devices_of, digests, is_first
from dpjax._sharding import AxisName, row_axes
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.batching import Batching
from dpjax.estimators import Estimator
from dpjax.gradients import robust_grad
from dpjax.solvers._checkpoint import Checkpoint, identity, is_key, opened

GradFn = Callable[[PyTree, PyTree, jax.Array | None], PyTree]


class Watch(NamedTuple):
    """A callback that sees the step and the iterate every so many steps.

    Attributes:
        callback: `callback(step, params)`, called on the host with step = 1, 2, ...; it
            sees released numbers only. Its return value is ignored. A run that is taken
            up after a kill may show a step again, with the same numbers. Of several
            processes the first calls it.
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
        checkpoint: where the run is saved, if anywhere.
        axis_name: the mesh axes over which the data's rows are dealt out, if any; `run`
            finds them.
    """

    batching: Batching
    num_steps: int
    microbatch_size: int | None = None
    watch: Watch | None = None
    checkpoint: Checkpoint | None = None
    axis_name: AxisName | None = None

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
        if self.checkpoint is not None:
            Checkpoint.checked(self.checkpoint)
        return self

    def mean_grad(
        self, loss_fn: LossFn, estimator: Estimator, divisor: Scalar
    ) -> GradFn:
        """Returns the robust mean gradient on a step's batch, over all its devices."""
        return robust_grad(
            loss_fn,
            estimator,
            microbatch_size=self.microbatch_size,
            normalize_by=divisor,
            axis_name=self.axis_name,
        )


class Part(NamedTuple):
    """Steps `start` + 1 to `stop` of a run.

    Attributes:
        start: how many steps are done.
        stop: how many steps are done afterwards.
        carry: what the steps before left; None before the first.
    """

    start: Scalar
    stop: Scalar
    carry: PyTree | None


class Descended(NamedTuple):
    """The last iterate, the optimizer's last state, and what the next part needs."""

    params: PyTree
    state: optax.OptState
    carry: PyTree


def descend(
    loop: Loop,
    grad_fn: GradFn,
    optimizer: optax.GradientTransformation,
    params: PyTree,
    data: PyTree,
    key: Key,
    part: Part | None,
) -> Descended:
    """Runs w <- w + update(gradient on the step's batch), T times, in one scan.

    Args:
        loop: the static part.
        grad_fn: `grad_fn(params, batch, is_padding_example) -> gradient`.
        optimizer: turns gradients into updates; noise and choices happen here.
        params: where to start.
        data: pytree, leaves of shape (n, ...).
        key: a typed key for drawing batches.
        part: the steps to run, in a loop that compiles once for all parts; all of them
            where it is None.
    """

    @jax.checkpoint
    def step(carry, index):
        params, state, key = carry
        key, draw_key = jax.random.split(key)
        batch, is_padding_example = loop.batching.draw(
            draw_key,
            data,
            step=index,
            num_steps=loop.num_steps,
            axis_name=loop.axis_name,
        )
        grads = grad_fn(params, batch, is_padding_example)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        if loop.watch is not None:
            _show(loop.watch, index + 1, loop.num_steps, params)
        return (params, state, key), None

    carry = (params, optimizer.init(params), key)
    if part is None:
        carry, _ = jax.lax.scan(step, carry, jnp.arange(loop.num_steps))
    elif part.carry is not None:
        carry = jax.lax.fori_loop(
            part.start, part.stop, lambda i, carry: step(carry, i)[0], part.carry
        )
    params, state, _ = carry
    return Descended(params, state, () if part is None else carry)


def run(
    descent: jax.stages.Wrapped, method: Any, *, data: PyTree, **arguments: Any
) -> Any:
    """Returns what a compiled descent gives; saves it on the way where that is asked.

    Data that are dealt out over devices stay there.

    Args:
        descent: `descent(method, part=part, **arguments) -> (result, carry)`, jitted
            with the method static; it calls `descend` with the part.
        method: has a `Loop` as its field `loop`.
        data: pytree, leaves of shape (n, ...).
        arguments: all that the result depends on besides.
    """
    arguments["data"] = data
    loop: Loop = method.loop._replace(axis_name=row_axes(data, None) or None)
    method = method._replace(loop=loop)
    checkpoint, watch = loop.checkpoint, loop.watch
    devices = devices_of(arguments)
    if devices:
        settings = {"batching": repr(loop.batching), "num_steps": loop.num_steps}
        own = {
            name: value
            for name, value in arguments.items()
            if name != "data"
            and all(map(_validate.is_concrete, jax.tree.leaves(value)))
        }
        digests(own | settings, devices)  # refuses those that differ
    if checkpoint is None:
        return descent(method, part=None, **arguments)[0]
    _validate.require(
        all(map(_validate.is_concrete, jax.tree.leaves(arguments))),
        "checkpoint",
        checkpoint,
        "None under jit, vmap and grad, where nothing can be saved",
    )
    intervals = [checkpoint.every, *([watch.every] if watch else [])]
    # Watched from here: a callback would make every process's program another one.
    method = method._replace(loop=loop._replace(checkpoint=None, watch=None))

    def run_part(*part: Any) -> Any:
        # The parts are one release: each goes on with the keys where they stand.
        again = jax.tree.map(
            lambda x: jax.random.clone(x) if is_key(x) else x, arguments
        )
        return descent(method, part=Part(*part), **again)

    _, carry = run_part(0, 0, None)
    program = descent.lower(method, part=Part(0, 0, carry), **arguments)
    run_identity = identity(program.as_text(), arguments, devices)
    with opened(checkpoint, run_identity, devices) as store:
        store.claim()  # nobody else may start with these keys
        step, carry = store.latest(carry)
        while True:
            cuts = [step - step % every + every for every in intervals]
            stop = min(loop.num_steps, *cuts)
            result, carry = run_part(step, stop, carry)
            is_last = stop == loop.num_steps
            # Shown before it is saved: twice after a kill, but never not at all.
            is_due = watch and (is_last or stop % watch.every == 0)
            if watch and is_due and is_first(devices):
                watch.callback(stop, carry[0])
            if stop > step and (is_last or stop % checkpoint.every == 0):
                store.save(stop, carry)
            if is_last:
                return result
            step = stop


def _show(watch: Watch, step: jax.Array, num_steps: int, params: PyTree) -> None:
    is_due = (step % watch.every == 0) | (step == num_steps)
    jax.lax.cond(
        is_due,
        lambda: jax.debug.callback(watch.callback, step, params, ordered=False),
        lambda: None,
    )
