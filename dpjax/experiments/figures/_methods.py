"""The methods of the figures: a problem and a setting in, weights out.

All private methods of a panel get the same epsilon and delta = n^-1.1, except that
Frank-Wolfe takes delta = 0. "tight" takes the noise that the guarantee needs, "paper"
the printed constants, whatever they give.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import NoOpDpEvent

from dpjax import losses, solvers
from dpjax._types import Calibration, Key
from dpjax.accounting import PrivacyGuarantee
from dpjax.batching import WithoutReplacement
from dpjax.constraints import Box, L1Ball, halton_net
from dpjax.estimators import (
    Clipping,
    Estimator,
    SmoothedTruncation,
    TrimmedMean,
    Truncation,
)
from dpjax.experiments.figures._panel import Setting
from dpjax.experiments.figures._problems import ProblemKind, Sample, pareto_moment
from dpjax.solvers import Solution

_FAILURE_PROB = 0.01  # of 001's experiments
_BATCH_SIZE = 1_000  # of 001's stochastic runs
_TRIMMED = 0.05  # m / n of 001's Algorithm 3
_PRIOR = 10.0  # b of its prior [-b, b], so that its kappa = b - a is 20

Solve = Callable[..., Solution]


@dataclass(frozen=True)
class FigureMethod:
    """A method that takes part in figures.

    Attributes:
        solve: `solve(problem, setting, sample, key, **options) -> Solution`; options
            are empty, or hold `watch` where every iterate is shown.
        is_private: whether it protects the records.
        has_steps: whether it has iterates to show.
    """

    solve: Solve
    is_private: bool = True
    has_steps: bool = True


def optimum(problem: ProblemKind, setting: Setting, sample: Sample) -> jax.Array:
    """Returns the best weights that are known, without privacy.

    Those that made the data of a linear model; else where accelerated projected
    gradient descent arrives from there.
    """
    if problem.dataset is None and problem.loss_fn is not losses.logistic:
        return sample.true_params
    start = -sample.true_params if problem.ball is None else sample.true_params
    return _accelerated(problem.penalized, problem.project, start, sample.data)


@partial(jax.jit, static_argnums=(0, 1, 4))
def _accelerated(
    loss_fn: Any, project: Any, start: jax.Array, data: Any, num_steps: int = 200
) -> jax.Array:
    """Beck and Teboulle (2009), with the step size of the largest curvature."""
    features, _ = data

    def power(v, _):
        v = features.T @ (features @ v)
        return v / jnp.maximum(jnp.linalg.norm(v), 1e-30), None

    v, _ = jax.lax.scan(power, jnp.ones_like(start), None, length=20)
    curvature = jnp.mean((features @ v) ** 2) / jnp.maximum(v @ v, 1e-30) + 1e-2
    grad_fn = jax.grad(lambda w: jnp.mean(jax.vmap(loss_fn, (None, 0))(w, data)))

    def step(carry, t):
        params, ahead = carry
        new = project(ahead - grad_fn(ahead) / curvature)
        return (new, new + t / (t + 3) * (new - params)), None

    (params, _), _ = jax.lax.scan(
        step, (start, start), jnp.arange(num_steps, dtype=start.dtype)
    )
    return params


def _start(sample: Sample) -> jax.Array:
    return jnp.zeros_like(sample.true_params)


def _zero(problem: ProblemKind, setting: Setting, sample: Sample, key: Key) -> Solution:
    del problem, setting, key
    nothing = PrivacyGuarantee.of(0.0, 0.0, dp_event=NoOpDpEvent())
    return Solution(_start(sample), nothing, {})


def _best(problem: ProblemKind, setting: Setting, sample: Sample, key: Key) -> Solution:
    del key
    params = optimum(problem, setting, sample)
    return Solution(params, PrivacyGuarantee.non_private(), {})


def _inverse_root(step: jax.Array) -> jax.Array:
    return 1 / jnp.sqrt(step + 1)  # 1 / sqrt(t) of 001, t = 1, 2, ...


def _smoothed(
    problem: ProblemKind,
    setting: Setting,
    num_features: int,
    *,
    batch_size: int,
    calibration: Calibration,
) -> Estimator:
    return SmoothedTruncation.for_moment(
        problem.moment_bound,
        num_samples=batch_size,
        num_coordinates=num_features,
        num_steps=setting.num_steps,
        epsilon=setting.epsilon,
        delta=setting.delta,
        calibration=calibration,
    )


def _descent(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    is_private: bool = True,
    is_stochastic: bool = False,
    calibration: Calibration = "tight",
    estimator: Estimator | None = None,
    learning_rate: float = 0.1,
    num_steps: int | None = None,
    **options: Any,
) -> Solution:
    """Gradient descent; by smoothed truncation, unless there is an estimator."""
    num_samples, num_features = sample.data[0].shape
    batch_size = min(_BATCH_SIZE, num_samples) if is_stochastic else num_samples
    if estimator is None:
        estimator = _smoothed(
            problem,
            setting,
            num_features,
            batch_size=batch_size,
            calibration=calibration if is_private else "paper",
        )
    options |= {
        "key": key,
        "estimator": estimator,
        "learning_rate": _inverse_root if is_stochastic else learning_rate,
        "num_steps": setting.num_steps or num_steps,
        "projection_fn": problem.project if problem.ball else None,
    }
    if is_stochastic:
        options |= {"batching": WithoutReplacement(batch_size), "averaging": True}
    if is_private:
        options |= {"epsilon": setting.epsilon, "delta": setting.delta}
        options |= {"calibration": calibration}
    private = solvers.dp_gradient_descent
    solve = private if is_private else solvers.robust_gradient_descent
    return solve(problem.penalized, _start(sample), sample.data, **options)


def _frank_wolfe(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    calibration: Calibration,
) -> Solution:
    return solvers.dp_frank_wolfe(
        problem.penalized,
        _start(sample),
        sample.data,
        key=key,
        epsilon=setting.epsilon,
        constraint=L1Ball(1.0),
        moment_bound=problem.moment_bound,
        calibration=calibration,
    )


def _lasso(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    calibration: Calibration,
) -> Solution:
    return solvers.dp_lasso(
        *sample.data,
        key=key,
        epsilon=setting.epsilon,
        delta=setting.delta,
        moment_bound=problem.data_moment_bound,
        calibration=calibration,
    )


def _sparse(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    calibration: Calibration,
) -> Solution:
    return solvers.dp_sparse_linear_regression(
        *sample.data,
        key=key,
        epsilon=setting.epsilon,
        delta=setting.delta,
        sparsity=setting.sparsity,
        moment_bound=problem.data_moment_bound,
        calibration=calibration,
    )


def _hard_thresholding(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    calibration: Calibration,
) -> Solution:
    num_samples, num_features = sample.data[0].shape
    num_steps = max(1, int(math.log(num_samples)))
    estimator = SmoothedTruncation.for_moment(
        problem.moment_bound,
        num_samples=num_samples // num_steps,
        num_coordinates=num_features,
        num_steps=1,
        epsilon=setting.epsilon,
        delta=setting.delta,
    )
    return solvers.dp_iterative_hard_thresholding(
        problem.penalized,
        _start(sample),
        sample.data,
        key=key,
        epsilon=setting.epsilon,
        delta=setting.delta,
        sparsity=setting.sparsity,
        estimator=estimator,
        learning_rate=0.5,  # eta of 004's experiments
        num_steps=num_steps,
        calibration=calibration,
    )


def _l1_regression(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    calibration: Calibration,
) -> Solution:
    box, num_features = Box(-1.0, 1.0), sample.data[0].shape[1]
    return solvers.dp_l1_regression(
        *sample.data,
        key=key,
        epsilon=setting.epsilon,
        candidates=halton_net(box, num_features, num_candidates=4096),
        moment_order=setting.moment_order,
        moment_bound=problem.moment_bound,
        calibration=calibration,
    )


def _mean(
    problem: ProblemKind,
    setting: Setting,
    sample: Sample,
    key: Key,
    *,
    calibration: Calibration = "tight",
    estimator: Estimator | None = None,
) -> Solution:
    """The private mean by truncation, unless there is an estimator."""
    del problem
    samples, _ = sample.data
    if estimator is None:
        estimator = Truncation.for_moment(
            pareto_moment(setting),
            moment_order=setting.moment_order,
            num_samples=setting.num_samples,
            num_coordinates=samples.shape[1],
            epsilon=setting.epsilon,
            delta=setting.delta,
            calibration=calibration,
        )
    return solvers.private_mean(
        samples,
        key=key,
        epsilon=setting.epsilon,
        delta=setting.delta,
        estimator=estimator,
        calibration=calibration,
    )


def _empirical_mean(
    problem: ProblemKind, setting: Setting, sample: Sample, key: Key
) -> Solution:
    del problem, setting, key
    params = jnp.mean(sample.data[0], axis=0)
    return Solution(params, PrivacyGuarantee.non_private(), {})


_CLIPPED = partial(_descent, estimator=Clipping(1.0), num_steps=25)

METHODS: dict[str, FigureMethod] = {
    "zero": FigureMethod(_zero, has_steps=False),
    "not private": FigureMethod(_best, is_private=False, has_steps=False),
    "DP-GD, clipping": FigureMethod(_CLIPPED),
    "empirical mean": FigureMethod(_empirical_mean, is_private=False, has_steps=False),
    "clipped mean": FigureMethod(partial(_mean, estimator=Clipping(1.0))),
    "RGD": FigureMethod(partial(_descent, is_private=False), is_private=False),
    "stochastic RGD": FigureMethod(
        partial(_descent, is_private=False, is_stochastic=True), is_private=False
    ),
    "Algorithm 3": FigureMethod(
        partial(
            _descent,
            estimator=TrimmedMean(_TRIMMED, -_PRIOR, _PRIOR),
            learning_rate=0.01,
        )
    ),
    "Algorithm 4, tight": FigureMethod(_descent),
    "Algorithm 4, paper": FigureMethod(partial(_descent, calibration="paper")),
    "stochastic Algorithm 4, tight": FigureMethod(
        partial(_descent, is_stochastic=True)
    ),
} | {
    f"{name}, {calibration}": FigureMethod(partial(solve, calibration=calibration))
    for name, solve in {
        "Frank-Wolfe": _frank_wolfe,
        "LASSO": _lasso,
        "sparse regression": _sparse,
        "hard thresholding": _hard_thresholding,
        "l1 regression": _l1_regression,
        "private mean": _mean,
    }.items()
    for calibration in ("tight", "paper")
}
