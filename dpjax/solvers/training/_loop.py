"""The compiled loop of all iterative solvers, which draws a batch and makes a step.

`dp_gradient_descent` and `PrivateTraining` use `PrivateStep`, which passes the noisy
robust mean of a batch's gradients to an optimizer.
"""

import abc
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
from jax.tree_util import Partial

from dpjax import _validate
from dpjax._sharding import AxisName, devices_of, digests, is_first_process, row_axes
from dpjax._tree import Static, broadcast, register
from dpjax._types import REPLACE_ONE, Key, LossFn, NeighboringRelation, PyTree, Scalar
from dpjax.batching._batching import Batching, BatchState
from dpjax.estimators import AdaptiveThreshold, Estimator, Scaled
from dpjax.gradients import streamed_grad
from dpjax.gradients._loss import warn_of_rows
from dpjax.mechanisms._strategy import Strategy
from dpjax.solvers.training import _checkpoint
from dpjax.solvers.training._checkpoint import Checkpoint, is_key
from dpjax.transforms import aggregate, chain, privatize

Mean = Estimator | AdaptiveThreshold | Scaled


class Batches(NamedTuple):
    """Public facts about a run's batches; all of them are static."""

    start: BatchState  # before the first batch, without keys and step
    microbatch_size: int | None  # how many gradients are computed at once
    axis_name: AxisName | None  # the mesh axes over which rows are sharded

    @classmethod
    def of(
        cls,
        data: PyTree,
        num_steps: int,
        batching: Batching,
        execution: "Execution",
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> "Batches":
        """Returns the batching, microbatches and mesh axes with which steps run."""
        # Of `data` only shapes and sharding are read. Poisson batchings need
        # epsilon and delta, for the size of padded batches.
        check_execution(execution)
        num_samples = _validate.leading_size(data, "data")
        rule = "Full(), Poisson(...) or another of dpjax.batching"
        _validate.require(isinstance(batching, Batching), "batching", batching, rule)
        _validate.count(num_steps=num_steps)
        batching.divisor(num_samples, num_steps)  # raises if the batching does not fit
        start = jax.eval_shape(
            lambda: batching.init(
                jax.random.key(0), num_samples, num_steps, epsilon=epsilon, delta=delta
            )
        )
        start = replace(start, key=None, run_key=None, step=None)
        return cls(start, execution.microbatch_size, row_axes(data, None) or None)

    @property
    def divisor(self) -> float:
        """Returns the public number by which a sum over a batch is divided."""
        return self.start.batching.divisor(self.start.num_samples, self.start.num_steps)


@dataclass(frozen=True, kw_only=True)
class OptaxStep(abc.ABC):
    """One step of an algorithm, which passes per-example gradients to an optax chain.

    A subclass is registered as a pytree. Its leaves are traced, so that a sweep over
    them compiles once; all other fields are static. `iterate` sets `key`.
    """

    loss_fn: LossFn
    batches: Batches
    key: Key | None = field(default=None, repr=False)

    def mean(
        self, estimator: Any, noise_multiplier: Any = None, **options: Any
    ) -> optax.GradientTransformation:
        """Returns the first link of a step's optax chain: the mean of gradients."""
        # It is `aggregate`, or with a noise multiplier `privatize` with the options.
        # A subclass's `optimizer` puts it before an update rule.
        batches = self.batches
        how = {"normalize_by": batches.divisor, "axis_name": batches.axis_name}
        if noise_multiplier is None:
            return aggregate(estimator, **how)
        return privatize(
            estimator,
            noise_multiplier=Static.value_of(noise_multiplier),
            key=cast(Key, self.key),
            sampled=batches.start.batching.is_sampled,
            **how,
            **options,
        )

    @abc.abstractmethod
    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the optax chain of a step from params."""

    def init(self, params: PyTree) -> PyTree:
        """Returns the state before the first step."""
        return self.optimizer(params).init(params)

    def __call__(self, params, state, batch, is_padding_example) -> Any:
        """Returns params and the optax state after a step on a batch (m, ...)."""
        # is_padding_example marks rows that fill up a batch, shape (m,), or is None.
        # This warns if loss_fn reads arrays of all rows, `streamed_grad` of a batch's.
        warn_of_rows(self.loss_fn, params, batch, self.batches.start.num_samples)
        size = self.batches.microbatch_size
        grad_fn = streamed_grad(self.loss_fn, microbatch_size=size)
        grads = cast(Any, grad_fn(params, batch))
        optimizer = optax.with_extra_args_support(self.optimizer(params))
        updates, state = optimizer.update(
            grads, state, params, is_padding_example=is_padding_example
        )
        return optax.apply_updates(params, updates), state


@register("estimator", "learning_rate", "noise_multiplier", "key")
@dataclass(frozen=True, kw_only=True)
class PrivateStep(OptaxStep):
    """A step of an optimizer along the noisy robust mean of a batch's gradients.

    A schedule is static, but the arguments of a `Partial` are traced. Without a noise
    multiplier there is no noise, and no privacy.
    """

    estimator: Mean
    noise_multiplier: Scalar | Static | None
    optimizer_fn: Callable[[Any], optax.GradientTransformation]  # of a learning rate
    learning_rate: Scalar | Partial | Static | None = None
    relation: NeighboringRelation = REPLACE_ONE
    strategy: Strategy | None = None  # of correlated noise

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        del params
        optimizer = self.optimizer_fn(Static.value_of(self.learning_rate))
        if self.noise_multiplier is None:
            return optax.chain(self.mean(self.estimator), optimizer)
        how = {"relation": self.relation, "noise": self.strategy}
        return chain(self.mean(self.estimator, self.noise_multiplier, **how), optimizer)

    def noise_parameters(self, num_coordinates: int) -> dict[str, Scalar]:
        """Returns a step's l2_sensitivity and stddev, or zCDP rho for `TrimmedMean`."""
        return measured(self.estimator).noise_parameters(
            Static.value_of(self.noise_multiplier),
            self.batches.divisor,
            num_coordinates,
            self.relation,
            is_sampled=self.batches.start.batching.is_sampled,
        )

    def stddev(self, num_coordinates: int) -> Scalar:
        """Returns the stddev of independent noise that has the effect of this noise."""
        parameters = self.noise_parameters(num_coordinates)
        rule = "one whose noise has a public stddev, which TrimmedMean has not"
        _validate.require("stddev" in parameters, "estimator", self.estimator, rule)
        return parameters["stddev"] * _relative_noise(self.strategy)

    def relative_norm(self, num_coordinates: int) -> Scalar:
        """Returns the norm of a step's noise over the largest norm of one gradient."""
        estimator, divisor = self.estimator, self.batches.divisor
        if isinstance(estimator, AdaptiveThreshold):
            estimator = estimator.estimator  # the gradient alone, without its counts
        replaced = measured(estimator).sensitivity(divisor, num_coordinates).l2
        norm = math.sqrt(num_coordinates) * self.stddev(num_coordinates)
        return norm / (replaced * divisor / 2)


def measured(estimator: Mean) -> Estimator:
    """Returns the estimator with the sensitivity that the noise is scaled to."""
    if isinstance(estimator, Scaled):
        return estimator.measured
    return estimator.counting if isinstance(estimator, AdaptiveThreshold) else estimator


@functools.lru_cache(maxsize=32)
def _relative_noise(strategy: Strategy | None) -> float:
    """Returns |C^-T 1| / sqrt(T), the stddev ratio of the sums of C^-1 z and of z."""
    if strategy is None:
        return 1.0
    ones = np.ones(strategy.num_steps)
    row = scipy.linalg.solve_triangular(strategy.matrix(), ones, lower=True, trans=1)
    return float(np.linalg.norm(row)) / math.sqrt(strategy.num_steps)


class Observed(NamedTuple):
    """State of an optimizer, and public norms of the last mean that it took."""

    optimizer: PyTree
    gradient_norm: jax.Array  # l2 norm of the noisy mean
    noise_norm: jax.Array  # sqrt(d) times the standard deviation of its noise


def observed(
    optimizer: optax.GradientTransformation, stddev: Scalar | None
) -> optax.GradientTransformationExtraArgs:
    """Returns `optimizer` with the norms of a step's noisy mean and noise in its state.

    `PrivateTraining.step` shows them. The noisy mean gradient is the input of `update`,
    which passes the root mean square of the l2 norm of its noise to `optimizer` as the
    keyword noise_norm. The noise has `stddev`, or for None the chain's noise_stddev.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params):
        # Two arrays, not one twice, because the state may be donated.
        unseen = (jnp.zeros((), jnp.float32) for _ in range(2))
        return Observed(optimizer.init(params), *unseen)

    def update(updates, state, params=None, *, noise_stddev=None, **extra_args):
        """Returns optimizer's updates, and its state with norms of input and noise."""
        noise, spread = jnp.float32(0.0), noise_stddev if stddev is None else stddev
        if spread is not None:
            # The norm is the root of the sum of all coordinates' variances.
            stddevs = broadcast(spread, updates, "stddev")
            norms = jax.tree.map(
                lambda s, x: s * math.sqrt(x.size / jnp.size(s)), stddevs, updates
            )
            noise = _norm(norms)
        seen = _norm(updates), noise
        extra = extra_args | {"noise_stddev": noise_stddev, "noise_norm": noise}
        updates, following = optimizer.update(updates, state.optimizer, params, **extra)
        return updates, Observed(following, *seen)

    return optax.GradientTransformationExtraArgs(init, update)


def _norm(tree: PyTree) -> jax.Array:
    return jnp.asarray(optax.tree.norm(tree), jnp.float32)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Sets how an iterative solver runs. No setting changes the privacy.

    Attributes:
        microbatch_size: how many per-example gradients are computed at once; this
            changes speed and memory only. None lets the solver choose.
        callback: `callback(step, params)`, called on the host with step = 1, 2, ...
            while the compiled loop runs. It gets released numbers only, and its result
            is ignored. A resumed run may call it again for a step, with the same
            numbers. If there are several processes, the first process calls it.
        callback_every: steps between two calls. The last step is always shown.
        checkpoint: where the run is saved, so that it can resume if its process ends.

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
        is_fine = self.callback is None or callable(self.callback)
        _validate.require(is_fine, "callback", self.callback, "callable or None")
        _validate.count(callback_every=self.callback_every)
        if self.checkpoint is not None:
            Checkpoint.checked(self.checkpoint)


def check_execution(execution: Execution, no_checkpoint: str | None = None) -> None:
    """Requires an `Execution`; with the rule no_checkpoint, without a checkpoint."""
    rule = "an Execution(microbatch_size=, callback=, checkpoint=)"
    _validate.require(isinstance(execution, Execution), "execution", execution, rule)
    name, value = "execution.checkpoint", execution.checkpoint
    if no_checkpoint is not None:
        _validate.require(value is None, name, value, no_checkpoint)


def iterate(
    step: OptaxStep, params: PyTree, data: PyTree, *, key: Key, execution: Execution
) -> tuple[PyTree, PyTree]:
    """Runs all steps of a solver; returns the last params, and the last optax state.

    `data` has leaves (n, ...), from which each step draws its batch. `key` serves for
    the batches and the noise. With a checkpoint the run is saved, or resumes.
    """
    traced = {"params": params, "data": data, "key": key}
    fields, _ = jax.tree_util.tree_flatten_with_path(
        step, is_leaf=lambda x: x is not step
    )
    arguments = {path[0].name: value for path, value in fields} | traced
    devices = devices_of(arguments)
    if devices:
        start = step.batches.start
        settings = {"batching": repr(start.batching), "num_steps": start.num_steps}
        own = {x: y for x, y in arguments.items() if x != "data" and _is_concrete(y)}
        digests(own | settings, devices)  # raises if the processes' arguments differ
    if execution.checkpoint is not None:
        return _saved(execution, step, traced, arguments, devices)
    params, state, _ = _run(execution, step, part=None, **traced)
    return params, state


@partial(jax.jit, static_argnums=0)
def _run(execution: Execution, step: OptaxStep, params, data, key, part):
    """Runs all steps, or a part (first, stop, carry), as one compiled program.

    Returns a carry: the params, the optax state, and the state of the batches, which is
    None after all steps. Checkpoints save it after each part, from index first to stop.
    If the part's carry is None, the carry before the first step is returned.
    """
    # The keys are split in here, so that a run is one program.
    step_key, batch_key = jax.random.split(key)
    step = replace(step, key=step_key)
    start = step.batches.start

    @jax.checkpoint
    def one_step(carry, index):
        """Returns the carry, and None, after a step on the next batch."""
        # The carry has params, the optax state, and the state of the batches. If it is
        # due, the callback gets the params.
        params, state, batches = carry
        batch, is_padding_example, batches = batches.batching.draw_within(
            batches, data, axis_name=step.batches.axis_name
        )
        params, state = step(params, state, batch, is_padding_example)
        if execution.callback is not None:
            number, every = index + 1, execution.callback_every
            is_due = (number % every == 0) | (number == start.num_steps)
            show = partial(
                jax.debug.callback, execution.callback, number, params, ordered=False
            )
            jax.lax.cond(is_due, show, lambda: None)
        return (params, state, batches), None

    if part is not None and part[2] is not None:
        # The bounds are traced, so that one program runs all parts.
        first, stop, carry = part
        return jax.lax.fori_loop(first, stop, lambda i, x: one_step(x, i)[0], carry)
    carry = (params, step.init(params), start.started(batch_key))
    if part is not None:
        return carry
    params, state, _ = jax.lax.scan(one_step, carry, jnp.arange(start.num_steps))[0]
    # The batches' state is not returned, so the compiler can remove unused keys.
    return params, state, None


def _saved(execution, step, traced, arguments, devices):
    """Returns the last params and optax state of a run that a checkpoint saves."""
    # It saves the carry of `_run` after each part, and resumes from a saved carry.
    # `traced` has params, data and key; `arguments` also the fields of step; `devices`
    # are the devices of all processes, () for one process.
    checkpoint, callback = execution.checkpoint, execution.callback
    num_steps = step.batches.start.num_steps
    rule = "None under jit, vmap and grad, where nothing can be saved"
    _validate.require(_is_concrete(arguments), "checkpoint", checkpoint, rule)
    # The host calls the callback: inside the program, it would change the run's
    # identity, and differently for every process.
    compiled = replace(execution, callback=None, checkpoint=None)
    intervals = [checkpoint.every] + [execution.callback_every] * (callback is not None)

    def run_part(start, stop, carry):
        # All parts are one release and use the same keys, which JAX's check of key
        # reuse would refuse without a clone.
        again = jax.tree.map(
            lambda x: jax.random.clone(x) if is_key(x) else x, (step, traced)
        )
        return _run(compiled, again[0], part=(start, stop, carry), **again[1])

    carry = run_part(0, 0, None)
    program = _run.lower(compiled, step, part=(0, 0, carry), **traced)
    # The program runs any part of the steps, so the text adds their number.
    text = f"{program.as_text()}\n{num_steps} steps of {step.batches.start.batching!r}"
    run_identity = _checkpoint.identity(text, arguments, devices)
    with _checkpoint.opened(checkpoint, run_identity, devices) as store:
        store.claim()  # from now on no other run may use the folder
        done, carry = _checkpoint.latest(store, carry)
        while True:
            cuts = [done - done % every + every for every in intervals]
            stop = min(num_steps, *cuts)
            carry = run_part(done, stop, carry)
            is_last = stop == num_steps
            # The callback comes before the save: after a kill it may be called twice
            # for a step, but no step is left out.
            is_due = callback and (is_last or stop % execution.callback_every == 0)
            if callback and is_due and is_first_process(devices):
                callback(stop, carry[0])
            if stop > done and (is_last or stop % checkpoint.every == 0):
                _checkpoint.save(store, stop, carry)
            if is_last:
                return carry[:2]
            done = stop


def _is_concrete(tree: PyTree) -> bool:
    return all(map(_validate.is_concrete, jax.tree.leaves(tree)))
