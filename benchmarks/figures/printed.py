"""The constants that the papers print, with the guarantees that they really give.

The library takes the noise that a guarantee needs; here the same steps take the printed
one. No parameter of these functions is checked.
"""

import dataclasses
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import scipy.stats
from dp_accounting import ZCDpEvent

from dpjax import accounting, losses, solvers
from dpjax._tree import clip, register
from dpjax.accounting import PrivacyGuarantee, Sampling
from dpjax.accounting._objective import ObjectiveNoise
from dpjax.accounting._selection import selection_event, total_selection_epsilon
from dpjax.batching import Disjoint, Full
from dpjax.constraints import L1Ball
from dpjax.estimators import SmoothedTruncation, Winsorization
from dpjax.mechanisms import exponential
from dpjax.solvers import Execution, Solution
from dpjax.solvers.papers._frank_wolfe import checked_num_steps, choose_vertices
from dpjax.solvers.papers._hard_thresholding import ShrunkenStep
from dpjax.solvers.papers._l1_regression import FixedPoint, chunk_scores, row_blocks
from dpjax.solvers.training._calibration import Choices
from dpjax.solvers.training._loop import Batches, iterate

_LEAST_EPSILON = 1e-6  # a budget that the library takes


def _excess(estimator: SmoothedTruncation) -> float:
    """Returns how many times the range of an influence 001 and 004 print for it."""
    return 1 / math.erf(math.sqrt(float(estimator.beta) / 2))


def actual_epsilon(estimator, *, epsilon, delta, num_steps=1, is_disjoint=False):
    """Returns the epsilon that the Gaussian noise printed for an estimator gives.

    With this budget `dp_mean` and `dp_gradient_descent` add that noise: of 001,
    Algorithm 4, for smoothed truncation; for others of 003, Algorithms 1 to 3.
    """
    num_releases = 1 if is_disjoint else num_steps
    if isinstance(estimator, SmoothedTruncation):
        log_inverse = math.log(1 / delta)
        root_rho = math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)
        multiplier = math.sqrt(num_releases / 2) / root_rho * _excess(estimator)
    else:
        step_delta = delta
        if num_releases > 1:  # Algorithm 2, line 3: advanced composition
            epsilon /= 2 * math.sqrt(2 * num_steps * math.log(2 / delta))
            step_delta /= 2 * num_steps
        multiplier = math.sqrt(2 * math.log(1.25 / step_delta)) / epsilon
    sampling = Sampling(num_steps=num_releases)
    exact = accounting.noise_multiplier_to_epsilon(multiplier, delta, sampling)
    return max(exact, _LEAST_EPSILON)


def smoothed_truncation(moment_bound, num_samples, failure_prob=0.01):
    """Returns 001's scale, of Lemma 3, which ignores the noise."""
    beta = 2 * math.log(1 / failure_prob)
    return SmoothedTruncation(math.sqrt(num_samples * moment_bound / beta), beta)


def threshold(
    moment_bound,
    *,
    moment_order,
    num_samples,
    num_coordinates=1,
    num_steps=1,
    epsilon,
    delta,
    failure_prob=0.01,
) -> float:
    """Returns 003's threshold: of Algorithm 1, line 1, or else of Theorem 7."""
    effective = moment_bound * num_samples * epsilon
    if num_coordinates == num_steps == 1:
        effective /= math.log(1 / failure_prob) * math.sqrt(math.log(1.25 / delta))
    else:
        effective /= num_coordinates**1.5 * math.sqrt(num_steps)
    return effective ** (1 / moment_order)


def _by_exponential(
    loss_fn, params, data, *, each, delta, num_steps, batching, **options
) -> Solution:
    """Takes Frank-Wolfe steps by exponential mechanisms of a given epsilon."""
    num_samples = len(jax.tree.leaves(data)[0])
    count = batching.sampling(num_samples, num_steps).num_steps
    total = total_selection_epsilon(each, delta, num_selections=count)
    choices = Choices("exponential", each, count, (total, delta))
    batches = Batches.of(data, num_steps, batching, Execution())
    options |= {"choices": choices, "batches": batches, "execution": Execution()}
    params, stats = choose_vertices(loss_fn, params, data, **options)
    return Solution(params, choices.guarantee(num_samples), stats)


