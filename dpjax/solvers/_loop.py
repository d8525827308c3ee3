"""The loop of all iterative solvers: batch, step, batch, step, in one compiled scan."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._processes import devices_of, digests, is_first
from dpjax._sharding import row_axes
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.batching import Batching
from dpjax.batching._shared import BatchState
from dpjax.estimators import Estimator
from dpjax.gradients import streamed_grad
from dpjax.solvers._checkpoint import Checkpoint, identity, is_key, opened
from dpjax.transforms import aggregate


class Step(Protocol):
    """One step of an algorithm: a frozen dataclass, registered as a pytree.

    Its leaves are traced, so that a sweep over them compiles once; all other fields are
    options. `iterate` sets its field `key`.
    """

    def init(self, params: PyTree) -> PyTree:
        """Returns the state before the first step."""
        ...

    def __call__(
        self,
        params: PyTree,
        state: PyTree,
        batch: PyTree,
        is_padding_example: jax.Array | None,
    ) -> tuple[PyTree, PyTree]:
        """Returns the next iterate and state."""
        ...


class Batches(NamedTuple):
    """What a step knows of its batches; all of it is options.

    Attributes:
        divisor: the public number by which a sum over a batch is divided.
        is_sampled: whether chance decides which records a batch holds.
        microbatch_size: samples processed at once; None chooses.
        axis_name: the mesh axes over which rows are sharded.
    """

    divisor: float
    is_sampled: bool
    microbatch_size: int | None
    axis_name: tuple[str, ...] | None

    @classmethod
    def of(
        cls, data: PyTree, num_steps: int, batching: Batching, execution: "Execution"
    ) -> "Batches":
        """Returns the facts of so many batches of the data."""
        check_execution(execution)
        return cls(
            batching.divisor(_validate.leading_size(data, "data"), num_steps),
            batching.is_sampled,
            execution.microbatch_size,
            row_axes(data, None) or None,
        )


@dataclass(frozen=True, kw_only=True)
class OptaxStep(abc.ABC):
    """A step along per-sample gradients, which an optax chain turns into an update."""

    loss_fn: LossFn
    batches: Batches
    key: Key | None = None

    def mean(self, estimator: Estimator) -> optax.GradientTransformation:
        """Returns the first link of a chain: the robust mean, without noise."""
        return aggregate(
            estimator,
            normalize_by=self.batches.divisor,
            axis_name=self.batches.axis_name,
        )

    @abc.abstractmethod
    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the chain that makes a step from these parameters."""

    def init(self, params: PyTree) -> PyTree:
        """See `Step.init`."""
        return self.optimizer(params).init(params)

    def __call__(
        self,
        params: PyTree,
        state: PyTree,
        batch: PyTree,
        is_padding_example: jax.Array | None,
    ) -> tuple[PyTree, PyTree]:
        """See `Step.__call__`."""
        return descended(
            self.loss_fn,
            self.optimizer(params),
            params,
            state,
            batch,
            is_padding_example,
            microbatch_size=self.batches.microbatch_size,
        )


