"""Private Frank-Wolfe over a polytope, and LASSO (paper 004, Algorithms 1 and 2)."""

import math
from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import optax

from dpjax import _validate, losses
from dpjax._rounding import LARGEST
from dpjax._sharding import check_key_of_rows
from dpjax._tree import Static, arrays, clip, linear_data, num_coordinates, register
from dpjax._types import Key, LossFn, PyTree, Scalar, SelectionName
from dpjax.batching import Disjoint, Full
from dpjax.constraints import L1Ball
from dpjax.constraints._constraint import VertexConstraint
from dpjax.estimators import Estimator, SmoothedTruncation, Winsorization
from dpjax.solvers.training._calibration import FAILURE_PROB, Choices, unit_of
from dpjax.solvers.training._loop import Batches, Execution, OptaxStep, iterate
from dpjax.solvers.training._solution import Solution
from dpjax.transforms import frank_wolfe


def dp_frank_wolfe(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float = 0.0,
    constraint: VertexConstraint,
    estimator: Estimator | None = None,
    moment_bound: float = 1.0,
    num_steps: int | None = None,
    learning_rate: optax.ScalarOrSchedule | None = None,
    execution: Execution = Execution(),
) -> Solution:
    """Minimizes the mean loss over a polytope, by private choices of its vertices.

    A step is w <- w + eta_t (v - w), where the vertex v is chosen by its noisy score
    -<v, g>, and g is the robust mean of per-example gradients. The error grows with the
    logarithm of the number of vertices, not with the dimension.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start, in constraint; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run. If delta is 0, the steps use disjoint batches,
            as in the paper; otherwise each step uses all records.
        constraint: `L1Ball`, `Simplex` or `Polytope`.
        estimator: the robust mean; by default the best `SmoothedTruncation`.
        moment_bound: a public bound on the second moment of every coordinate of a
            gradient. Privacy holds even if the bound is wrong.
        num_steps: T; by default floor((n epsilon)^(1/3)) on disjoint batches, as in
            the paper, and floor((n epsilon)^(2/5)) on all records.
        learning_rate: eta, or a schedule of the step 0, 1, ...; by default 2 / (t + 3).
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size, selection_epsilon (of one
        choice), linf_sensitivity, and the default estimator's scale and beta. With
        probability 0.99 the score of each choice is at most selection_error below the
        best score. If is_informative is false, this error exceeds all differences of
        scores that moment_bound allows, so that any start may be as good.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together. On disjoint batches a replaced record affects one choice, made by
        permute-and-flip with the whole epsilon. On all records T choices share it:
        `docs/privacy/proofs/composition.md`, 3.3. For the sensitivity of scores see
        `transforms.frank_wolfe`. No argument but data may depend on the records.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from dpjax import constraints, losses
        >>> features = np.random.default_rng(0).normal(size=(10_000, 50))
        >>> solution = dp_frank_wolfe(
        ...     losses.squared, jnp.zeros(50), (features, features[:, 7]),
        ...     key=jax.random.key(1), epsilon=1.0, constraint=constraints.L1Ball(1.0))
        >>> print(int(np.argmax(solution.params)), solution.privacy.delta)
        7 0.0

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithm 1, Theorems 1 to 3.
    """
    _validate.loss_fn(loss_fn)
    _validate.positive(epsilon=epsilon, moment_bound=moment_bound)
    _validate.delta(delta)
    check_key_of_rows(key, data)
    data = arrays(data)
    num_samples = _validate.leading_size(data, "data")
    _check_start(constraint, params)
    if not callable(learning_rate) and learning_rate is not None:
        _validate.within(0, 1, learning_rate=learning_rate)
    batching, power = (Disjoint(), 1 / 3) if delta == 0 else (Full(), 2 / 5)
    num_steps = checked_num_steps(num_steps, num_samples, epsilon, power)
    batches = Batches.of(data, num_steps, batching, execution)
    # A record affects one choice on disjoint batches, otherwise all T choices.
    num_composed = batching.sampling(num_samples, num_steps).num_steps
    choices = Choices.tight(num_composed, epsilon, delta)
    stats: dict[str, Scalar] = {}
    if estimator is None:
        size = num_coordinates(params)
        sizes = size, constraint.num_vertices(size)
        estimator = _best_estimator(choices, moment_bound, batches, sizes)
        stats = {"scale": estimator.scale, "beta": estimator.beta}
    _validate.bounded_estimator(estimator)
    params, released = choose_vertices(
        loss_fn,
        params,
        data,
        choices,
        constraint,
        estimator,
        batches,
        key=key,
        learning_rate=learning_rate,
        execution=execution,
    )
    diameter = constraint.diameter("l1", num_coordinates(params))
    is_informative = released["selection_error"] < diameter * moment_bound**0.5
    stats |= released | {"is_informative": is_informative}
    return Solution(params, choices.guarantee(num_samples, unit_of(data)), stats)


