"""Private training of any model, step by step, in one object.

Its defaults follow from public numbers: n, the number of steps, the size of the model,
and the noise that the budget needs. benchmarks/DEEP.md describes the trials that found
their constants, as "PrivateTraining, nothing set".
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from dp_accounting import NoOpDpEvent

from dpjax import _validate
from dpjax._keys import secret_repr
from dpjax._rounding import claim, rounded_up
from dpjax._sharding import AxisName, row_axes
from dpjax._tree import arrays, like, num_coordinates
from dpjax._types import REPLACE_ONE, Key, LossFn, NeighboringRelation, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import BallsInBins, CyclicPoisson, Full, Poisson
from dpjax.batching._batching import Batching, BatchState
from dpjax.estimators import AdaptiveThreshold, Clipping, Estimator, Mean, Scaled
from dpjax.gradients import robust_grad
from dpjax.gradients._loss import trainable
from dpjax.mechanisms._strategy import Strategy
from dpjax.solvers.training._calibration import calibrated_noise, check_budget
from dpjax.solvers.training._checkpoint import is_key
from dpjax.solvers.training._loop import (
    Batches,
    Execution,
    PrivateStep,
    measured,
    observed,
)

_NUM_STEPS = 400
_BATCHES = 8  # expected batches in an epoch
_FIRST, _SPEED = 0.03, 0.3  # the first clip norm; how fast its logarithm moves
_LOWER, _UPPER = 1e-4, 1e4  # the range of clip norms
_CLIPPED = 50  # the quantile of norms is 1 / (1 + (_CLIPPED noise)^2) in the first step
_PATH, _LEAST_NOISE = 24, 0.001  # rates add up to _PATH / (_LEAST_NOISE + noise) / 2
_RISE, _MOMENTUM = 0.1, 0.9  # share of the steps in which the rate rises; of means
_LOSS_QUANTILE = 0.9  # share of the losses that the monitor does not clip


class TrainingState(NamedTuple):
    """State of a training run. Params are released; all other fields are secret.

    The other fields hold random keys: anyone who knows them can subtract the noise. A
    run that is restored from an older state repeats its steps with the same noise,
    which is private only if data, program and kind of machine are the same.

    Attributes:
        params: the model after the steps made so far.
        optimizer: states of the private mean (with its noise's key) and the optimizer.
        batches: state of the batches.
        monitor: state of the private mean loss; None without a monitor.
    """

    params: PyTree
    optimizer: PyTree
    batches: BatchState
    monitor: PyTree
    __repr__ = secret_repr


class PrivateTraining:
    """A private training run, with noise that is calibrated to one budget.

    Each step adds noise to the robust mean of a batch's per-example gradients, and
    passes the result to the optimizer. `recommend` describes the defaults.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, or `(scalar, aux)` with has_aux.
        optimizer: an optax transformation of the private mean gradient; it costs no
            privacy.
        num_samples: public number of rows: records, or users of `gradients.by_user`.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        estimator: the robust mean, as in `transforms.privatize`.
        batching: how batches are drawn; by default `Poisson`, n / 8 rows expected.
        num_steps: T; by default 400, or the number of steps of the `noise` strategy.
        noise: a strategy of correlated noise, such as `mechanisms.BandedToeplitz`. It
            needs an estimator; the default batching is then `CyclicPoisson`, with a
            cycle of as many steps as the strategy has bands.
        monitor: share of the budget, in (0, 1), for a private mean loss in every step.
            The noise of gradients becomes 1 / sqrt(1 - monitor) times as large.
        has_aux: whether loss_fn also returns auxiliary values, which are not released.
        microbatch_size: as in `Execution`.
        relation: REPLACE_ONE, or ADD_OR_REMOVE_ONE with `Full`, `Poisson` or
            `BallsInBins`. ADD_OR_REMOVE_ONE proves REPLACE_SPECIAL, as privacy states:
            any one row may be blanked, because num_samples is public.

    Attributes:
        privacy: the `PrivacyGuarantee` of the whole run, known before it begins.
        noise_multiplier: stddev / l2 sensitivity of everything that one step releases;
            with correlated noise, stddev is for the independent noise behind it.
        batching: as given, or the default.
        num_steps: as given, or the default.

    Raises:
        ValueError: If arguments are out of range or incompatible; no data are read.

    Privacy:
        The parameters and metrics of all steps together are (epsilon, delta)-DP under
        `privacy.relation`, for every input: each step is a Gaussian mechanism on a mean
        of known sensitivity, and `accounting.noise_multiplier` composes T of them, with
        the sampling of the batching. With `TrimmedMean` a step is zCDP
        (`transforms.privatize`). The mean loss is one more coordinate of the same
        mechanism: z^-2 = z_gradient^-2 + z_loss^-2, z the noise multipliers. loss_fn,
        optimizer and the first params must not depend on the data. A `TrainingState`
        is secret, except for its params.

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
        [1. 2.] 400
        >>> print(run.privacy)
        Replacing any one of the 20,000 rows of data changes the probability of any
        event to at most e^1 = 2.72 times what it was, plus 1e-06.

    Reference:
        Abadi et al. (2016), "Deep learning with differential privacy"; Andrew et al.
        (2021), "Differentially private learning with adaptive clipping".
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
        """Checks the class's arguments, and calibrates the noise; no data are read."""
        _validate.loss_fn(loss_fn)
        _validate.count(num_samples=num_samples)
        check_budget(epsilon, delta)
        if monitor is not None:
            _validate.probability(monitor=monitor)
        mean = _adaptive(0.5) if estimator is None else estimator
        noisy = measured(mean)
        _check_parts(noise, estimator, monitor, optimizer)
        batching, num_steps = _schedule(
            batching, num_steps, num_samples, noise, relation
        )
        data = jax.ShapeDtypeStruct((num_samples,), "float32")
        execution = Execution(microbatch_size=microbatch_size)
        budget = {"epsilon": epsilon, "delta": delta}
        batches = Batches.of(data, num_steps, batching, execution, **budget)
        self._calibrated = partial(
            calibrated_noise,
            noisy,
            batching,
            num_samples=num_samples,
            **budget,
            unit="row of data",
            relation=relation,
            strategy=noise,
        )
        self.noise_multiplier, self.privacy = self._calibrated(num_steps=num_steps)
        self.batching, self.num_steps = batching, num_steps
        self._estimator, self._optimizer, self._monitor = estimator, optimizer, monitor
        self._seen = ["gradient_norm"] + ["noise_norm"] * (noisy.noise == "gaussian")
        if monitor is not None:
            self._seen += ["loss", "loss_bound", "loss_stddev"]
        # The monitor's mean loss has the multiplier z / sqrt(monitor). Together with
        # the gradients' multiplier below, a step has z = noise_multiplier.
        self._base = PrivateStep(
            loss_fn=(lambda *args: loss_fn(*args)[0]) if has_aux else loss_fn,
            batches=batches,
            estimator=mean,
            noise_multiplier=self.noise_multiplier / math.sqrt(1 - (monitor or 0.0)),
            optimizer_fn=lambda _: optax.identity() if optimizer is None else optimizer,
            relation=relation,
            strategy=noise,
            key=jax.random.key(0),  # unused: `init` puts its own key into the state
        )
        self._base.optimizer(())  # raises if the parts do not fit each other
        self._jitted = jax.jit(self._step, static_argnums=2)

    def __repr__(self) -> str:
        cost = claim(self.privacy.epsilon, self.privacy.delta)
        return f"<PrivateTraining: {self.num_steps} steps, {self.batching}, {cost}>"

    def init(self, params: PyTree, key: Key) -> TrainingState:
        """Returns the state before the first step.

        Args:
            params: where to start; public. They are copied: the state may be donated.
            key: a typed key, for this run only: whoever has it can subtract the noise.

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
        # The state gets its own copies: donating it must not delete the caller's
        # arrays, nor one array twice.
        return jax.tree.map(lambda x: x if is_key(x) else jnp.copy(x), state)

    def step(
        self, state: TrainingState, data: PyTree, *, axis_name: AxisName | None = None
    ) -> tuple[TrainingState, dict[str, jax.Array]]:
        """Returns the state after one more step, and public numbers about the step.

        The method is pure, and compiled at its first call. It may be part of `jax.jit`
        (with the state donated), `lax.scan`, `vmap` over states, and `shard_map`.

        Args:
            state: from `init`, or from the last step; use each state once.
            data: pytree, leaves of shape (num_samples, ...); the same in all steps, but
                for keys of dropout, one a row and new in every step.
            axis_name: the mesh axes over which data are sharded, if the arrays do not
                show it; see `dpjax.robust_grad`.

        Returns:
            The state, which no longer changes after num_steps steps; and a dict of
            scalars that may be published. If no step is made, all but `step` are 0:

            * step: how many steps were made.
            * gradient_norm: l2 norm of the private mean gradient, noise included.
            * noise_norm: the norm of the noise alone, sqrt(d) times its standard
              deviation in each of d coordinates. If the noise is correlated, this is
              the norm of independent noise with the same effect on the sum of all
              steps. Not with `TrimmedMean`, whose noise depends on the data.
            * loss, with a monitor: the private mean loss of the batch before the step.
            * loss_bound, with a monitor: the bound at which losses were clipped. It
              starts at 0.03 and follows the 0.9 quantile of the losses, so loss is too
              small in the first steps, and if the losses have a long tail.
            * loss_stddev, with a monitor: the standard deviation of the noise in loss.

        Raises:
            ValueError: If the leading size of the data is not num_samples.
        """
        data = arrays(data)
        return self._jitted(state, data, row_axes(data, axis_name) or axis_name)

    def _step(self, state, data, axis_name):
        """Returns the next state, and public numbers by name: `step` compiles this."""

        def make(state):
            """Returns the state after a step on a batch, and public numbers by name."""
            drawn = self.batching.draw_within(state.batches, data, axis_name=axis_name)
            batch, is_padding_example, batches = drawn
            step = self._gradient_step(state.params, state.batches.step, axis_name)
            monitor, seen = state.monitor, {}
            if self._monitor is not None:
                monitor, seen = self._monitored(step, state, batch, is_padding_example)
            params, optimizer = step(
                state.params, state.optimizer, batch, is_padding_example
            )
            seen = optimizer[1]._asdict() | seen
            seen = {name: seen[name] for name in self._seen}
            return TrainingState(params, optimizer, batches, monitor), seen

        unseen = {name: jnp.zeros((), jnp.float32) for name in self._seen}
        is_over = state.batches.step >= self.num_steps
        state, seen = jax.lax.cond(is_over, lambda x: (x, unseen), make, state)
        return state, {"step": state.batches.step, **seen}

    def privacy_after(self, step: int) -> PrivacyGuarantee:
        """Returns the guarantee of the first steps of the run, before the later ones.

        It is for a run that stops early, and for a curve of epsilon: it grows with the
        step, and after the last step it is `privacy`.

        Args:
            step: the number of steps, from 0 to num_steps.

        Raises:
            ValueError: If step is no integer, or out of its range.

        Privacy:
            Parameters and metrics of these steps are together (epsilon, delta)-DP under
            `privacy.relation`, at the delta of the run; epsilon is an upper bound.
            Choose the step before the run, or by something that does not depend on the
            data. If you choose it by released numbers, such as metrics, the guarantee
            is `privacy`.

        Example:
            >>> run = PrivateTraining(
            ...     lambda *_: 0.0, num_samples=20_000, epsilon=1.0, delta=1e-6)
            >>> print([f"{run.privacy_after(t).epsilon:.2f}" for t in (0, 1, 100, 400)])
            ['0.00', '0.04', '0.48', '1.00']

        Reference:
            `docs/privacy/proofs/composition.md`, 3.11.
        """
        kind, most = getattr(step, "dtype", type(step)), self.num_steps
        is_integer = jnp.issubdtype(kind, jnp.integer) and jnp.ndim(step) == 0
        is_fine = is_integer and 0 <= step <= most
        _validate.require(is_fine, "step", step, f"an integer from 0 to {most}")
        if step == most:
            return self.privacy
        multiplier = self.noise_multiplier
        if step > 0:
            return self._calibrated(num_steps=int(step), multiplier=multiplier)[1]
        # No step reveals as much as a step with infinite noise.
        _, nothing = self._calibrated(num_steps=1, multiplier=math.inf)
        return replace(nothing, dp_event=NoOpDpEvent())

    def relative_noise(self, num_params: int) -> float:
        """Returns the norm of one step's noise over the largest norm of one gradient.

        The ratio is public: it depends on the budget, the batches and the size of the
        model. Above 1 a step is mostly noise.

        Args:
            num_params: how many parameters are trained.

        Raises:
            ValueError: If the noise depends on the data, as for a trimmed mean.
        """
        _validate.count(num_params=num_params)
        return float(self._base.relative_norm(num_params))

    def _gradient_step(
        self, params: PyTree, index: Scalar = 0, axis_name: AxisName | None = None
    ) -> PrivateStep:
        """Returns the noisy gradient step for params, with its defaults filled in."""
        # Defaults for estimator and optimizer depend on the size of params. The
        # optimizer's state is `Observed`, which has the norms that `step` shows.
        batches = self._base.batches._replace(axis_name=axis_name)
        step, size = replace(self._base, batches=batches), num_coordinates(params)
        if self._estimator is None:
            # The noise in units of the clip norm does not depend on the quantile, so
            # it can be computed before the quantile is chosen.
            steps, noise = self.num_steps, step.relative_norm(size)
            clipping = _adaptive(_quantile(steps, noise, index / steps))
            step = replace(step, estimator=clipping)
        optimizer = self._optimizer
        if optimizer is None:
            optimizer = _descend(self.num_steps, step.relative_norm(size))
        stddev = None if step.strategy is None else step.stddev(size)
        return replace(step, optimizer_fn=lambda _: observed(optimizer, stddev))

    def _loss_mean(self, step: PrivateStep) -> Any:
        """Returns the transformation of a batch's losses to their private mean."""
        multiplier = self.noise_multiplier / math.sqrt(self._monitor or 0.0)
        return step.mean(_adaptive(_LOSS_QUANTILE), multiplier, relation=step.relation)

    def _monitored(self, step, state, batch, is_padding_example):
        """Returns the loss monitor's next state, and its numbers by name for `step`."""
        # They are the batch's private mean loss, its clipping bound, and its stddev.
        # `robust_grad` reads the batch in microbatches; only its losses are used here.
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


def _check_parts(noise: Any, estimator: Any, monitor: Any, optimizer: Any) -> None:
    """Raises `ValueError` if arguments of `PrivateTraining` do not fit together."""
    if estimator is not None:
        _validate.estimator(measured(estimator))
    if noise is not None:
        rule = "a strategy of dpjax.mechanisms"
        _validate.require(isinstance(noise, Strategy), "noise", noise, rule)
        rule = "with correlated noise: bounds that adapt need independent noise"
        is_given = estimator is not None
        _validate.require(is_given, "estimator", estimator, f"given {rule}")
        _validate.require(monitor is None, "monitor", monitor, f"None {rule}")
    if optimizer is None and estimator is not None:
        is_gaussian = measured(estimator).noise == "gaussian"
        is_fine = is_gaussian and not isinstance(estimator, Scaled)
        rule = f"given with {estimator}, from which no default learning rate follows"
        _validate.require(is_fine, "optimizer", optimizer, rule)


def _schedule(
    batching: Batching | None,
    num_steps: int | None,
    num_samples: int,
    noise: Strategy | None,
    relation: NeighboringRelation,
) -> tuple[Batching, int]:
    """Returns a training run's batching and number of steps, with defaults for None."""
    # `PrivateTraining` states the defaults; `noise` is a strategy of correlated noise,
    # or None. It raises if the relation does not hold for the batching.
    if num_steps is None:
        num_steps = _NUM_STEPS if noise is None else noise.num_steps
    size = max(1, num_samples // _BATCHES)
    if batching is None and noise is not None:
        rule = f"given with {noise}, which has more than {_BATCHES} bands"
        _validate.require(noise.num_bands <= _BATCHES, "batching", None, rule)
        batching = CyclicPoisson(size, cycle_length=noise.num_bands)
    elif batching is None:
        batching = Poisson(size)
    if relation is not REPLACE_ONE:
        is_fine = isinstance(batching, Full | Poisson | BallsInBins)
        rule = f"REPLACE_ONE with {batching}: batches depend on the number of rows"
        _validate.require(is_fine, "relation", relation, rule)
    return batching, num_steps


def _quantile(num_steps: int, relative_norm: Scalar, elapsed: Scalar = 0.0) -> Scalar:
    """Returns the quantile of norms to follow when a share of the steps has elapsed."""
    # It rises to one as rates fall, because noise then matters less, and bias more.
    noise = relative_norm / math.sqrt(num_steps) * (1 - elapsed) ** 2
    return jnp.clip(1 / (1 + (_CLIPPED * noise) ** 2), 1e-6, 1 - 1e-6)


def _peak_rate(num_steps: int, relative_norm: Scalar) -> Scalar:
    """Returns the peak learning rate, for gradients in units of the clip norm."""
    return _PATH / (_LEAST_NOISE + relative_norm / math.sqrt(num_steps)) / num_steps


def _adaptive(quantile: Scalar) -> AdaptiveThreshold:
    """Returns clipping at a private quantile of the norms."""
    first, how = Clipping(_FIRST), {"quantile": quantile, "learning_rate": _SPEED}
    return AdaptiveThreshold(first, lower=_LOWER, upper=_UPPER, **how)


def _descend(
    num_steps: int, relative_norm: Scalar
) -> optax.GradientTransformationExtraArgs:
    """Returns the default optimizer: momentum, with a rate that rises and falls.

    The rate is for gradients in units of the clip norm, noise_norm / relative_norm, the
    norm of a step's noise, a keyword of `update`, and its ratio to the clip norm.
    """

    def update(updates, state, params=None, *, noise_norm: Any = None, **extra_args):
        del params, extra_args
        peak = jnp.asarray(_peak_rate(num_steps, relative_norm))
        now = like(state, peak)
        rise = jnp.minimum(1, (now + 1) / (_RISE * num_steps))
        clip_norm = like(noise_norm, peak) / relative_norm
        rate = -peak * rise * (1 - now / num_steps) / clip_norm
        return jax.tree.map(lambda x: like(rate, x) * x, updates), state + 1

    scaled = optax.GradientTransformationExtraArgs(
        lambda params: jnp.zeros((), jnp.int32), update
    )
    return optax.chain(scaled, optax.ema(_MOMENTUM, debias=False))


class Recommendation(NamedTuple):
    """The default settings of `PrivateTraining`; `print` shows a table.

    Attributes:
        batch_size: expected size of the Poisson batches, n / 8.
        num_steps: T, 400.
        noise_multiplier: standard deviation of the noise over the l2 sensitivity.
        relative_noise: nu, the norm of the noise in one step over the clip norm. Above
            1 a step is mostly noise: fewer parameters, or more records, will help.
        quantile: the first quantile of norms that the clip norm follows, from 0.03 on.
            With N = nu / sqrt(T), after a share s of the steps, the quantile is
            1 / (1 + (50 N (1 - s)^2)^2), which rises to 1.
        learning_rate: the peak rate, 24 / T / (0.001 + N), for gradients over the clip
            norm. It rises in a tenth of the steps and falls to zero; momentum is 0.9.
    """

    batch_size: int
    num_steps: int
    noise_multiplier: float
    relative_noise: float
    quantile: float
    learning_rate: float

    def __str__(self) -> str:
        width = max(map(len, self._fields))
        shown = (rounded_up(float(value), 4) for value in self)
        named = zip(self._fields, shown, strict=True)
        return "\n".join(f"{name:{width}}  {value}" for name, value in named)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{self}</pre>"


def recommend(
    num_samples: int, num_params: int, *, epsilon: float, delta: float
) -> Recommendation:
    """Returns the settings of a network's training, for public sizes and a budget.

    They are the defaults of `PrivateTraining`, for a loop of your own. No data are
    read, and no budget is spent.

    For a table, try `solvers.dp_linear_model` and `solvers.dp_additive_model` before a
    network: on Adult at epsilon 3 their log losses are .319 and .300, and a small
    network with these settings has .313. If features come from a frozen public network,
    train only the last layer, because fewer parameters have less noise; for a
    regression, `dp_linear_model` fits this layer.

    Args:
        num_samples: n, the public number of records, or of users.
        num_params: how many parameters are trained.
        epsilon: privacy of the whole run under replace-one, positive.
        delta: privacy of the whole run, in (0, 1).

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> print(recommend(30_000, 2_000, epsilon=3.0, delta=1e-6))
        batch_size        3750
        num_steps         400
        noise_multiplier  3.858
        relative_noise    0.09246
        quantile          0.9493
        learning_rate     10.68

    Reference:
        benchmarks/DEEP.md, "PrivateTraining, nothing set".
    """
    run = PrivateTraining(
        lambda *_: 0.0, num_samples=num_samples, epsilon=epsilon, delta=delta
    )
    noise = run.relative_noise(num_params)
    return Recommendation(
        round(run.batching.divisor(num_samples, run.num_steps)),
        run.num_steps,
        run.noise_multiplier,
        noise,
        float(_quantile(run.num_steps, noise)),
        float(_peak_rate(run.num_steps, noise)),
    )
