"""Localized stochastic convex optimization under heavy tails (Asi, Liu, Tian 2024).

Phase i uses m_i records that no other phase uses. Around the result w_(i-1) of the last
phase it minimizes

    F_i(w) = mean loss with clipped gradients + lambda_i / 2 ||w - w_(i-1)||^2      (1)

by T steps. With E sup_w ||grad f||^k <= G^k, the result on m records is within
sqrt(A) / lambda of the minimizer for the population, in mean square, for

    A(C) = G^2 / m + b(C)^2 + (16/3) d (kappa C / m)^2.                             (2)

The terms are for the sampling of records, the bias of clipping, with
b(C) = (k-1)^(k-1) k^-k G^k / C^(k-1), and the noise of T steps with stddev
2 C kappa sqrt(T) / m, of which the last iterate keeps 4 / (3 lambda^2 T) times the
variance. The clip norm C minimizes (2). The excess risk is at most

    lambda_1 R^2 / 2 + sum_i lambda_(i+1) A_i / (2 lambda_i^2) + G sqrt(A_I) / lambda_I.

This sum is least if lambda grows eightfold per phase: m_i halves, so A_i grows at most
fourfold. Then lambda_1 = 4 sqrt(A_1) / R, and there are enough phases if the last term
is no larger than the first. The paper's lambda grows 32-fold, to suit its constants.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays, flatten, num_coordinates, register
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.accounting import Sampling, noise_multiplier
from dpjax.batching import Full
from dpjax.constraints import L2Ball
from dpjax.estimators import Clipping
from dpjax.solvers.papers._smooth_center import smooth_center
from dpjax.solvers.statistics._noisy_mean import one_gaussian
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

_GROWTH = 8  # growth of lambda from one phase to the next


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

    Each phase uses half of the remaining records for gradient descent with clipped
    gradients, and a penalty on the distance from the last phase's result. The penalty
    grows, so the effect of the noise shrinks. All settings follow from the arguments.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`, convex in params.
        params: the center of the ball, and the start; public.
        data: pytree, leaves of shape (n, ...); n is public. Phases and groups are
            ranges of records, so their order must not depend on their values.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        moment_bound: public bound G^k on E[sup ||gradient||^k] of one record over the
            ball. Privacy holds even if the bound is wrong.
        diameter: diameter of the ball in which the optimum is sought.
        smoothness: beta, a public bound on the risk's largest curvature; for a loss
            with kinks G^2 / (2 alpha), alpha a small error.
        moment_order: k, at least 2; it may be large for light tails.
        num_steps: steps of a phase; by default 9 + 6 beta / lambda.
        num_groups: how many groups of records run each phase; a center of their results
            is used. With 1 the rate holds in expectation, with 8 log(phases / xi) with
            probability 1 - xi.
        execution: microbatches and a callback; no checkpoint.

    Returns:
        A `Solution`. Its stats hold num_phases, num_steps (of all phases);
        l2_clip_norm, penalty and noise_multiplier of the first phase; and risk_scale,
        the leading order of a bound on the excess risk. Up to logarithms it is
        R (G / sqrt(n) + G (sqrt(d) / (n epsilon))^(1 - 1/k)), R half the diameter.

    Raises:
        ValueError: If an argument is out of its range, or n is so small that risk_scale
            exceeds G R, the risk of staying in the center.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together. A record is in one group of one phase, and the steps of this phase are
        Gaussian mechanisms on clipped means. All later steps are post-processing of
        them and of other records. No argument but the data may depend on records.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from dpjax import losses, solvers
        >>> features = jax.random.normal(jax.random.key(0), (100_000, 2))
        >>> odds = features @ jnp.array([1.0, 2.0])
        >>> labels = jnp.sign(odds + jax.random.logistic(jax.random.key(1), (100_000,)))
        >>> solution = solvers.dp_localized_sco(
        ...     losses.logistic, jnp.zeros(2), (features, labels),
        ...     key=jax.random.key(2), epsilon=1.0, delta=1e-6,
        ...     moment_bound=384.0, moment_order=8.0,  # E||x||^8
        ...     diameter=6.0, smoothness=0.25)
        >>> print([round(float(w), 1) for w in solution.params])
        [0.9, 1.8]

    Reference:
        Asi, Liu, Tian (2024), "Private stochastic convex optimization with heavy tails:
        near-optimality from simple reductions", arXiv 2406.02789, Algorithms 1 to 3;
        Lowy, Razaviyayn (2023), for the lower bound.
    """
    check_budget(epsilon, delta)
    _validate.loss_fn(loss_fn)
    _validate.positive(smoothness=smoothness)
    _validate.count(num_groups=num_groups)
    check_key_of_rows(key, data)
    check_execution(execution, "None: the phases are short runs of their own")
    data = arrays(data)
    size = num_coordinates(params)
    theory = Theory.of(epsilon, delta, moment_bound, moment_order, diameter, size)
    num_samples = check_size(lambda n: _risk(theory, n // num_groups), data)
    phases = phases_of(theory, num_samples // num_groups, smoothness, num_steps)
    start, first = params, 0
    keys = jax.random.split(key, (len(phases), num_groups))
    for phase, group_keys in zip(phases, keys, strict=True):
        sampling = Sampling(num_steps=phase.num_steps)
        multiplier = noise_multiplier(epsilon, delta, sampling)
        points = []
        for key in group_keys:
            rows = slice(first, first + phase.num_samples)
            group = jax.tree.map(lambda x, rows=rows: x[rows], data)
            step = _Step(
                loss_fn=loss_fn,
                batches=Batches.of(group, phase.num_steps, Full(), execution),
                estimator=Clipping(phase.l2_clip_norm),
                noise_multiplier=multiplier,
                center=start,
                middle=params,
                radius=theory.radius,
                penalty=phase.penalty,
                smoothness=smoothness,
            )
            points.append(iterate(step, start, group, key=key, execution=execution)[0])
            first += phase.num_samples
        start = points[0] if num_groups == 1 else _middle(points)
    # Each record is in one group of one phase. All of these have noise with the same
    # guarantee, as one Gaussian release.
    _, privacy = one_gaussian(epsilon, delta, num_samples, unit_of(data))
    stats = {
        "num_phases": len(phases),
        "num_steps": sum(phase.num_steps for phase in phases),
        "l2_clip_norm": phases[0].l2_clip_norm,
        "penalty": phases[0].penalty,
        "noise_multiplier": theory.noise_multiplier * phases[0].num_steps ** 0.5,
        "risk_scale": theory.radius**2 * phases[0].penalty,
    }
    return Solution(start, privacy, stats)


class Theory(NamedTuple):
    """The assumptions: E sup ||gradient||^k <= G^k within a ball, and the budget.

    kappa is for one Gaussian release at the whole budget; for delta = 0 for one release
    of Laplace noise in the l2 norm, see `_one_pass`.
    """

    bound: float  # G
    order: float  # k
    radius: float  # R
    dimension: int  # d
    noise_multiplier: float  # kappa

    @classmethod
    def of(
        cls, epsilon, delta, moment_bound, moment_order, diameter, dimension
    ) -> "Theory":
        """Returns the theorem's assumptions, which determine the settings of phases."""
        # They are G, with G^k = moment_bound, k, the ball's radius, the number of
        # parameters, and the noise multiplier of one release with the whole budget.
        _validate.positive(moment_bound=moment_bound, moment_order=moment_order)
        _validate.within(1e-20, 1e30, diameter=diameter)
        rule = "at least 2 and finite, because the theorem asks for a second moment"
        is_fine = 2 <= moment_order < math.inf
        _validate.require(is_fine, "moment_order", moment_order, rule)
        bound = moment_bound ** (1 / moment_order)
        rule = "such that moment_bound^(1 / moment_order) is between 1e-9 and 1e20"
        _validate.require(1e-9 <= bound <= 1e20, "moment_bound", moment_bound, rule)
        if delta > 0:
            multiplier = noise_multiplier(epsilon, delta, Sampling(num_steps=1))
        else:
            _validate.within(1e-20, 1e20, epsilon=epsilon)
            multiplier = math.sqrt(dimension + 1) / epsilon
        return cls(bound, moment_order, diameter / 2, dimension, multiplier)

    @property
    def excess(self) -> float:
        """Returns the factor s = (k - 1)^(k - 1) / k^k of `bias`."""
        return (1 - 1 / self.order) ** (self.order - 1) / self.order

    def bias(self, clip_norm: float) -> float:
        """Returns b(C) = s G^k / C^(k - 1), at least E max(||gradient|| - C, 0)."""
        # The largest (x - C) / x^k is at x = k C / (k - 1).
        return self.bound * self.excess * (self.bound / clip_norm) ** (self.order - 1)


def phase_sizes(num_samples: int, num_phases: int) -> list[int]:
    """Returns the size of each phase: half of the records left, all for the last."""
    shares = [2 ** min(i, num_phases - 1) for i in range(1, num_phases + 1)]
    return [num_samples // share for share in shares]


def check_size(relative_risk: Callable[[int], float], data: Any) -> int:
    """Returns n, the number of rows of data, or raises if n is too small."""
    # relative_risk(n) bounds the excess risk, over the risk of the ball's center. A
    # bound above 1 is useless; the error tells a number of records that suffices.
    num_samples = enough = _validate.leading_size(data, "data")
    while relative_risk(enough) > 1:
        enough = math.ceil(1.1 * enough)
    if enough > num_samples:
        raise ValueError(
            f"data must have about {enough} records or more, so that the proved bound "
            f"on the risk is below the risk of the ball's center, got {num_samples}."
        )
    return num_samples


class Phase(NamedTuple):
    """One phase: the size of each group, clip norm C, penalty lambda, and steps."""

    num_samples: int
    l2_clip_norm: float
    penalty: float
    num_steps: int


def clip_norm(theory: Theory, num_samples: int) -> float:
    """Returns the clip norm C that minimizes the variance (2)."""
    k = theory.order
    # The derivative of (2) is zero at (k - 1) s^2 G^(2k) = _noise C^(2k).
    ratio = theory.excess * math.sqrt((k - 1) / _noise(theory, num_samples))
    return theory.bound * ratio ** (1 / k)


def variance(theory: Theory, num_samples: int) -> float:
    """Returns the variance A of (2), with the best C; infinite without records."""
    if num_samples == 0:
        return math.inf
    norm = clip_norm(theory, num_samples)
    noise = _noise(theory, num_samples) * norm**2
    return theory.bound**2 / num_samples + theory.bias(norm) ** 2 + noise


def _risk(theory: Theory, num_samples: int) -> float:
    """Returns risk_scale over G R, the risk of the center."""
    return 4 * math.sqrt(variance(theory, num_samples // 2)) / theory.bound


def _noise(theory: Theory, num_samples: int) -> float:
    return 16 / 3 * theory.dimension * (theory.noise_multiplier / num_samples) ** 2


def phases_of(
    theory: Theory, num_samples: int, smoothness: float, num_steps: int | None
) -> list[Phase]:
    """Returns the schedule of a run: each phase's records, clip norm, penalty, steps.

    The phases share num_samples records. `theory` has the bounds of (2), `smoothness`
    is beta, a bound on the risk's curvature, from which each phase's number of steps
    follows, unless num_steps replaces it.
    """
    penalty = 4 * math.sqrt(variance(theory, num_samples // 2)) / theory.radius
    # If A_i of (2) grows fourfold per phase, so many phases I reach
    # G sqrt(A_I) / lambda_I <= lambda_1 R^2 / 2.
    ratio = theory.bound / (2 * theory.radius * penalty)
    num_phases = 1 + max(0, math.ceil(math.log(ratio, _GROWTH / 2)))
    phases = []
    for i, size in enumerate(phase_sizes(num_samples, num_phases)):
        strength = penalty * _GROWTH**i
        # With s = 3 + 2 beta / lambda and T = 3 s, (s / (T + s))^4, a 256th, of the
        # first squared distance is left.
        enough = math.ceil(3 * (3 + 2 * smoothness / strength))
        steps = enough if num_steps is None else num_steps
        _validate.count(num_steps=steps)
        rule = f"given and below 2^31: smoothness and diameter ask for {enough}"
        _validate.require(steps < 2**31, "num_steps", num_steps, rule)
        phases.append(Phase(size, clip_norm(theory, size), strength, steps))
    return phases


@register(
    "estimator",
    "noise_multiplier",
    "center",
    "middle",
    "radius",
    "penalty",
    "smoothness",
    "key",
)
@dataclass(frozen=True, kw_only=True)
class _Step(OptaxStep):
    """A projected step along the noisy mean gradient plus the penalty's gradient."""

    estimator: Clipping
    noise_multiplier: Scalar
    center: PyTree
    middle: PyTree
    radius: Scalar
    penalty: Scalar
    smoothness: Scalar

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the optax chain of a phase's step, for per-example gradients."""
        # It adds the penalty's gradient to the noisy mean of clipped gradients, takes a
        # step with a falling rate, and projects onto the ball. `params` are not used.

        def penalized(updates, params):
            return jax.tree.map(
                lambda g, w, c: g + self.penalty * (w - c), updates, params, self.center
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
    """Returns the point with the smallest ball that holds a majority (Algorithm 2)."""
    vectors = jnp.stack([flatten(point, "params")[0] for point in points])
    unflatten = flatten(points[0], "params")[1]
    return unflatten(smooth_center(vectors, jnp.ones(2), overlap=1)[0])