def dp_lasso(
    features: jax.Array,
    targets: jax.Array,
    *,
    key: Key,
    epsilon: float,
    delta: float = 0.0,
    radius: float = 1.0,
    threshold: float | None = None,
    num_steps: int | None = None,
    fourth_moment_bound: float = 1.0,
    execution: Execution = Execution(),
) -> Solution:
    """Fits a linear model in an l1 ball by Frank-Wolfe, on clipped data.

    Features and targets are clipped to ±K. From w = 0 on, a step is
    w <- w + eta_t (v - w) with eta_t = 2 / (t + 2). The vertex v of the ball is chosen
    privately by its score -<v, g>, g = (1/n) sum x (<x, w> - y).

    Args:
        features: shape (n, d); n is public.
        targets: shape (n,).
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run, in [0, 1).
        radius: r, the radius of the l1 ball, in units of the weights.
        threshold: K, in units of the features and of the targets, which should have
            similar scales; by default the best K for `fourth_moment_bound`.
        num_steps: T; by default floor((n epsilon)^(2/5)), as in the paper.
        fourth_moment_bound: a public bound on E x_j^4 and E y^4. Privacy holds even if
            the bound is wrong.
        execution: microbatches, callback, checkpoint.

    Returns:
        A `Solution` with weights of shape (d,). Its stats hold threshold, num_steps,
        batch_size, selection_epsilon (of one choice), and linf_sensitivity and
        selection_error for g / (1 + ||w||_1). If is_informative is false, this error
        exceeds all differences of scores that fourth_moment_bound allows, so that zero
        may be as good as the result.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together. w has been released, and on clipped data each entry of
        g / (1 + ||w||_1) lies within K^2. So the linf sensitivity of g / (1 + ||w||_1)
        is 2 K^2 / n, the scores range over 2 r times as much, and T choices share the
        budget: `docs/privacy/proofs/composition.md`, 3.3.

    Example:
        >>> import jax, numpy as np
        >>> features = np.random.default_rng(0).normal(size=(10_000, 50))
        >>> targets = 0.9 * features[:, 7]
        >>> solution = dp_lasso(features, targets, key=jax.random.key(1), epsilon=1.0,
        ...                     delta=1e-6)
        >>> print(int(np.argmax(solution.params)))
        7

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithm 2, Theorems 4 and 5, after Talwar,
        Thakurta, Zhang (2015), "Nearly optimal private LASSO".
    """
    _validate.positive(epsilon=epsilon, fourth_moment_bound=fourth_moment_bound)
    _validate.delta(delta)
    check_key_of_rows(key, (features, targets))
    ball = L1Ball(radius)
    features, targets = linear_data(features, targets)
    num_samples, num_features = features.shape
    num_steps = checked_num_steps(num_steps, num_samples, epsilon, 2 / 5)
    batches = Batches.of((features, targets), num_steps, Full(), execution)
    choices = Choices.tight(num_steps, epsilon, delta)
    if threshold is None:
        # This K minimizes a bound on the error of a vertex's score. Per unit of
        # 2 r (1 + ||w||_1) and with probability 1 - zeta, clipping biases it by at most
        # 2 M / K^2, M the fourth moment, as E |x_j x_k| 1(|x_j| > K) <= M / K^2; choice
        # and outliers (Bernstein) move it by K^2 (2/epsilon_0 + 4/3) log(2dT/zeta) / n.
        log_failure = math.log(2 * num_features * num_steps / FAILURE_PROB)
        cost = (2 / choices.epsilon + 4 / 3) * log_failure
        threshold = float((2 * fourth_moment_bound * num_samples / cost) ** 0.25)
    _validate.within(1e-8, 1e12, threshold=threshold)
    # The gradients of `_scaled_squared` on clipped data are within K^2, so that the
    # Winsorization changes none of them: it only states their sensitivity.
    params, released = choose_vertices(
        _scaled_squared,
        jnp.zeros(num_features, features.dtype),
        clip((features, targets), threshold),
        choices,
        ball,
        Winsorization(threshold**2),
        batches,
        key=key,
        execution=execution,
    )
    largest_score = 2 * radius * fourth_moment_bound**0.5
    is_informative = released["selection_error"] < largest_score
    stats = {"threshold": threshold, **released, "is_informative": is_informative}
    return Solution(params, choices.guarantee(num_samples), stats)


