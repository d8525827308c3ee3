"""Private hard thresholding (003: Algorithm 5; 004: Algorithms 3 and 5)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from dp_accounting import ZCDpEvent

from dpjax import _validate, losses
from dpjax._rounding import ROUNDED_UP
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays, clip, like, linear_data, num_coordinates, register
from dpjax._types import Key, LossFn, PeelingNoise, PyTree, Scalar
from dpjax.accounting import PrivacyGuarantee, epsilon_to_rho
from dpjax.batching import Disjoint
from dpjax.constraints import L2Ball
from dpjax.estimators import Estimator, Winsorization
from dpjax.solvers.statistics._noisy_mean import noisy_mean
from dpjax.solvers.training._calibration import FAILURE_PROB, unit_of
from dpjax.solvers.training._loop import Batches, Execution, OptaxStep, iterate
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import peel, project

_MEAN_SQUARE_SHARE = 0.02  # share of rho for the mean square that sets the step size


def dp_iterative_hard_thresholding(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float = 0.0,
    sparsity: int,
    estimator: Estimator,
    learning_rate: float,
    num_steps: int | None = None,
    execution: Execution = Execution(),
) -> Solution:
    """Minimizes the mean loss over sparse parameters, with private hard thresholding.

    A step replaces w by the s largest entries of w - eta g, which are chosen and
    released with noise (`mechanisms.peeling`). g is the robust mean of per-example
    gradients on the step's own batch of floor(n / T) records. With `SmoothedTruncation`
    this is Algorithm 5 of paper 004, with `Truncation` Algorithm 5 of paper 003.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in [0, 1); 0 gives pure epsilon-DP, with
            Laplace noise that grows with s instead of sqrt(s).
        sparsity: s, the number of nonzero parameters. The theory asks for a larger
            number than the true parameters have; the papers' experiments use twice it.
        estimator: the robust mean, with a finite sensitivity; its scale is public.
        learning_rate: eta, in theory 2 / (3 times the loss's smoothness).
        num_steps: T; by default floor(log n), as in the papers.
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size, linf_sensitivity (of eta g),
        noise_scale (of each released entry), and noise_norm = noise_scale sqrt(s).
        Parameters with an l2 norm below noise_norm are hidden by the last step's noise.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together: a replaced record lies in one batch, and the peeling of this batch has
        the whole budget (`transforms.peel`). The loss function, params, eta, s and T
        must not depend on the data.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from dpjax import losses
        >>> from dpjax.estimators import SmoothedTruncation
        >>> features = np.random.default_rng(0).normal(size=(20_000, 50))
        >>> targets = features[:, 7] - features[:, 9]
        >>> solution = dp_iterative_hard_thresholding(
        ...     losses.squared, jnp.zeros(50), (features, targets),
        ...     key=jax.random.key(1), epsilon=1.0, delta=1e-6, sparsity=2,
        ...     estimator=SmoothedTruncation(5.0), learning_rate=0.6)
        >>> print(np.flatnonzero(solution.params))
        [7 9]

    Reference:
        Hu et al. (2022), Algorithm 5, Theorem 8; Tao et al. (2022), Algorithm 5.
    """
    _validate.loss_fn(loss_fn)
    _validate.positive(epsilon=epsilon, learning_rate=learning_rate)
    _validate.delta(delta)
    check_key_of_rows(key, data)
    check_sparsity(sparsity, params)
    _validate.bounded_estimator(estimator)
    data = arrays(data)
    num_samples = _validate.leading_size(data, "data")
    if num_steps is None:
        num_steps = papers_num_steps(num_samples)
    noise, rho = "gumbel", epsilon_to_rho(epsilon, delta)
    if delta == 0:
        # The scale of the noise is then 3 s / epsilon times the sensitivity.
        noise, rho = "laplace", 5 * epsilon**2 / (18 * sparsity)
    step = PeeledStep(
        loss_fn=loss_fn,
        batches=Batches.of(data, num_steps, Disjoint(), execution),
        estimator=estimator,
        learning_rate=learning_rate,
        rho=rho,
        sparsity=sparsity,
        noise=noise,
    )
    params, _ = iterate(step, params, data, key=key, execution=execution)
    event, unit = ZCDpEvent(rho), unit_of(data)
    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples, unit=unit
    )
    return Solution(params, privacy, step.stats(step.sensitivity_at(params)))


def dp_sparse_linear_regression(
    features: jax.Array,
    targets: jax.Array,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    sparsity: int,
    threshold: float | None = None,
    learning_rate: float | None = None,
    num_steps: int | None = None,
    fourth_moment_bound: float = 1.0,
    radius: float = 1.0,
    execution: Execution = Execution(),
) -> Solution:
    """Fits a linear model with few nonzero weights, on clipped data.

    Features and targets are clipped to ±K. Each step uses its own batch of
    m = floor(n / T) records: it computes w - (eta/m) sum x (<x, w> - y), peels this to
    s entries (`mechanisms.peeling`), and projects them onto the l2 ball.

    Args:
        features: shape (n, d); n is public.
        targets: shape (n,).
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in (0, 1).
        sparsity: s, the number of nonzero weights.
        threshold: K, as in `dp_lasso`.
        learning_rate: eta; by default 2/3 of the inverse mean square of the clipped
            features, for 2 percent of the budget; pass less for correlated features.
        num_steps: T; by default the best trade-off of noise and convergence, at most
            floor(log n): a single step, unless n epsilon is large for s.
        fourth_moment_bound: a public bound on E x_j^4 and E y^4, as in `dp_lasso`.
        radius: radius of the l2 ball onto which the weights are projected.
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution` with weights of shape (d,). Its stats hold threshold,
        learning_rate, num_steps, batch_size; linf_sensitivity, noise_scale (per entry)
        and noise_norm of the last step; and is_informative: noise_norm < radius.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together. w is released, and on clipped data an entry of the gradient g is
        within K^2 (1 + ||w||_1). So replacing one of m records moves eta g by at most
        2 eta K^2 (1 + ||w||_1) / m in the linf norm (the paper has 1 + sqrt(s) for
        1 + ||w||_1). A replaced record is in one batch, and also affects the mean
        square, which a Gaussian mechanism releases.

    Example:
        >>> import jax, numpy as np
        >>> features = np.random.default_rng(0).normal(size=(20_000, 50))
        >>> targets = 0.6 * features[:, 7] - 0.8 * features[:, 9]
        >>> solution = dp_sparse_linear_regression(
        ...     features, targets, key=jax.random.key(1), epsilon=1.0, delta=1e-6,
        ...     sparsity=2)
        >>> print(np.flatnonzero(solution.params))
        [7 9]

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithm 3, Theorems 6 and 7, with other K, T, eta.
    """
    _validate.positive(epsilon=epsilon, fourth_moment_bound=fourth_moment_bound)
    _validate.positive(radius=radius)
    _validate.probability(delta=delta)
    if learning_rate is not None:
        _validate.positive(learning_rate=learning_rate)
    check_key_of_rows(key, (features, targets))
    data = features, targets = linear_data(features, targets)
    num_samples, num_features = features.shape
    params = jnp.zeros(num_features, features.dtype)
    check_sparsity(sparsity, params)
    rho = epsilon_to_rho(epsilon, delta)
    sizes = num_samples, num_features, sparsity
    design = _Design(*sizes, rho, fourth_moment_bound, radius)
    if num_steps is None:
        num_steps = design.best_num_steps()
    batches = Batches.of(data, num_steps, Disjoint(), execution)
    if threshold is None:
        threshold = design.best_threshold(num_steps)
    _validate.within(1e-8, 1e12, threshold=threshold)
    share = _MEAN_SQUARE_SHARE if learning_rate is None else 0.0
    of_steps = (1 - share) * rho

    key, scale_key = jax.random.split(key)
    rate: Scalar | None = learning_rate
    if rate is None:
        axes, cost = batches.axis_name, share * rho
        rate = cast(Scalar, _learning_rate(axes, features, threshold, scale_key, cost))
    step = ShrunkenStep(
        loss_fn=losses.squared,
        batches=batches,
        threshold=threshold,
        radius=radius,
        learning_rate=rate,
        rho=of_steps,
        sparsity=sparsity,
        noise="gumbel",
    )
    params, state = iterate(step, params, data, key=key, execution=execution)
    stats = step.stats(state.sensitivity)
    stats |= {"threshold": threshold, "learning_rate": rate}
    stats["is_informative"] = stats["noise_norm"] < radius
    event = ZCDpEvent(of_steps + share * rho)
    privacy = PrivacyGuarantee.of(
        epsilon, delta, dp_event=event, num_samples=num_samples
    )
    return Solution(params, privacy, stats)


@register("estimator", "learning_rate", "rho", "key")
@dataclass(frozen=True, kw_only=True)
class PeeledStep(OptaxStep):
    """Step to the peeling of w - eta g (003, 004: Algorithm 5)."""

    estimator: Estimator | None = None
    learning_rate: Scalar
    rho: Scalar  # zCDP cost of one step
    sparsity: int  # s
    noise: PeelingNoise  # "gumbel", or "laplace" as in the papers

    def estimator_at(self, params: PyTree) -> Estimator:
        """Returns the robust mean; its bound may depend on the released parameters."""
        del params
        return cast(Estimator, self.estimator)

    def sensitivity_at(self, params: PyTree) -> Scalar:
        """Returns the linf sensitivity of eta g."""
        estimator, size = self.estimator_at(params), num_coordinates(params)
        change = estimator.sensitivity(self.batches.divisor, size).linf
        return self.learning_rate * change * ROUNDED_UP

    def stats(self, sensitivity: Scalar) -> dict[str, Scalar]:
        """Returns the stats of a solver's run by name: sizes, sensitivity, noise."""
        # `sensitivity` is the linf sensitivity of eta g, which is peeled.
        rounds = 1.0 if self.noise == "gumbel" else 2.5
        scale = sensitivity * math.sqrt(rounds * self.sparsity / self.rho)
        return {
            "num_steps": self.batches.start.num_steps,
            "batch_size": self.batches.divisor,
            "linf_sensitivity": sensitivity,
            "noise_scale": scale,
            "noise_norm": scale * math.sqrt(self.sparsity),
        }

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the optax chain of a step from params, for per-example gradients."""
        # It takes their robust mean g, without noise, moves to w - eta g, and releases
        # the s largest entries with noise. It may depend on params: they are public.
        estimator = self.estimator_at(params)
        return optax.chain(
            self.mean(estimator),
            optax.sgd(self.learning_rate),
            peel(
                self.sparsity,
                rho=self.rho,
                sensitivity=self.sensitivity_at(params),
                limit=self.learning_rate * cast(Scalar, estimator.limit) * ROUNDED_UP,
                key=cast(Key, self.key),
                noise=self.noise,
            ),
        )


def papers_num_steps(num_samples: int) -> int:
    """Returns floor(log n), at least 1."""
    return max(1, math.floor(math.log(num_samples)))


def check_sparsity(sparsity: int, params: PyTree) -> None:
    """Requires 1 <= sparsity <= the number of entries of params."""
    _validate.count(sparsity=sparsity)
    num_params = num_coordinates(params)
    rule = f"at most the number of parameters, {num_params}"
    _validate.require(sparsity <= num_params, "sparsity", sparsity, rule)


class _Design(NamedTuple):
    """The public numbers that determine the defaults."""

    num_samples: int
    num_features: int
    sparsity: int
    rho: float
    fourth_moment_bound: float
    radius: float

    def best_threshold(self, num_steps: int) -> float:
        """Returns the bound K to which data are clipped if the caller gives none."""
        # It has the least bound on the error of an entry of a step's mean gradient.
        # Per unit of 1 + ||w||_1 and with probability 1 - zeta, clipping biases an
        # entry by at most 2 M / K^2, because E |x_j x_k| 1(|x_j| > K) <= M / K^2. Noise
        # and outliers (Bernstein) move it by K^2 c / m with
        # c = 2 sqrt(s/rho) sqrt(2 l) + (4/3) l and l = log(2 d T / zeta).
        log_failure = math.log(2 * self.num_features * num_steps / FAILURE_PROB)
        noise = math.sqrt(self.sparsity / self.rho)
        cost = 2 * noise * math.sqrt(2 * log_failure) + 4 / 3 * log_failure
        batch_size = max(1, self.num_samples // num_steps)
        return (2 * self.fourth_moment_bound * batch_size / cost) ** 0.25

    def best_num_steps(self) -> int:
        """Returns the default number of steps, for the least modeled error of w."""
        # With eta = 2/3 of the inverse curvature (with moments at their bound, sqrt(M))
        # each step leaves a third of the distance, and adds noise of stddev b to each
        # of s entries. The choice among d noisy entries loses entries of up to
        # b sqrt(2 log(d/s)), at worst all s. b grows with 1 + ||w||_1, which is 1 in
        # the first step and up to 1 + R sqrt(s) later, so later steps are expensive.
        rate = 2 / 3 / math.sqrt(self.fourth_moment_bound)
        largest_l1 = self.radius * math.sqrt(self.sparsity)
        spread = 1 + 2 * math.log(self.num_features / self.sparsity)

        def squared_error(num_steps: int) -> float:
            """Returns the modeled squared l2 error after all steps, to minimize."""
            batch_size = max(1, self.num_samples // num_steps)
            sensitivity = 2 * rate * self.best_threshold(num_steps) ** 2 / batch_size
            noise = sensitivity * math.sqrt(self.sparsity / self.rho)
            added = self.sparsity * spread * noise**2
            error = self.radius**2 / 9 + added
            for _ in range(num_steps - 1):
                error = error / 9 + added * (1 + largest_l1) ** 2
            return error

        candidates = range(1, papers_num_steps(self.num_samples) + 1)
        return min(candidates, key=squared_error)


class ShrunkenState(NamedTuple):
    """State of the optax chain, and the linf sensitivity of its last step."""

    chain_state: optax.OptState
    sensitivity: Scalar


@register("threshold", "radius", "learning_rate", "rho", "key")
@dataclass(frozen=True, kw_only=True)
class ShrunkenStep(PeeledStep):
    """Step to Proj(peeling of w - (eta/m) sum x (<x, w> - y)) on clipped data."""

    threshold: Scalar
    radius: Scalar

    def init(self, params: jax.Array) -> ShrunkenState:
        return ShrunkenState(super().init(params), self.sensitivity_at(params))

    def __call__(self, params, state, batch, is_padding_example):
        # The batch is clipped here, so that no separate pass over the data is needed.
        batch = clip(batch, self.threshold)
        moved, chain_state = super().__call__(
            params, state.chain_state, batch, is_padding_example
        )
        return moved, ShrunkenState(chain_state, self.sensitivity_at(params))

    def optimizer(self, params: jax.Array) -> optax.GradientTransformation:
        into_ball = project(L2Ball(self.radius).project)
        return optax.chain(super().optimizer(params), into_ball)

    def estimator_at(self, params: jax.Array) -> Winsorization:
        # |x_j (<x, w> - y)| <= K (K ||w||_1 + K); the paper has sqrt(s), not ||w||_1.
        size = jnp.sum(jnp.abs(params))
        return Winsorization(like(self.threshold, params) ** 2 * (1 + size))


@partial(jax.jit, static_argnums=0)
def _learning_rate(axis_name, features, threshold, key, rho) -> Scalar:
    """Releases the default step size of the sparse regression, with rho-zCDP."""
    # It is 2/3 of the inverse of the noisy mean square of all features, clipped to
    # ±threshold. axis_name has the mesh axes over which rows are sharded, or is None.
    # Squares are in [0, K^2]; minus K^2 / 2 they are within ±K^2 / 2.
    half = like(threshold, features) ** 2 / 2
    estimator = Winsorization(half)
    multiplier = jnp.sqrt(0.5 / rho)
    squares = jnp.mean(clip(features, threshold) ** 2, axis=1) - half
    noisy = noisy_mean(estimator, squares, multiplier, key, axis_name) + half
    stddev = estimator.noise_parameters(multiplier, len(features), 1)["stddev"]
    # Noise may make the mean square nearly zero or negative, so it is raised to at
    # least four standard deviations of the noise.
    return 2 / 3 / jnp.maximum(noisy, like(4 * stddev, noisy))
