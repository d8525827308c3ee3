"""Private LASSO: Frank-Wolfe on shrunken data (paper 004, Algorithm 2)."""

import math

import jax
import jax.numpy as jnp

from dpjax import _validate, losses
from dpjax._sharding import check_key_of_rows
from dpjax._tree import clip, linear_data
from dpjax._types import Key, PyTree
from dpjax.batching import Full
from dpjax.constraints import L1Ball
from dpjax.estimators import Winsorization
from dpjax.solvers.papers._frank_wolfe import checked_num_steps, choose_vertices
from dpjax.solvers.training._calibration import FAILURE_PROB, Choices
from dpjax.solvers.training._loop import Batches, Execution
from dpjax.solvers.training._solution import Solution


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
        budget (`accounting.selection_epsilon`).

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
        threshold = _best_threshold(
            choices, num_samples, num_features, fourth_moment_bound
        )
    _validate.within(1e-8, 1e12, threshold=threshold)
    # The gradients of `_scaled_squared` on clipped data are within K^2, so that the
    # Winsorization changes none of them: it only states their sensitivity.
    params, released = choose_vertices(
        _scaled_squared,
        jnp.zeros(num_features, features.dtype),
        clip((features, targets), threshold),
        key=key,
        choices=choices,
        constraint=ball,
        estimator=Winsorization(threshold**2),
        batches=batches,
        execution=execution,
    )
    largest_score = 2 * radius * fourth_moment_bound**0.5
    is_informative = released["selection_error"] < largest_score
    stats = {"threshold": threshold, **released, "is_informative": is_informative}
    return Solution(params, choices.guarantee(num_samples), stats)


def _scaled_squared(params: PyTree, example: PyTree) -> jax.Array:
    """Returns the squared loss over 1 + ||w||_1, with gradients within K^2."""
    # The factor is the same for all vertices, so it changes no choice.
    size = jax.lax.stop_gradient(jnp.sum(jnp.abs(params)))
    return losses.squared(params, example) / (1 + size)


def _best_threshold(
    choices: Choices, num_samples: int, num_features: int, fourth_moment_bound: float
) -> float:
    """Returns the clipping bound K that minimizes the error of a choice's score."""
    # Per unit of 2 r (1 + ||w||_1) and with probability 1 - zeta, clipping biases a
    # score by at most 2 M / K^2, since E |x_j x_k| 1(|x_j| > K) <= M / K^2; the choice
    # and outliers (Bernstein) move it by K^2 (2 / epsilon_0 + 4/3) log(2dT/zeta) / n.
    num_choices = 2 * num_features * choices.num_composed
    cost = (2 / choices.epsilon + 4 / 3) * math.log(num_choices / FAILURE_PROB)
    return (2 * fourth_moment_bound * num_samples / cost) ** 0.25