def frank_wolfe(loss_fn, params, data, *, key, epsilon, constraint, estimator=None):
    """004, Algorithm 1, with the scale of its section 6.2, which truncates nothing.

    Line 6 has the exponent epsilon u / (2 Delta), Delta = ||W||_1 4 sqrt(2) s / (3 m).
    """
    num_samples = len(jax.tree.leaves(data)[0])
    if estimator is None:
        estimator = SmoothedTruncation(max(1.0, math.floor(num_samples * epsilon)))
    num_steps = checked_num_steps(None, num_samples, epsilon, 1 / 3)
    options = {"key": key, "each": epsilon / 2 / _excess(estimator), "delta": 0.0}
    options |= {"num_steps": num_steps, "batching": Disjoint()}
    options |= {"constraint": constraint, "estimator": estimator}
    return _by_exponential(loss_fn, params, data, **options)


def lasso(features, targets, *, key, epsilon, delta, radius=1.0, num_steps=None):
    """004, Algorithm 2, whose constants are those of the unit ball.

    Line 5 has exp(epsilon' u / (2 Delta)), epsilon' = epsilon / (2 sqrt(2 T L)) and
    Delta = 8 ||W||_1 K^2 / n with ||W||_1 = 2 r, for a gradient twice as large; the
    scores here range over 4 r (1 + r) K^2 / n.
    """
    num_samples, num_features = features.shape
    num_steps = checked_num_steps(num_steps, num_samples, epsilon, 2 / 5)
    size = math.sqrt(math.sqrt(num_samples * epsilon / num_steps**0.5))
    each = epsilon / (2 * math.sqrt(2 * num_steps * math.log(1 / delta)))
    start, data = jnp.zeros(num_features, features.dtype), (features, targets)
    options = {"key": key, "each": each * (1 + radius) / 4, "delta": delta}
    options |= {"num_steps": num_steps, "batching": Full()}
    options["estimator"] = Winsorization(size**2 * (1 + radius))
    args = losses.squared, start, clip(data, size)
    return _by_exponential(*args, constraint=L1Ball(radius), **options)


def _peeling(data, sparsity, share, epsilon, delta):
    """Returns rho = share epsilon^2 / log(1/delta) of Laplace noise, and its cost."""
    rho = share * epsilon**2 / math.log(1 / delta)
    pure = 3 * math.sqrt(2 * sparsity * rho / 5)
    epsilon = min(pure, accounting.rho_to_epsilon(rho, delta))
    sizes = {"dp_event": ZCDpEvent(rho), "num_samples": len(jax.tree.leaves(data)[0])}
    return rho, PrivacyGuarantee.of(epsilon, delta, **sizes)


@register("threshold", "radius", "learning_rate", "rho", "key")
@dataclass(frozen=True, kw_only=True)
class _PrintedStep(ShrunkenStep):
    """A step whose noise has sqrt(s) in place of ||w||_1, as line 6 of Algorithm 3."""

    def estimator_at(self, params: jax.Array) -> Winsorization:
        size = self.radius * math.sqrt(self.sparsity)
        return Winsorization(self.threshold**2 * (1 + size))


def sparse_regression(features, targets, *, key, epsilon, delta, sparsity) -> Solution:
    """004, Algorithm 3, with the threshold and the step size of section 6.2.

    Algorithm 4 has b = 2 lambda sqrt(3 s L) / epsilon.
    """
    num_samples, num_features = features.shape
    num_steps = max(1, math.floor(math.log(num_samples)))
    start, data = jnp.zeros(num_features, features.dtype), (features, targets)
    rho, privacy = _peeling(data, sparsity, 5 / 24, epsilon, delta)
    batches = Batches.of(data, num_steps, Disjoint(), Execution())
    threshold = (num_samples * epsilon / (sparsity * num_steps)) ** 0.25
    settings = {"radius": 1.0, "learning_rate": 0.5, "sparsity": sparsity}
    settings |= {"rho": rho, "noise": "laplace", "threshold": threshold}
    step = _PrintedStep(loss_fn=losses.squared, batches=batches, **settings)
    params, state = iterate(step, start, data, key=key, execution=Execution())
    return Solution(params, privacy, step.stats(state.sensitivity))