def descended(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    params: PyTree,
    state: PyTree,
    batch: PyTree,
    is_padding_example: jax.Array | None,
    *,
    microbatch_size: int | None,
) -> tuple[PyTree, PyTree]:
    """Returns params and optimizer state after one step along a batch's gradients."""
    grad_fn = streamed_grad(loss_fn, microbatch_size=microbatch_size)
    updates, state = optax.with_extra_args_support(optimizer).update(
        cast(Any, grad_fn(params, batch)),
        state,
        params,
        is_padding_example=is_padding_example,
    )
    return optax.apply_updates(params, updates), state


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How an iterative solver runs; none of it changes the privacy.

    Attributes:
        microbatch_size: samples processed at once; speed and memory only. None chooses.
        callback: `callback(step, params)`, called on the host with step = 1, 2, ...
            while the compiled loop runs. It sees released numbers only; what it returns
            is ignored. A resumed run may show a step again, with the same numbers. Of
            several processes the first calls it.
        callback_every: called at every so many steps, and at the last.
        checkpoint: where the run is saved, so that it outlives its process.

    Raises:
        ValueError: where a field is out of its range.

    Example:
        >>> Execution(microbatch_size=32)
        Execution(microbatch_size=32, callback=None, callback_every=1, checkpoint=None)
    """

    microbatch_size: int | None = None
    callback: Callable[[Any, PyTree], None] | None = None
    callback_every: int = 1
    checkpoint: Checkpoint | None = None

    def __post_init__(self):
        if self.microbatch_size is not None:
            _validate.count(microbatch_size=self.microbatch_size)
        _validate.require(
            self.callback is None or callable(self.callback),
            "callback",
            self.callback,
            "callable",
        )
        _validate.count(callback_every=self.callback_every)
        if self.checkpoint is not None:
            Checkpoint.checked(self.checkpoint)


def check_execution(execution: Execution) -> None:
    """Requires an `Execution`."""
    _validate.require(
        isinstance(execution, Execution),
        "execution",
        execution,
        "an Execution(microbatch_size=, callback=, checkpoint=)",
    )


def check_steps(num_samples: int, num_steps: int, batching: Batching) -> None:
    """Requires a batching and a count of steps that suit the number of records."""
    _validate.require(
        isinstance(batching, Batching),
        "batching",
        batching,
        "Full(), Poisson(...) or another of dpjax.batching",
    )
    _validate.count(num_steps=num_steps)
    batching.divisor(num_samples, num_steps)


def iterate(
    step: Step,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    num_steps: int,
    batching: Batching,
    execution: Execution,
    epsilon: float | None = None,
    delta: float | None = None,
) -> tuple[PyTree, PyTree]:
    """Returns the last iterate and state of so many steps, each on its own batch.

    The key is for the step's draws and for drawing batches; epsilon and delta are the
    budget of the run, if the batching depends on it. Data may be sharded.
    """
    num_samples = _validate.leading_size(data, "data")
    begin = partial(batching.init, epsilon=epsilon, delta=delta)
    batches = jax.eval_shape(lambda key: begin(key, num_samples, num_steps), key)
    options = _Options(
        replace(batches, key=None, run_key=None, step=None),
        row_axes(data, None) or None,
        execution.callback,
        execution.callback_every,
    )
    arguments = _leaves_by_name(step) | {"params": params, "data": data, "key": key}
    traced = {"params": params, "data": data, "key": key}
    devices = devices_of(arguments)
    if devices:
        settings = {"batching": repr(batching), "num_steps": num_steps}
        own = {
            name: value
            for name, value in arguments.items()
            if name != "data"
            and all(map(_validate.is_concrete, jax.tree.leaves(value)))
        }
        digests(own | settings, devices)  # refuses those that differ
    if execution.checkpoint is not None:
        return _saved(options, step, traced, arguments, execution, devices)
    params, state, _ = _run(options, step, part=None, **traced)
    return params, state


class _Options(NamedTuple):
    """The static part of a run beside the step's.

    Attributes:
        batches: the state of the batches without keys and step.
        axis_name: the mesh axes over which rows are sharded.
        callback: sees the iterates, every so many steps.
        callback_every: how many.
    """

    batches: BatchState
    axis_name: tuple[str, ...] | None
    callback: Callable[[Any, PyTree], None] | None
    callback_every: int


class _Part(NamedTuple):
    """Steps `start` + 1 to `stop` of a run, from the carry of the steps before.

    Where that is None no step is made, and the initial carry is returned.
    """

    start: Scalar
    stop: Scalar
    carry: tuple[PyTree, PyTree, BatchState] | None


@partial(jax.jit, static_argnums=0)
def _run(
    options: _Options,
    step: Step,
    params: PyTree,
    data: PyTree,
    key: Key,
    part: _Part | None,
) -> tuple[PyTree, PyTree, BatchState]:
    """Returns iterate, states after a part of the steps; None is all of them."""
    # Keys are made in here, so that a run is one program.
    step_key, batch_key = jax.random.split(key)
    step = replace(cast(Any, step), key=step_key)

    @jax.checkpoint
    def one_step(carry, index):
        params, state, batches = carry
        batch, is_padding_example, batches = batches.batching.draw_within(
            batches, data, axis_name=options.axis_name
        )
        params, state = step(params, state, batch, is_padding_example)
        if options.callback is not None:
            _show(options, index + 1, batches.num_steps, params)
        return (params, state, batches), None

    if part is not None and part.carry is not None:
        # Traced bounds: one program for all parts.
        return jax.lax.fori_loop(
            part.start, part.stop, lambda i, carry: one_step(carry, i)[0], part.carry
        )
    carry = (params, step.init(params), options.batches.started(batch_key))
    if part is not None:
        return carry
    return jax.lax.scan(one_step, carry, jnp.arange(options.batches.num_steps))[0]


def _show(options: _Options, step: jax.Array, num_steps: int, params: PyTree) -> None:
    callback = cast(Callable[..., None], options.callback)
    is_due = (step % options.callback_every == 0) | (step == num_steps)
    jax.lax.cond(
        is_due,
        lambda: jax.debug.callback(callback, step, params, ordered=False),
        lambda: None,
    )


def _saved(options, step, traced, arguments, execution, devices):
    """Runs part by part, saves the carry after each, and goes on from one saved."""
    checkpoint, num_steps = execution.checkpoint, options.batches.num_steps
    _validate.require(
        all(map(_validate.is_concrete, jax.tree.leaves(arguments))),
        "checkpoint",
        checkpoint,
        "None under jit, vmap and grad, where nothing can be saved",
    )
    # Shown from here: a callback would make every process's program another one.
    callback, options = options.callback, options._replace(callback=None)
    intervals = [checkpoint.every]
    if callback is not None:
        intervals.append(options.callback_every)

    def run_part(start, stop, carry):
        # The parts are one release: each goes on with the keys where they stand.
        again = jax.tree.map(
            lambda x: jax.random.clone(x) if is_key(x) else x, (step, traced)
        )
        return _run(options, again[0], part=_Part(start, stop, carry), **again[1])

    carry = run_part(0, 0, None)
    program = _run.lower(options, step, part=_Part(0, 0, carry), **traced)
    # The program runs any part of the steps: how many there are is said besides.
    text = f"{program.as_text()}\n{num_steps} steps of {options.batches.batching!r}"
    run_identity = identity(text, arguments, devices)
    with opened(checkpoint, run_identity, devices) as store:
        store.claim()  # nobody else may start with these keys
        done, carry = store.latest(carry)
        while True:
            cuts = [done - done % every + every for every in intervals]
            stop = min(num_steps, *cuts)
            carry = run_part(done, stop, carry)
            is_last = stop == num_steps
            # Shown before it is saved: twice after a kill, but never not at all.
            is_due = callback and (is_last or stop % options.callback_every == 0)
            if callback and is_due and is_first(devices):
                callback(stop, carry[0])
            if stop > done and (is_last or stop % checkpoint.every == 0):
                store.save(stop, carry)
            if is_last:
                return carry[:2]
            done = stop


def _leaves_by_name(step: Step) -> dict[str, PyTree]:
    """Returns the traced fields of a step, each under its name."""
    fields, _ = jax.tree_util.tree_flatten_with_path(
        step, is_leaf=lambda x: x is not step
    )
    return {path[0].name: value for path, value in fields}
