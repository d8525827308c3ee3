"""Runs of a plan: the private model, and what it is compared to on public records."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._types import ArrayLike, Key, PyTree
from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Dataset
from dpjax.mechanisms import secret_key
from dpjax.mechanisms._chacha import key_of_words
from dpjax.solvers import (
    Checkpoint,
    Curves,
    Execution,
    Solution,
    dp_additive_model,
    dp_linear_model,
)
from dpjax.tables.cli._options import Generator
from dpjax.tables.cli._plan import Budget, Plan
from dpjax.tables.cli._run_folder import RunFolder
from dpjax.tables.cli._terminal import OnStep
from dpjax.tables.cli._units import Units, privacy_of_units

# Solvers take no infinite epsilon; at this one all noise is below every other error,
# that of releases with a thousandth of the budget too.
NO_PRIVACY = 1e12


@dataclass(frozen=True, eq=False)
class Run:
    """The result of one method.

    Attributes:
        method: name of the method.
        solution: its parameters, their guarantee, and public numbers.
    """

    method: str
    solution: Solution

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
        """Tells whether the method protects the records."""
        return self.solution.privacy.epsilon < np.inf


@dataclass(frozen=True)
class Scores:
    """Scores on the test records, without any privacy.

    Attributes:
        risk: mean loss.
        score: accuracy for classification, else mean absolute error.
    """

    risk: float
    score: float


def system_key(generator: Generator) -> Key:
    """Returns a key from the operating system: of 64 bits, or of 256 with ChaCha20.

    Somebody who can guess the key can subtract the noise: a small seed such as
    `jax.random.key(0)` is for public data only.
    """
    if generator == "chacha20":
        return secret_key()
    return key_of_words(np.frombuffer(os.urandom(8), np.uint32))


def fit(plan: Plan, rows: tuple[Any, ...], *, key: Key, **options: Any) -> Solution:
    """Fits a linear model, or an additive one if some features are `smooth`.

    The last feature is the constant 1. Weights and exposures are shares of their public
    maximum. A record without exposure has weight zero, because it was not observed.

    Args:
        plan: the run.
        rows: features, targets, weights and exposures, from `rows_of`.
        key: key of the noise.
        options: how the solver is run.
    """
    features, targets, weights, exposures = rows
    offsets = None
    if exposures is not None:
        is_seen = exposures > 0
        offsets = jnp.log(jnp.where(is_seen, exposures, 1.0))
        weights = jnp.where(is_seen, 1.0 if weights is None else weights, 0.0)
    is_additive = "smooth" in plan.arguments
    solution = (dp_additive_model if is_additive else dp_linear_model)(
        *(plan.loss_fn, (features, targets)),
        key=key,
        intercept=-1,
        offsets=offsets,
        weights=weights,
        **plan.budget._asdict(),
        **plan.arguments,
        **options,
    )
    if not is_additive:
        return solution
    curves = {
        "num_curves": len(plan.arguments["smooth"]),
        "num_knots": len(solution.params.knots),
    }
    return dataclasses.replace(solution, stats=solution.stats | curves)


def rows_of(data: Dataset) -> tuple[np.ndarray | None, ...]:
    """Returns the training features and targets, and weights and exposures or None."""
    return *data.train, data.weights, data.exposures


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
    name, num_shown = plan.method, 0

    def watch(step, params):
        # Calls may come out of order, and must not wait for the device.
        nonlocal num_shown
        num_shown += 1
        on_step(name, num_shown, None)

    on_step(name, 0, None)
    checkpoint = run_folder and Checkpoint(run_folder.states, 10)
    execution = Execution(callback=watch, checkpoint=checkpoint)
    # As arrays of NumPy: a copy for the device is the solver's, which can free it.
    solution = fit(plan, rows_of(data), key=key, execution=execution)
    jax.block_until_ready(solution.params)
    jax.effects_barrier()  # every call of watch has returned
    num_steps = int(solution.stats.get("num_steps", 1))
    on_step(name, num_steps, num_steps)
    return Run(name, solution)


def training_privacy(plan: Plan, data: Dataset) -> PrivacyGuarantee:
    """Returns the guarantee that `train_private` will state, from shapes alone."""
    rows = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.asarray(x[:1]).dtype), rows_of(data)
    )
    solution = jax.eval_shape(lambda rows: fit(plan, rows, key=jax.random.key(0)), rows)
    return solution.privacy


def train_baselines(
    plan: Plan, data: Dataset, *, key: Key, on_step: OnStep
) -> list[Run]:
    """Returns what the private model of public records is compared to.

    They are the best constant and the linear model, both without privacy, and with the
    guarantee of the private model the linear one, unless that is the model itself.
    """
    linear = dataclasses.replace(plan, arguments={})
    budget = Budget(NO_PRIVACY, plan.budget.delta)
    without = "linear model, not private"
    runs = []
    names = [(without, dataclasses.replace(linear, budget=budget))]
    if plan.arguments:
        names.append((linear.method, linear))
    for (name, loss), own in zip(names, jax.random.split(key), strict=False):
        on_step(name, 0, 1)
        solution = jax.block_until_ready(fit(loss, rows_of(data), key=own))
        on_step(name, 1, 1)
        runs.append(Run(name, solution))
    nothing = PrivacyGuarantee.non_private()
    exact = runs[0] = runs[0].stated(lambda _: nothing)
    level = exact.solution.stats.get("constant", 0.0)
    params = jnp.zeros_like(exact.solution.params).at[-1].set(level)
    return [Run("constant, not private", Solution(params, nothing, {})), *runs]


def score_run(plan: Plan, data: Dataset, run: Run) -> Scores:
    """Scores a run on the test records."""
    features, targets = map(jnp.asarray, data.test)
    predictions = predictions_of(run.solution.params, features)
    risk = jnp.mean(plan.loss_fn.value(predictions, targets))
    if data.task == "classification":
        score = jnp.mean((predictions > 0) == (targets > 0))
    else:
        score = jnp.mean(jnp.abs(plan.loss_fn.mean_of(predictions) - targets))
    return Scores(float(risk), float(score))


def predictions_of(params: PyTree, features: ArrayLike) -> jax.Array:
    """Returns the scores of a linear or an additive model, shape (n,)."""
    if isinstance(params, Curves):
        return params.predict(features)
    return jnp.asarray(features) @ params
