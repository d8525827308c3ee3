"""Localized stochastic convex optimization under heavy tails (Asi, Liu, Tian 2024).

Phase i has m_i records that no other phase has, and minimizes, to within r_i,

    F_i(w) = mean gradient of the clipped losses + lambda_i / 2 ||w - w_(i-1)||^2   (1)

around the last center. With E sup_w ||grad f||^k <= G^k, the minimizer on m records is
within sqrt(A) / lambda of that of the population, in mean square, for

    A(C) = G^2 / m + b(C)^2 + (16/3) d (kappa C / m)^2,                             (2)

the sampling of records, the bias of clipping, b(C) = s G^k / C^(k-1) with
s = (k-1)^(k-1) k^-k, and the noise of T steps of stddev 2 C kappa sqrt(T) / m, of whose
variance the last iterate keeps 4 / (3 lambda^2 T) with the step sizes
2 / (lambda (t + 1) + 2 (lambda + beta)).
C minimizes (2). The excess risk is at most

    lambda_1 R^2 / 2 + sum_i lambda_(i+1) A_i / (2 lambda_i^2) + G sqrt(A_I) / lambda_I,

whose sum is least where lambda grows eightfold: m_i halves, so that A_i grows at most
fourfold. Then lambda_1 = 4 sqrt(A_1) / R, and the phases end where the last term is no
larger than the first. The paper's lambda grows 32-fold, which serves its constants.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays, flatten, num_coordinates, register
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.accounting import (
    PrivacyGuarantee,
    Sampling,
    gaussian_event,
    noise_multiplier,
)
from dpjax.batching import Full
from dpjax.constraints import L2Ball
from dpjax.estimators import Clipping
from dpjax.solvers.papers._localized_theory import Theory, check_size, phase_sizes
from dpjax.solvers.papers._smooth_center import smooth_center
from dpjax.solvers.training._calibration import check_budget, unit_of
from dpjax.solvers.training._loop import (
    Batches,
    Execution,
    OptaxStep,
    check_execution,
    iterate,
)
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import chain, project

_GROWTH = 8  # of lambda from one phase to the next


def dp_localized_sco(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    moment_bound: float,
    diameter: float,
    smoothness: float,
    moment_order: float = 2.0,
    num_steps: int | None = None,
    num_groups: int = 1,
    execution: Execution = Execution(),
) -> Solution:
    """Minimizes a convex population risk over a ball, at the optimal rate in n.

    Each phase uses half of the remaining records and starts where the last one ended. A
    penalty on the distance from there grows, so the distance to the optimum, and with
    it the effect of the noise, shrinks from phase to phase. A phase is gradient descent
    with clipped gradients. Clip norms, penalties, steps and phases follow from the
    arguments.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, convex in params.
        params: the center of the ball, and the start; public.
        data: pytree, leaves of shape (n, ...); n is public. Records are divided by
            their index: their order must not depend on their values.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        moment_bound: a public bound on E[sup ||gradient||^k], over the ball, of one
            record; privacy holds even if it is wrong.
        diameter: of the ball in which the optimum is sought, in units of params.
        smoothness: beta, a public bound on the largest eigenvalue of the risk's second
            derivative, from which the number of steps follows. For a loss with kinks:
            G^2 / (2 alpha), if an error of alpha is small compared with that of the
            result.
        moment_order: k, at least 2; it may be large for light tails.
        num_steps: of each phase; by default 9 + 6 beta / lambda, which reduces the
            squared distance to a 256th.
        num_groups: J, the number of groups of records in each phase. Each has its own
            iterate, and the one in the middle of a majority is used. With 1 the rate
            holds in expectation; with 8 log(phases / xi) with probability 1 - xi, up to
            constants.
        execution: microbatches and a callback; a checkpoint is rejected.

    Returns:
        A `Solution`. Its stats hold num_phases, num_steps (of all phases),
        l2_clip_norm, penalty and noise_multiplier of the first phase, and risk_scale,
        4 sqrt(A_1) R: the file's bound to leading order, with R half the diameter.

    Raises:
        ValueError: If an argument is out of its range, moment_order is below 2, or
            n is too small for the theorem: risk_scale must be at most G R, the risk
            of staying in the center.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together. A record is in one group of one phase, whose steps are Gaussian
        mechanisms on clipped means (`dp_gradient_descent`, `Clipping`); everything
        after is post-processing of them and of other records. moment_bound, diameter,
        smoothness and all other arguments must not depend on the data.

    Utility:
        For k at least 2 the excess risk is, up to logarithms,
        R (G / sqrt(n) + G (sqrt(d) / (n epsilon))^(1 - 1/k)), which is optimal.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses
        >>> from dpjax.solvers import dp_localized_sco
        >>> features = jax.random.normal(jax.random.key(0), (100_000, 2))
        >>> odds = features @ jnp.array([1.0, 2.0])
        >>> labels = jnp.sign(odds + jax.random.logistic(jax.random.key(1), (100_000,)))
        >>> solution = dp_localized_sco(
        ...     losses.logistic, jnp.zeros(2), (features, labels),
        ...     key=jax.random.key(2), epsilon=1.0, delta=1e-6,
        ...     moment_bound=384.0, moment_order=8.0,  # E||x||^8
        ...     diameter=6.0, smoothness=0.25)
        >>> print([round(float(w), 1) for w in solution.params])
        [0.9, 1.8]

    Reference:
        Asi, Liu, Tian (2024), "Private stochastic convex optimization with heavy tails:
        near-optimality from simple reductions", arXiv 2406.02789, Algorithms 1 to 3.
        The lower bound: Lowy, Razaviyayn (2023).
    """
    check_budget(epsilon, delta)
    _validate.require(callable(loss_fn), "loss_fn", loss_fn, "callable")
    data = arrays(data)
    theory = Theory.of(
        epsilon,
        delta,
        moment_bound=moment_bound,
        moment_order=moment_order,
        diameter=diameter,
        num_coordinates=num_coordinates(params),
    )
    _validate.positive(smoothness=smoothness)
    _validate.count(num_groups=num_groups)
    if num_steps is not None:
        _validate.count(num_steps=num_steps)
    check_key_of_rows(key, data)
    check_execution(execution)
    rule = "None: the phases are short runs of their own"
    is_fine = execution.checkpoint is None
    _validate.require(is_fine, "execution.checkpoint", execution.checkpoint, rule)
    num_samples = check_size(
        lambda n: 4 * math.sqrt(variance(theory, n // (2 * num_groups))) / theory.bound,
        data,
    )
    phases = phases_of(theory, num_samples // num_groups, smoothness, num_steps)

    start, first = params, 0
    keys = jax.random.split(key, (len(phases), num_groups))
    for phase, group_keys in zip(phases, keys, strict=True):
        multiplier = noise_multiplier(
            epsilon, delta, Sampling(num_steps=phase.num_steps)
        )
        points = []
        for group_key in group_keys:
            rows = slice(first, first + phase.num_samples)
            group = jax.tree.map(lambda x, rows=rows: x[rows], data)
            step = _Step(
                loss_fn=loss_fn,
                batches=Batches.of(group, phase.num_steps, Full(), execution),
                estimator=Clipping(phase.l2_clip_norm),
                noise_multiplier=multiplier,
                centre=start,
                middle=params,
                radius=theory.radius,
                penalty=phase.penalty,
                smoothness=smoothness,
            )
            points.append(
                iterate(step, start, group, key=group_key, execution=execution)[0]
            )
            first += phase.num_samples
        start = points[0] if num_groups == 1 else _middle(points)
    # Records of other phases and groups meet noise of the same Gaussian guarantee.
    privacy = PrivacyGuarantee.of(
        epsilon,
        delta,
        dp_event=gaussian_event(theory.noise_multiplier),
        num_samples=num_samples,
        unit=unit_of(data),
    )
    stats = {
        "num_phases": len(phases),
        "num_steps": sum(phase.num_steps for phase in phases),
        "l2_clip_norm": phases[0].l2_clip_norm,
        "penalty": phases[0].penalty,
        "noise_multiplier": theory.noise_multiplier * phases[0].num_steps ** 0.5,
        "risk_scale": theory.radius**2 * phases[0].penalty,
    }
    return Solution(start, privacy, stats)


class Phase(NamedTuple):
    """One phase: its records in each group, clip norm C, lambda, and steps."""

    num_samples: int
    l2_clip_norm: float
    penalty: float
    num_steps: int


def clip_norm(theory: Theory, num_samples: int) -> float:
    """Returns the C that minimizes (2)."""
    k = theory.order
    # (k - 1) s^2 G^(2k) = cost C^(2k)
    ratio = theory.excess * math.sqrt((k - 1) / _noise(theory, num_samples))
    return theory.bound * ratio ** (1 / k)


def variance(theory: Theory, num_samples: int) -> float:
    """Returns A of (2), with the best C; infinite without records."""
    if num_samples == 0:
        return math.inf
    norm = clip_norm(theory, num_samples)
    noise = _noise(theory, num_samples) * norm**2
    return theory.bound**2 / num_samples + theory.bias(norm) ** 2 + noise


def _noise(theory: Theory, num_samples: int) -> float:
    return 16 / 3 * theory.dimension * (theory.noise_multiplier / num_samples) ** 2


def phases_of(
    theory: Theory, num_samples: int, smoothness: float, num_steps: int | None
) -> list[Phase]:
    """Returns the phases for n records, or for those of a group."""
    penalty = 4 * math.sqrt(variance(theory, num_samples // 2)) / theory.radius
    # G sqrt(A_I) / lambda_I <= lambda_1 R^2 / 2, if A_i grows fourfold a phase.
    ratio = theory.bound / (2 * theory.radius * penalty)
    num_phases = 1 + max(0, math.ceil(math.log(ratio, _GROWTH / 2)))
    phases = []
    for i, size in enumerate(phase_sizes(num_samples, num_phases)):
        strength = penalty * _GROWTH**i
        # (s / (T + s))^4 of the first squared distance is left, with T = 3 s.
        steps = num_steps or math.ceil(3 * (3 + 2 * smoothness / strength))
        rule = f"given where smoothness and diameter ask for {steps} steps"
        _validate.require(steps < 2**31, "num_steps", num_steps, rule)
        phases.append(Phase(size, clip_norm(theory, size), strength, steps))
    return phases


@register(
    "estimator",
    "noise_multiplier",
    "centre",
    "middle",
    "radius",
    "penalty",
    "smoothness",
    "key",
)
@dataclass(frozen=True, kw_only=True)
class _Step(OptaxStep):
    """A step on (1): the noisy clipped mean, the penalty's gradient, the ball.

    Attributes:
        estimator: the clipped mean.
        noise_multiplier: of its noise.
        center: w_(i-1), of the penalty.
        middle: of the ball.
        radius: of the ball.
        penalty: lambda.
        smoothness: beta.
    """

    estimator: Clipping
    noise_multiplier: Scalar
    centre: PyTree
    middle: PyTree
    radius: Scalar
    penalty: Scalar
    smoothness: Scalar

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        def penalized(updates, params):
            return jax.tree.map(
                lambda g, w, c: g + self.penalty * (w - c), updates, params, self.centre
            )

        def rate(count):
            shift = 2 * (self.penalty + self.smoothness)
            return 2 / (self.penalty * (count.astype("float32") + 1) + shift)

        def into_ball(params):
            moved = jax.tree.map(jnp.subtract, params, self.middle)
            inside = L2Ball(self.radius).project(moved)
            return jax.tree.map(jnp.add, self.middle, inside)

        return chain(
            self.mean(self.estimator, self.noise_multiplier),
            optax.stateless(penalized),
            optax.sgd(rate),
            project(into_ball),
        )


@jax.jit
def _middle(points: list[PyTree]) -> PyTree:
    """Returns the point that is nearest to a majority of them (Algorithm 2)."""
    vectors = jnp.stack([flatten(point, "params")[0] for point in points])
    unflatten = flatten(points[0], "params")[1]
    return unflatten(smooth_center(vectors, jnp.ones(2), overlap=1)[0])