def hard_thresholding(
    loss_fn, params, data, *, epsilon, delta, sparsity, estimator, **options
) -> Solution:
    """004, Algorithm 5, by smoothed truncation; 003, Algorithm 5, by truncation."""
    share = 5 / 64  # 003: b = 4 lambda sqrt(2 s L) / epsilon
    if isinstance(estimator, SmoothedTruncation):
        # 004, Algorithm 4: b = 2 lambda sqrt(3 s L) / epsilon; and Algorithm 5, line 7:
        # lambda = 4 sqrt(2) k eta / m, where 2 M k eta / m holds.
        share = 5 / 24 / (3 * _excess(estimator)) ** 2
    rho, privacy = _peeling(data, sparsity, share, epsilon, delta)
    options |= {"epsilon": 3 * math.sqrt(2 * sparsity * rho / 5), "delta": 0.0}
    options |= {"sparsity": sparsity, "estimator": estimator}
    solve = solvers.dp_iterative_hard_thresholding
    solution = solve(loss_fn, params, data, **options)
    return dataclasses.replace(solution, privacy=privacy)


def l1_regression(
    features,
    targets,
    *,
    key,
    epsilon,
    candidates,
    moment_order=2.0,
    residual_moment_bound=1.0,
    truncation=None,
) -> Solution:
    """000, Algorithms 1 and 2: the exponent is twice that of epsilon-DP.

    By default the truncation minimizes the bound (14), or (26) for orders below 2.
    """
    log_order = math.log(moment_order)
    if truncation is None:
        deviation = math.log(len(candidates) / 0.01) / len(targets)
        if moment_order == 2:
            bias = 2.5 * residual_moment_bound
            deviation *= 3 + 4 * log_order / epsilon
        else:
            bias = 2**moment_order * residual_moment_bound / moment_order
            deviation *= 8 * log_order / epsilon
        best = (deviation / ((moment_order - 1) * bias)) ** (1 / moment_order)
        truncation = float(best)
    fixed_point = FixedPoint.of(len(targets), moment_order)
    blocks = row_blocks(features, targets, truncation, fixed_point)
    scores = chunk_scores(blocks, candidates.T.astype(features.dtype), fixed_point)
    spent = 2 * epsilon
    index = exponential(key, scores, epsilon=spent, sensitivity_range=2.0)
    event = selection_event(spent, mechanism="exponential")
    privacy = PrivacyGuarantee.of(spent, 0.0, dp_event=event, num_samples=len(targets))
    return Solution(candidates[index], privacy, {"truncation": truncation})


def procedure_3(
    epsilon,
    delta,
    *,
    num_samples,
    num_features,
    regularization,
    curvature_bound,
    derivative_bound=1.0,
) -> ObjectiveNoise:
    """002, Procedure 3, with the private one of its two roots.

    Let e = epsilon - 2 log(1 + c / (N lambda)) and Delta = 0 if that e is positive,
    else e = epsilon / 2 and Delta = c / (N (e^(epsilon / 4) - 1)) - lambda. With q^2
    the 1 - delta quantile of chi-square with d degrees of freedom,

        sigma = L (q + sqrt(q^2 + 2 e)) / e.

    The printed equation, P(chi^2 <= ((sigma^2 e - 2) / (2 sigma))^2) = 1 - delta, also
    holds at a small sigma with sigma^2 e < 2, which is not private.
    """
    remaining, extra = 0.0, 0.0
    if regularization > 0:
        ratio = curvature_bound / (num_samples * regularization)
        remaining = epsilon - 2 * math.log1p(ratio)
    if remaining <= 0:
        remaining = epsilon / 2
        least = curvature_bound / (num_samples * math.expm1(epsilon / 4))
        extra = least - regularization
    quantile = math.sqrt(float(scipy.stats.chi2.isf(delta, num_features)))
    stddev = (quantile + math.sqrt(quantile**2 + 2 * remaining)) / remaining
    return ObjectiveNoise(stddev * derivative_bound, extra)
