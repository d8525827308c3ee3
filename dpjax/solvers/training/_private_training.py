"""Private training of any model, step by step: one object for the whole mechanism."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._sharding import AxisName, row_axes
from dpjax._tree import arrays, num_coordinates
from dpjax._types import REPLACE_ONE, Key, LossFn, NeighboringRelation, PyTree
from dpjax.batching import BallsInBins, Batching, Full, Poisson
from dpjax.batching._batching import BatchState
from dpjax.estimators import AdaptiveThreshold, Estimator, Mean, Scaled
from dpjax.gradients import robust_grad
from dpjax.gradients._loss import trainable
from dpjax.mechanisms import Strategy
from dpjax.solvers.training import _training_recipe as recipe
from dpjax.solvers.training._calibration import calibrated_noise, check_budget
from dpjax.solvers.training._checkpoint import is_key
from dpjax.solvers.training._loop import Batches, check_steps, unkeyed
from dpjax.solvers.training._private_step import PrivateStep, measured, observed


class TrainingState(NamedTuple):
    """State of a training run. Params are released; keep the rest as secret as keys.

    Attributes:
        params: the model after the steps made so far.
        optimizer: states of the private mean, with the key of its noise, and of the
            optimizer.
        batches: state of the batches.
        monitor: state of the private mean loss; None without.
    """

    params: PyTree
    optimizer: PyTree
    batches: BatchState
    monitor: PyTree
    __repr__ = secret_repr


class PrivateTraining:
    """A private training run: its noise, batches and steps from one budget.

    Each step draws a batch, computes the robust mean of per-example gradients, adds
    noise, and passes the private mean to the optimizer. The noise is calibrated once,
    for num_steps steps; a step after them changes nothing. By default there are no
    hyperparameters: gradients are clipped at a private quantile of their norms, Poisson
    batches have n / 16 records, and 200 steps have rates that follow from the norm of
    the noise.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        optimizer: an optax transformation of the private mean gradient, such as
            `optax.adam(1e-3)`; post-processing, which costs nothing. By default the
            rate rises and then falls to zero; in units of the clip norm it is at most
            1.3 / (0.1 + nu), with nu the norm of the noise in these units.
        num_samples: public number of rows of the data: records, or users if the data
            are from `dpjax.gradients.by_user`.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, as for `transforms.privatize`. By default `Clipping`
            within `AdaptiveThreshold`: from 0.03 the clip norm follows the quantile
            1 - nu of the norms, clipped to [0.5, 0.95].
        batching: how batches are drawn; Poisson batches of n / 16 rows by default.
        num_steps: T; by default 200, or that of the strategy of `noise`.
        noise: a strategy of correlated noise, such as `mechanisms.BandedToeplitz`; it
            needs an estimator. Batches are then `CyclicPoisson` by default, in as many
            groups as the strategy has bands.
        monitor: the share of the budget, in (0, 1), for a private mean loss in every
            step; by default there is none. The noise of gradients becomes 1 / sqrt(1 -
            monitor) times as large.
        has_aux: whether loss_fn returns auxiliary values. No step returns them, because
            they are exact functions of single records.
        microbatch_size: how many per-example gradients are computed at once; this
            changes speed and memory only.
        relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE with `Full`, `Poisson` or
            `BallsInBins` batches, for the noise that others calibrate to a record that
            is added or removed. Because num_samples is public, what is then proved, and
            what privacy states, is REPLACE_SPECIAL: any one row may be blanked, that is
            count as padding wherever it is drawn. How many rows there are is not
            hidden.

    Attributes:
        privacy: the `PrivacyGuarantee` of the whole run, known before it begins.
        noise_multiplier: stddev / l2 sensitivity of everything that one step releases;
            with correlated noise that of the independent noise.
        batching: as given, or the default.
        num_steps: as given, or the default.

    Raises:
        ValueError: If an argument is out of its range, or parts are incompatible;
            before any data are used.

    Privacy:
        The parameters and metrics of all steps together are (epsilon, delta)-DP under
        `privacy.relation`, for every input: each step is a Gaussian mechanism on a mean
        of known sensitivity, and `accounting.noise_multiplier` composes T of them, with
        the sampling of the batching. With `TrimmedMean` a step is zCDP
        (`transforms.privatize`). The mean loss is one more coordinate of the same
        mechanism: z^-2 = z_gradient^-2 + z_loss^-2, z the noise multipliers. loss_fn,
        optimizer and the first params must not depend on the data.

        Params and metrics are released; the state is secret, because it holds keys. A
        run that is restored from an older state repeats its steps with the same noise,
        which is private only if data, program and kind of machine are the same.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> features = jax.random.normal(jax.random.key(0), (20_000, 2))
        >>> data = features, features @ jnp.array([1.0, 2.0])
        >>> def loss_fn(params, example):
        ...     x, y = example
        ...     return (x @ params - y) ** 2
        >>> run = PrivateTraining(loss_fn, num_samples=20_000, epsilon=1.0, delta=1e-6)
        >>> state = run.init(jnp.zeros(2), jax.random.key(1))
        >>> for _ in range(run.num_steps):
        ...     state, metrics = run.step(state, data)
        >>> print(state.params.round(1), metrics["step"])
        [1. 2.] 200
        >>> print(run.privacy)
        Replacing any one of the 20,000 rows of data changes the probability of any
        event to at most e^1 = 2.72 times what it was, plus 1e-06.

    Reference:
        Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang (2016), "Deep learning
        with differential privacy"; Andrew, Thakkar, McMahan, Ramaswamy (2021),
        "Differentially private learning with adaptive clipping". The defaults were
        found by the trials of benchmarks/DEEP.md.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation | None = None,
        *,
        num_samples: int,
        epsilon: float,
        delta: float,
        estimator: Estimator | AdaptiveThreshold | Scaled | None = None,
        batching: Batching | None = None,
        num_steps: int | None = None,
        noise: Strategy | None = None,
        monitor: float | None = None,
        has_aux: bool = False,
        microbatch_size: int | None = None,
        relation: NeighboringRelation = REPLACE_ONE,
    ):
        _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
        _validate.count(num_samples=num_samples)
        check_budget(epsilon, delta)
        is_fine = noise is None or isinstance(noise, Strategy)
        _validate.require(is_fine, "noise", noise, "a strategy of dpjax.mechanisms")
        rule = "given with noise: clip norms that adapt need independent noise"
        is_fine = noise is None or estimator is not None
        _validate.require(is_fine, "estimator", estimator, rule)
        if monitor is not None:
            _validate.probability(monitor=monitor)
            rule = (
                "None with noise: the bound of the losses adapts, which needs "
                "independent noise"
            )
            _validate.require(noise is None, "monitor", monitor, rule)
        if num_steps is None:
            num_steps = recipe.NUM_STEPS if noise is None else noise.num_steps
        if batching is None:
            batching = recipe.default_batching(num_samples, noise)
        check_steps(num_samples, num_steps, batching)
        rule = f"REPLACE_ONE with {batching}: its batches depend on the number of rows"
        is_fine = relation is REPLACE_ONE or isinstance(
            batching, Full | Poisson | BallsInBins
        )
        _validate.require(is_fine, "relation", relation, rule)
        if microbatch_size is not None:
            _validate.count(microbatch_size=microbatch_size)
        noisy = measured(recipe.loss_clipping() if estimator is None else estimator)
        _validate.estimator(noisy)
        rule = f"given with {estimator}: no bound on one gradient tells the rate"
        is_fine = optimizer is not None or (
            noisy.noise == "gaussian" and not isinstance(estimator, Scaled)
        )
        _validate.require(is_fine, "optimizer", optimizer, rule)
        self.noise_multiplier, self.privacy = calibrated_noise(
            noisy,
            batching,
            num_samples=num_samples,
            num_steps=num_steps,
            epsilon=epsilon,
            delta=delta,
            unit="row of data",
            relation=relation,
            strategy=noise,
        )
        self.batching, self.num_steps = batching, num_steps
        self._estimator, self._optimizer, self._monitor = estimator, optimizer, monitor
        self._seen = ["gradient_norm"] + ["noise_norm"] * (noisy.noise == "gaussian")
        if monitor is not None:
            self._seen += ["loss", "loss_bound", "loss_stddev"]
        start = unkeyed(batching, num_samples, num_steps, epsilon, delta)
        self._base = PrivateStep(
            loss_fn=(lambda *args: loss_fn(*args)[0]) if has_aux else loss_fn,
            batches=Batches(start, microbatch_size, None),
            estimator=recipe.adaptive_clipping(0.5) if estimator is None else estimator,
            noise_multiplier=self.noise_multiplier / math.sqrt(1 - (monitor or 0.0)),
            optimizer_fn=lambda _: optax.identity() if optimizer is None else optimizer,
            relation=relation,
            strategy=noise,
            key=jax.random.key(0),  # `init` has another, and puts it into the state
        )
        self._base.optimizer(())  # refuses what does not fit
        self._jitted = jax.jit(self._step, static_argnums=2)

    def init(self, params: PyTree, key: Key) -> TrainingState:
        """Returns the state before the first step.

        Args:
            params: where to start; public, and copied: the state may be donated.
            key: a typed key, used for this run only. Anyone who knows it can subtract
                the noise.

        Raises:
            ValueError: If key is not a typed key, or params are not float arrays.
        """
        _validate.typed_key(key)
        trainable(params)
        params = jax.tree.map(jnp.asarray, params)
        noise_key, batch_key, monitor_key = jax.random.split(key, 3)
        step = self._gradient_step(params)
        monitor = None
        if self._monitor is not None:
            loss_mean = self._loss_mean(replace(step, key=monitor_key))
            monitor = loss_mean.init(jnp.ones(()))
        optimizer = replace(step, key=noise_key).init(params)
        batches = self._base.batches.start.started(batch_key)
        state = TrainingState(params, optimizer, batches, monitor)
        # Arrays of its own, so that to donate it deletes no others, and none twice.
        return jax.tree.map(lambda x: x if is_key(x) else jnp.copy(x), state)

    def step(
        self, state: TrainingState, data: PyTree, *, axis_name: AxisName | None = None
    ) -> tuple[TrainingState, dict[str, jax.Array]]:
        """Returns the state after one more step, and public numbers about the step.

        A pure function, compiled at its first call; it may be part of `jax.jit` (with
        the state donated), `lax.scan`, `vmap` over states, and `shard_map`.

        Args:
            state: from `init`, or the last step; used once.
            data: pytree, leaves of shape (num_samples, ...); the same in all steps.
            axis_name: the mesh axes over which data are sharded, if the arrays do not
                show it; see `dpjax.robust_grad`.

        Returns:
            The state, unchanged after num_steps steps; and a dict of scalars that may
            be published. If no step is made, all but `step` are 0:

            * step: how many steps were made.
            * gradient_norm: l2 norm of the private mean gradient, noise included.
            * noise_norm: sqrt(d) times the standard deviation of its noise in each of d
              coordinates, the norm of the noise alone; for correlated noise that of
              independent noise with the same effect on the sum of all steps. Not with
              `TrimmedMean`, whose noise depends on the data.
            * loss, loss_bound, loss_stddev, with a monitor: the private mean loss of
              the batch before the step; the bound at which losses were clipped, which
              follows the 0.9 quantile of the losses from 0.03 on, so that the first
              means, and those of losses with a long tail, are too small; and the
              standard deviation of the noise of the mean.

        Raises:
            ValueError: If the leading size of the data is not num_samples.
        """
        data = arrays(data)
        return self._jitted(state, data, row_axes(data, axis_name) or axis_name)

    def _step(self, state, data, axis_name):
        def make(state):
            batch, is_padding_example, batches = self.batching.draw_within(
                state.batches, data, axis_name=axis_name
            )
            step = self._gradient_step(state.params, axis_name)
            monitor, seen = state.monitor, {}
            if self._monitor is not None:
                monitor, seen = self._monitored(step, state, batch, is_padding_example)
            params, optimizer = step(
                state.params, state.optimizer, batch, is_padding_example
            )
            seen = optimizer[1]._asdict() | seen
            seen = {name: seen[name] for name in self._seen}
            return TrainingState(params, optimizer, batches, monitor), seen

        def keep(state):
            return state, {name: jnp.zeros((), jnp.float32) for name in self._seen}

        is_over = state.batches.step >= self.num_steps
        state, seen = jax.lax.cond(is_over, keep, make, state)
        return state, {"step": state.batches.step, **seen}

    def relative_noise(self, num_params: int) -> float:
        """Returns the norm of one step's noise over the largest norm of one gradient.

        A public number, from the budget, the batches and the size of the model. Above 1
        a step is mostly noise.

        Args:
            num_params: how many parameters are trained.
        """
        _validate.count(num_params=num_params)
        return float(self._base.relative_norm(num_params))

    def _gradient_step(
        self, params: PyTree, axis_name: AxisName | None = None
    ) -> PrivateStep:
        """Returns the step from such parameters, with a state that can be observed."""
        batches = self._base.batches._replace(axis_name=axis_name)
        step, size = replace(self._base, batches=batches), num_coordinates(params)
        if self._estimator is None:
            # The norm of the noise does not depend on the quantile of the base.
            clipping = recipe.adaptive_clipping(step.relative_norm(size))
            step = replace(step, estimator=clipping)
        optimizer = self._optimizer
        if optimizer is None:
            optimizer = recipe.descend(self.num_steps, step.relative_norm(size))
        stddev = None if step.strategy is None else step.stddev(size)
        return replace(step, optimizer_fn=lambda _: observed(optimizer, stddev))

    def _loss_mean(self, step: PrivateStep) -> Any:
        """Returns the private mean of losses, for the batches of a step."""
        multiplier = self.noise_multiplier / math.sqrt(self._monitor or 0.0)
        return step.mean(recipe.loss_clipping(), multiplier, relation=step.relation)

    def _monitored(self, step, state, batch, is_padding_example):
        """Returns the next state of the monitor, and the private mean loss."""
        # The losses of a batch are read as its gradients are; the gradients are unused.
        values_fn = robust_grad(
            step.loss_fn,
            Mean(),
            microbatch_size=step.batches.microbatch_size,
            return_values=True,
            axis_name=step.batches.axis_name,
        )
        _, losses = values_fn(state.params, batch, is_padding_example)
        mean, monitor, stddev = self._loss_mean(step).release(
            losses, state.monitor, is_padding_example=is_padding_example
        )
        bound = state.monitor.thresholds[0]
        seen = {"loss": mean, "loss_bound": bound, "loss_stddev": stddev}
        return monitor, {x: jnp.asarray(y, jnp.float32) for x, y in seen.items()}
