"""Runs of the private method and of its baselines."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NoOpDpEvent

from dpjax import losses
from dpjax._types import ArrayLike, Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.cli._methods import GRADIENT_DESCENT, Method
from dpjax.cli._options import Generator
from dpjax.cli._plan import Plan
from dpjax.cli._run_folder import RunFolder
from dpjax.cli._terminal import OnStep
from dpjax.cli._units import Units, privacy_of_units
from dpjax.datasets import Dataset
from dpjax.estimators import Clipping, Estimator, Mean
from dpjax.mechanisms import secret_key
from dpjax.mechanisms._shared import key_of_words
from dpjax.solvers import (
    Checkpoint,
    Curves,
    Execution,
    Solution,
    dp_gradient_descent,
    robust_gradient_descent,
)

ZERO = "zero weights"
_NUM_SHOWN = 60  # iterates that are watched, at most twice as many


@dataclass(frozen=True, eq=False)
class Run:
    """The result of one method.

    Attributes:
        method: name of the method.
        solution: its parameters, their guarantee, and public numbers.
        steps: steps of the iterates, shape (k,), in order; only 0 for a method without
            steps.
        iterates: parameters after those steps, shape (k, d), or `Curves` with such an
            axis. The guarantee of the solution covers them.
    """

    method: str
    solution: Solution
    steps: np.ndarray
    iterates: PyTree

    def for_units(self, units: Units | None) -> "Run":
        """Returns the run with its guarantee for units, if there are units."""
        return self.stated(lambda privacy: privacy_of_units(privacy, units))

    def stated(self, by: Callable[[PrivacyGuarantee], PrivacyGuarantee]) -> "Run":
        """Returns the run with another statement of its guarantee."""
        privacy = by(self.solution.privacy)
        solution = dataclasses.replace(self.solution, privacy=privacy)
        return dataclasses.replace(self, solution=solution)

    @property
    def is_private(self) -> bool:
        """Whether the method protects the records."""
        return self.solution.privacy.epsilon < np.inf


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the iterates of a run on the test records, without any privacy.

    Attributes:
        risks: mean loss without the penalty, shape (k,).
        scores: accuracy for classification, else mean absolute error, shape (k,).
    """

    risks: np.ndarray
    scores: np.ndarray


def system_key(generator: Generator) -> Key:
    """Returns a key from the operating system: of 64 bits, or of 256 with ChaCha20.

    Somebody who can guess the key can subtract the noise: a small seed such as
    `jax.random.key(0)` is for public data only.
    """
    if generator == "chacha20":
        return secret_key()
    return key_of_words(np.frombuffer(os.urandom(8), np.uint32))


def train_private(
    plan: Plan,
    data: Dataset,
    *,
    key: Key,
    on_step: OnStep,
    run_folder: RunFolder | None = None,
) -> Run:
    """Runs the planned private method on the training records.

    With a run_folder, states are saved there, and the run resumes from them.
    """
    arguments = arguments_of(plan) | {"key": key}
    name = name_of(plan)
    return _run(name, plan.method, arguments, plan, data, on_step, run_folder)


def name_of(plan: Plan) -> str:
    """Returns the name of the planned private run."""
    estimator = plan.arguments.get("estimator")
    title = "DP additive model" if plan.arguments.get("smooth") else plan.method.title
    return f"{title}, {_spoken(estimator)}" if estimator else title


def arguments_of(plan: Plan) -> dict[str, Any]:
    """Returns the keyword arguments of a plan's solver, without the key."""
    arguments = {"epsilon": plan.facts.epsilon, **plan.arguments}
    if plan.method.has_delta:
        arguments["delta"] = plan.facts.delta
    return arguments


def training_privacy(plan: Plan, data: Dataset) -> PrivacyGuarantee:
    """Returns the guarantee that `train_private` will state, from shapes alone."""
    rows = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.asarray(x[:1]).dtype),
        rows_of(plan.method, data),
    )

    def solution(rows):
        problem = problem_of(plan.method, plan, rows)
        arguments = arguments_of(plan) | {"key": jax.random.key(0)}
        return plan.method.solver(*problem, **arguments)

    return jax.eval_shape(solution, rows).privacy


def train_baselines(
    plan: Plan, data: Dataset, *, key: Key, on_step: OnStep
) -> list[Run]:
    """Runs the baselines of the private method.

    They are zero weights, which use no records; gradient descent and robust gradient
    descent without privacy; and DP-GD with clipping to norm 1 under the same guarantee,
    unless that is the method itself. If the method is gradient descent, the baselines
    use its steps and step size; if not, DP-GD with smoothed truncation (001, algorithm
    4) and default options is one more baseline. The step size of the two without
    privacy is small enough that they converge.
    """
    descent = plan.descent
    without_noise = dataclasses.replace(
        GRADIENT_DESCENT, solver=robust_gradient_descent
    )
    is_itself = plan.method.solver is dp_gradient_descent
    rate = min(descent.learning_rate, _stable_rate(plan, data))
    steps = {"learning_rate": rate, "num_steps": descent.num_steps}
    runs = [_zero(data)]
    for name, estimator in (
        ("GD", Mean()),
        (f"RGD, {_spoken(descent.robust_baseline)}", descent.robust_baseline),
    ):
        arguments = steps | {"estimator": estimator}
        runs.append(_run(name, without_noise, arguments, plan, data, on_step))
    rivals: list[Estimator] = [Clipping(1.0)]
    if not is_itself:
        rivals.append(descent.estimator)
    elif _spoken(descent.estimator) == "clipping":
        rivals = []
    for rival, rival_key in zip(rivals, jax.random.split(key), strict=False):
        arguments = descent.arguments() | {"estimator": rival, "key": rival_key}
        arguments["delta"] = plan.facts.gaussian_delta
        name = f"DP-GD, {_spoken(rival)}"
        runs.append(_run(name, GRADIENT_DESCENT, arguments, plan, data, on_step))
    return runs