@register("estimator", "constraint", "epsilon", "learning_rate", "key")
@dataclass(frozen=True, kw_only=True)
class VertexStep(OptaxStep):
    """Step w <- w + eta_t (v_t - w) to a private vertex v_t (004, Alg. 1 and 2)."""

    estimator: Estimator
    constraint: VertexConstraint
    epsilon: Scalar
    learning_rate: Scalar | Static | None
    mechanism: SelectionName

    def sensitivity_at(self, params: PyTree) -> Scalar:
        """Returns the linf sensitivity of the mean gradient."""
        size = num_coordinates(params)
        return self.estimator.sensitivity(self.batches.divisor, size).linf

    def optimizer(self, params: PyTree) -> optax.GradientTransformation:
        """Returns the optax chain of a step, which takes per-example gradients."""
        # It forms their robust mean, without noise, and moves to a vertex that is
        # chosen privately by its score. Of `params` only the size is used.
        return optax.chain(
            self.mean(self.estimator),
            frank_wolfe(
                self.constraint,
                epsilon=self.epsilon,
                sensitivity=self.sensitivity_at(params),
                limit=cast(Scalar, self.estimator.limit),
                key=cast(Key, self.key),
                learning_rate=Static.value_of(self.learning_rate),
                mechanism=self.mechanism,
            ),
        )


def choose_vertices(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    choices: Choices,
    constraint: VertexConstraint,
    estimator: Estimator,
    batches: Batches,
    *,
    key: Key,
    execution: Execution,
    learning_rate: optax.ScalarOrSchedule | None = None,
) -> tuple[PyTree, dict[str, Scalar]]:
    """Returns the last iterate of Frank-Wolfe with private choices, and its stats."""
    # It serves `dp_lasso` and `dp_frank_wolfe`, which explains the stats. `choices` has
    # the mechanism and the epsilon of one choice.
    # epsilon must be finite in float32; a larger one gets more noise than it needs.
    epsilon = min(choices.epsilon, LARGEST)
    rate = Static(learning_rate) if callable(learning_rate) else learning_rate
    step = VertexStep(
        loss_fn=loss_fn,
        batches=batches,
        estimator=estimator,
        constraint=constraint,
        epsilon=epsilon,
        learning_rate=cast(Scalar | Static | None, rate),
        mechanism=choices.mechanism,
    )
    params, (_, state) = iterate(step, params, data, key=key, execution=execution)
    num_steps = batches.start.num_steps
    # For both mechanisms Pr[score < best - (range / epsilon) log(|V| / p)] <= p, with
    # p = FAILURE_PROB / T for each of T choices.
    num_choices = constraint.num_vertices(num_coordinates(params)) * num_steps
    unit = state.sensitivity_range / epsilon
    stats = {
        "num_steps": num_steps,
        "batch_size": batches.divisor,
        "selection_epsilon": epsilon,
        "linf_sensitivity": step.sensitivity_at(params),
        "selection_error": unit * math.log(num_choices / FAILURE_PROB),
    }
    return params, stats


