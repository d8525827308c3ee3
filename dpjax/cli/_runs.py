"""The run: the private method, and what it is compared with on public data."""

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
    """What one method gave.

    Attributes:
        method: its name.
        solution: its parameters, their guarantee, and public numbers.
        steps: the steps of the iterates, shape (k,), ending with the last; 0 alone
            where a method has no steps.
        iterates: parameters after those steps, shape (k, d), or `Curves` with such an
            axis. They are covered by the guarantee of the solution.
    """

    method: str
    solution: Solution
    steps: np.ndarray
    iterates: PyTree

    def for_units(self, units: Units | None) -> "Run":
        """Returns the run with its guarantee for units, if records are theirs."""
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
    """How the iterates of a run do on the test records; protected by nothing.

    Attributes:
        risks: mean loss without the penalty, shape (k,).
        scores: accuracy for classification, else mean absolute error, shape (k,).
    """

    risks: np.ndarray
    scores: np.ndarray


def system_key(generator: Generator) -> Key:
    """Returns a key from the operating system: of 64 bits, or of 256 with ChaCha20.

    The noise protects nobody from a person who can guess the key: a small seed such as
    `jax.random.key(0)` is for public data alone.
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

    Where there is a run_folder, states are saved there, and the run resumes from them.
    """
    arguments = arguments_of(plan) | {"key": key}
    name = name_of(plan)
    return _run(name, plan.method, arguments, plan, data, on_step, run_folder)


def name_of(plan: Plan) -> str:
    """Returns what the planned private run is called."""
    estimator = plan.arguments.get("estimator")
    title = "DP additive model" if plan.arguments.get("smooth") else plan.method.title
    return f"{title}, {_spoken(estimator)}" if estimator else title


def arguments_of(plan: Plan) -> dict[str, Any]:
    """Returns what the solver of a plan takes by name, but for the key."""
    arguments = {"epsilon": plan.facts.epsilon, **plan.arguments}
    if plan.method.has_delta:
        arguments["delta"] = plan.facts.delta
    return arguments


def training_privacy(plan: Plan, data: Dataset) -> PrivacyGuarantee:
    """Returns the guarantee that `train_private` will state: of shapes alone."""
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
    """Runs what the private method is compared with.

    Weights of zero, which need no records; gradient descent and robust gradient descent
    on all records, which protect nobody; and, asked for the same guarantee, DP-GD by
    clipping to norm 1, unless that is the method itself. Where the method is gradient
    descent, they take its steps and step size; else DP-GD by smoothed truncation (001,
    algorithm 4) at its defaults comes beside them. The two without privacy take no step
    size at which they might diverge, which tells nothing.
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
    """Returns the inverse smoothness of the risk: nothing protects it."""
    features = data.features.astype(np.float64)
    largest = np.linalg.eigvalsh(features.T @ features / len(features))[-1]
    return float(1 / max(largest * plan.facts.smoothness, 1e-12))


def _zero(data: Dataset) -> Run:
    params = jnp.zeros(data.features.shape[1])
    nothing = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
    return Run(ZERO, Solution(params, nothing, {}), np.zeros(1), np.array([params]))


def score_run(plan: Plan, data: Dataset, run: Run) -> Scores:
    """Measures the iterates of a run on the test records."""
    iterates = jax.tree.map(jnp.asarray, run.iterates)
    static = plan.loss_fn, data.task
    risks, scores = _measure(static, iterates, on_device(data.test))
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
    rows = jax.tree.map(jnp.asarray, rows_of(method, data))
    problem = problem_of(method, plan, rows)
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
    # A step is seen again where the run resumed before it: the same iterate.
    iterates = {int(step): params for step, params in seen}
    steps = sorted(iterates)
    last = steps[-1] or int(solution.stats.get("num_steps", 1))
    on_step(name, last, last)
    shown = [iterates[step] for step in steps]
    return Run(name, solution, np.array(steps), stacked(shown))


def stacked(iterates: Sequence[PyTree]) -> PyTree:
    """Returns parameters of one kind, with an axis for which they are."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *iterates)


def predictions_of(params: PyTree, features: ArrayLike) -> jax.Array:
    """Returns the scores of a linear or an additive model, shape (n,)."""
    if isinstance(params, Curves):
        return params.predict(features)
    return jnp.asarray(features) @ params


def rows_of(method: Method, data: Dataset) -> tuple[np.ndarray | None, ...]:
    """Returns what a method reads of the training records: features, targets and more.

    More are weights and exposures, None where there are none.
    """
    return (*data.train, data.weights, data.exposures)[: 4 if method.has_weights else 2]


def problem_of(method: Method, plan: Plan, rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what the solver of a method takes without a name, of `rows_of`."""
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


def on_device(pair: tuple[np.ndarray, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    """Returns features and targets as arrays of JAX."""
    return jnp.asarray(pair[0]), jnp.asarray(pair[1])


def _spoken(estimator: Estimator) -> str:
    """Returns "smoothed truncation" for a SmoothedTruncation."""
    name = type(estimator).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
