"""The run: the private method, and what it is compared with on public data."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import losses
from dpjax._types import Key
from dpjax.datasets import Dataset
from dpjax.estimators import Clipping, Estimator, Mean
from dpjax.experiments._plan import Plan
from dpjax.solvers import (
    Solution,
    Watch,
    dp_gradient_descent,
    robust_gradient_descent,
)

OnStep = Callable[[str, int], None]  # the method's name, and how many steps are done
_NUM_SHOWN = 60  # iterates that are watched, at most twice as many


@dataclass(frozen=True, eq=False)
class Run:
    """What one method gave.

    Attributes:
        method: its name.
        solution: its parameters, their guarantee, and public numbers.
        steps: the steps of the iterates, shape (k,), ending with the last.
        iterates: parameters after those steps, shape (k, d). They are covered by the
            guarantee of the solution.
    """

    method: str
    solution: Solution
    steps: np.ndarray
    iterates: np.ndarray

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


def system_key() -> Key:
    """Returns a key of 64 bits from the operating system, as many as the key holds.

    The noise protects nobody from a person who can guess the key: a small seed such as
    `jax.random.key(0)` is for public data alone.
    """
    words = np.frombuffer(os.urandom(8), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def train_private(plan: Plan, data: Dataset, *, key: Key, on_step: OnStep) -> Run:
    """Runs the planned private method on the training records."""
    solve = partial(
        dp_gradient_descent,
        key=key,
        epsilon=plan.epsilon,
        delta=plan.delta,
        estimator=plan.estimator,
        batching=plan.batching,
        calibration=plan.calibration,
    )
    return _run(f"DP-GD, {_spoken(plan.estimator)}", solve, plan, data, on_step)


def train_baselines(
    plan: Plan, data: Dataset, *, key: Key, on_step: OnStep
) -> list[Run]:
    """Runs what the private method is compared with, at its steps and step size.

    Gradient descent and robust gradient descent on all records, which protect nobody;
    and DP-GD by clipping to norm 1, which is asked for the same (epsilon, delta) in the
    same calibration, unless clipping is the method itself.
    """
    runs = [
        _run(
            name,
            partial(robust_gradient_descent, estimator=estimator),
            plan,
            data,
            on_step,
        )
        for name, estimator in (
            ("GD", Mean()),
            (f"RGD, {_spoken(plan.robust_baseline)}", plan.robust_baseline),
        )
    ]
    if not isinstance(plan.estimator, Clipping):
        clipped = partial(
            dp_gradient_descent,
            key=key,
            epsilon=plan.epsilon,
            delta=plan.delta,
            estimator=Clipping(1.0),
            batching=plan.batching,
            calibration=plan.calibration,
        )
        runs.append(_run("DP-GD, clipping", clipped, plan, data, on_step))
    return runs


def score_run(plan: Plan, data: Dataset, run: Run) -> Scores:
    """Measures the iterates of a run on the test records."""
    risks, scores = _measure(
        (plan.loss_fn, data.task), jnp.asarray(run.iterates), _on_device(data.test)
    )
    return Scores(np.asarray(risks), np.asarray(scores))


def _run(
    name: str,
    solve: Callable[..., Solution],
    plan: Plan,
    data: Dataset,
    on_step: OnStep,
) -> Run:
    seen = []
    every = max(1, plan.num_steps // _NUM_SHOWN)

    def watch(step, params):
        # Calls may come out of order, and must not wait for the device.
        seen.append((step, params))
        on_step(name, min(len(seen) * every, plan.num_steps))

    solution = solve(
        losses.regularized(plan.loss_fn, plan.l2) if plan.l2 else plan.loss_fn,
        jnp.zeros(data.features.shape[1]),
        _on_device(data.train),
        learning_rate=plan.learning_rate,
        num_steps=plan.num_steps,
        watch=Watch(watch, every),
    )
    jax.block_until_ready(solution.params)
    jax.effects_barrier()  # every call of watch has returned
    seen.sort(key=lambda pair: int(pair[0]))
    steps, iterates = zip(*seen, strict=True)
    return Run(name, solution, np.array(steps), np.array(iterates))


@partial(jax.jit, static_argnums=0)
def _measure(static, iterates, test):
    loss_fn, task = static
    features, targets = test

    def measure(params):
        risk = jnp.mean(jax.vmap(loss_fn, (None, 0))(params, test))
        predictions = features @ params
        if task == "classification":
            return risk, jnp.mean((predictions > 0) == (targets > 0))
        return risk, jnp.mean(jnp.abs(predictions - targets))

    return jax.lax.map(measure, iterates)


def _on_device(pair: tuple[np.ndarray, np.ndarray]) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(pair[0]), jnp.asarray(pair[1])


def _spoken(estimator: Estimator) -> str:
    """Returns "smoothed truncation" for a SmoothedTruncation."""
    name = type(estimator).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