def _stable_rate(plan: Plan, data: Dataset) -> float:
    """Returns the inverse smoothness of the risk, without any privacy."""
    features = data.features.astype(np.float64)
    largest = np.linalg.eigvalsh(features.T @ features / len(features))[-1]
    return float(1 / max(largest * plan.facts.smoothness, 1e-12))


def _zero(data: Dataset) -> Run:
    params = jnp.zeros(data.features.shape[1])
    nothing = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
    return Run(ZERO, Solution(params, nothing, {}), np.zeros(1), np.array([params]))


def score_run(plan: Plan, data: Dataset, run: Run) -> Scores:
    """Scores the iterates of a run on the test records."""
    iterates = jax.tree.map(jnp.asarray, run.iterates)
    static = plan.loss_fn, data.task
    risks, scores = _measure(static, iterates, jax.tree.map(jnp.asarray, data.test))
    return Scores(np.asarray(risks), np.asarray(scores))


def _run(
    name: str,
    method: Method,
    arguments: Mapping[str, Any],
    plan: Plan,
    data: Dataset,
    on_step: OnStep,
    run_folder: RunFolder | None = None,
) -> Run:
    # As arrays of NumPy: a copy for the device is the solver's, which can free it.
    problem = problem_of(method, plan, rows_of(method, data))
    total = arguments.get("num_steps")
    every = max(1, (total or 0) // _NUM_SHOWN)
    seen = []
    if run_folder is not None:
        seen = list(run_folder.iterates().items())

    def watch(step, params):
        # Calls may come out of order, and must not wait for the device.
        seen.append((step, params))
        done = len(seen) * every
        on_step(name, done if total is None else min(done, total), total)
        # With a folder the calls come one by one, from the host.
        if run_folder is not None and not method.has_own_coordinates:
            run_folder.keep_iterates({i: np.asarray(w) for i, w in seen})

    on_step(name, 0, total)
    if method.has_steps:
        execution = Execution(
            callback=watch,
            callback_every=every,
            checkpoint=Checkpoint(run_folder.states, 10 * every)
            if run_folder
            else None,
        )
        arguments = {**arguments, "execution": execution}
    solution = method.solver(*problem, **arguments)
    jax.block_until_ready(solution.params)
    jax.effects_barrier()  # every call of watch has returned
    if not method.has_steps or method.has_own_coordinates:
        seen = [(0, solution.params)]
    # A resumed run may show a step again, with the same iterate.
    iterates = {int(step): params for step, params in seen}
    steps = sorted(iterates)
    last = steps[-1] or int(solution.stats.get("num_steps", 1))
    on_step(name, last, last)
    shown = [iterates[step] for step in steps]
    return Run(name, solution, np.array(steps), stacked(shown))


def stacked(iterates: Sequence[PyTree]) -> PyTree:
    """Stacks parameters of one kind along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *iterates)


def predictions_of(params: PyTree, features: ArrayLike) -> jax.Array:
    """Returns the scores of a linear or an additive model, shape (n,)."""
    if isinstance(params, Curves):
        return params.predict(features)
    return jnp.asarray(features) @ params


def rows_of(method: Method, data: Dataset) -> tuple[np.ndarray | None, ...]:
    """Returns the training features and targets, and for some methods more.

    That is weights and exposures, None if there are none.
    """
    return (*data.train, data.weights, data.exposures)[: 4 if method.has_weights else 2]


def problem_of(method: Method, plan: Plan, rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the positional arguments of a method's solver, from `rows_of`."""
    if method.has_own_loss:
        return rows
    features, targets = rows
    loss_fn = losses.regularized(plan.loss_fn, plan.l2) if plan.l2 else plan.loss_fn
    start = jnp.zeros(features.shape[1], features.dtype)
    return loss_fn, start, (features, targets)


@partial(jax.jit, static_argnums=0)
def _measure(static, iterates, test):
    loss_fn, task = static
    features, targets = test

    def measure(params):
        predictions = predictions_of(params, features)
        risk = jnp.mean(loss_fn.value(predictions, targets))
        if task == "classification":
            return risk, jnp.mean((predictions > 0) == (targets > 0))
        return risk, jnp.mean(jnp.abs(loss_fn.mean_of(predictions) - targets))

    return jax.lax.map(measure, iterates)


def _spoken(estimator: Estimator) -> str:
    """Returns "smoothed truncation" for a SmoothedTruncation."""
    name = type(estimator).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