def checked_num_steps(
    num_steps: int | None, num_samples: int, epsilon: float, power: float
) -> int:
    """Returns a run's number of steps in [1, n]; for None floor((n epsilon)^power)."""
    if num_steps is None:
        return min(num_samples, max(1, math.floor((num_samples * epsilon) ** power)))
    _validate.count(num_steps=num_steps)
    rule = f"at most the number of samples, {num_samples}"
    _validate.require(num_steps <= num_samples, "num_steps", num_steps, rule)
    return num_steps


def _check_start(constraint: VertexConstraint, params: PyTree) -> None:
    """Requires a constraint with vertices that contains params, the start of a run."""
    # Traced numbers cannot be compared, so they are not checked.
    rule = "a set with vertices: L1Ball, Simplex or Polytope"
    is_fine = isinstance(constraint, VertexConstraint)
    _validate.require(is_fine, "constraint", constraint, rule)
    numbers = [*jax.tree.leaves(params), *jax.tree.leaves(constraint)]
    if all(map(_validate.is_concrete, numbers)):
        with jax.ensure_compile_time_eval():  # under jit of the key or the data, too
            is_inside = bool(constraint.contains(params))
        _validate.require(is_inside, "params", params, f"a point of {constraint}")


def _best_estimator(
    choices: Choices, moment_bound: float, batches: Batches, sizes: tuple[int, int]
) -> SmoothedTruncation:
    """Returns the estimator of `dp_frank_wolfe` if its caller gives none."""
    # Its scale s minimizes a bound on the errors of the scores by which vertices are
    # chosen. All arguments are public; moment_bound is tau >= E g_j^2 for a gradient g,
    # and `sizes` are d, the number of coordinates, and |V|, the number of vertices.
    # With probability 1 - zeta, and M the largest |h_beta|, all scores of all T steps
    # err by at most the l1 diameter times
    #     tau (1 + 1/beta) / (2 s) + (s/m) (beta/2 + log(2dT/zeta)
    #                                       + 2 M log(|V|T/zeta) / epsilon_0).
    # These are the errors of the smoothed truncation (001, Lemma 3) and of a selection
    # by scores with a range of 2 s M / m per unit of the diameter.
    num_steps, batch_size = batches.start.num_steps, int(batches.divisor)
    num_coordinates, num_vertices = sizes
    beta = 2 * math.log(1 / FAILURE_PROB)  # as in 001, Algorithm 4
    supremum = float(SmoothedTruncation(1.0, beta).limit)
    selection = 2 * supremum * math.log(num_vertices * num_steps / FAILURE_PROB)
    statistics = beta / 2 + math.log(2 * num_coordinates * num_steps / FAILURE_PROB)
    cost = statistics + selection / choices.epsilon
    gain = batch_size * moment_bound * (1 + 1 / beta) / 2
    return SmoothedTruncation(math.sqrt(gain / cost), beta)


def _scaled_squared(params: PyTree, example: PyTree) -> jax.Array:
    """Returns the squared loss over 1 + ||w||_1, with gradients within K^2."""
    # The factor is the same for all vertices, so it changes no choice.
    size = jax.lax.stop_gradient(jnp.sum(jnp.abs(params)))
    return losses.squared(params, example) / (1 + size)
