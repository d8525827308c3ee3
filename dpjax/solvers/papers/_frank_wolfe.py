"""Private Frank-Wolfe over a polytope (paper 004, Algorithm 1)."""

import math

import optax

from dpjax import _validate
from dpjax._sharding import check_key_of_rows
from dpjax._tree import arrays, num_coordinates
from dpjax._types import Key, LossFn, PyTree, Scalar
from dpjax.batching import Disjoint, Full
from dpjax.constraints._constraint import VertexConstraint
from dpjax.estimators import Estimator, SmoothedTruncation
from dpjax.solvers.papers._vertex_choice import (
    check_num_steps,
    check_start,
    choose_vertices,
    default_num_steps,
)
from dpjax.solvers.training._calibration import FAILURE_PROB, Choices, unit_of
from dpjax.solvers.training._loop import Execution, check_steps
from dpjax.solvers.training._solution import Solution


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

    w <- w + eta_t (v - w), with the vertex v chosen by its score -<v, g> under noise,
    g the robust mean of per-sample gradients. The error grows with the logarithm of the
    number of vertices, not with the dimension.

    Args:
        loss_fn: `loss_fn(params, example) -> scalar`.
        params: where to start, in the set; public.
        data: pytree, leaves of shape (n, ...); n is public.
        key: a typed key.
        epsilon: privacy of the whole run, positive.
        delta: privacy of the whole run. With 0, which gives pure epsilon-DP, steps use
            disjoint batches, as in the paper; otherwise each step uses all records.
        constraint: `L1Ball`, `Simplex` or `Polytope`.
        estimator: the robust mean. By default the smoothed truncation whose scale
            minimizes the bound of a choice's error for `moment_bound`.
        moment_bound: a public bound on the second moment of every coordinate of a
            gradient, for the default estimator and `stats`. Privacy holds even if the
            bound is wrong.
        num_steps: T; by default floor((n epsilon)^(1/3)) on disjoint batches, as in
            the paper, and floor((n epsilon)^(2/5)) on all records.
        learning_rate: eta, or a schedule of the step 0, 1, ...; by default 2 / (t + 3).
            For losses that are not convex, such as `losses.biweight`, the paper's
            theory uses 1 / sqrt(T).
        execution: how it runs: microbatches, callback, checkpoint.

    Returns:
        A `Solution`. Its stats hold num_steps, batch_size, selection_epsilon (of one
        choice), linf_sensitivity, and the default estimator's scale and beta. With
        probability 0.99 the score of each choice is at most selection_error below the
        best one: a start with a smaller excess risk may be better than the result.
        is_informative is false if that error exceeds all differences of scores that
        moment_bound allows, so that any start may be as good.

    Privacy:
        (epsilon, delta)-DP under replace-one for every input, and so are all iterates
        together. On disjoint batches a replaced record affects one choice, made by
        permute-and-flip with the whole epsilon. On all records T choices share the
        budget (`accounting.selection_epsilon`). For the sensitivity of the scores see
        `transforms.frank_wolfe`. The loss function, params, the set, steps and T must
        not depend on the data.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from dpjax import losses
        >>> from dpjax.constraints import L1Ball
        >>> features = np.random.default_rng(0).normal(size=(10_000, 50))
        >>> targets = features[:, 7]
        >>> solution = dp_frank_wolfe(
        ...     losses.squared, jnp.zeros(50), (features, targets),
        ...     key=jax.random.key(1), epsilon=1.0, constraint=L1Ball(1.0))
        >>> print(int(np.argmax(solution.params)), solution.privacy.delta)
        7 0.0

    Reference:
        Hu, Ni, Xiao, Wang (2022), Algorithm 1, Theorems 1 to 3.
    """
    _validate.positive(epsilon=epsilon, moment_bound=moment_bound)
    _validate.delta(delta)
    check_key_of_rows(key, data)
    data = arrays(data)
    num_samples = _validate.leading_size(data, "data")
    check_start(constraint, params)
    batching = Disjoint() if delta == 0 else Full()
    if num_steps is None:
        power = 1 / 3 if delta == 0 else 2 / 5
        num_steps = default_num_steps(num_samples, epsilon, power)
    check_steps(num_samples, num_steps, batching)
    check_num_steps(num_steps, num_samples)
    batch_size = int(batching.divisor(num_samples, num_steps))
    num_composed = batching.sampling(num_samples, num_steps).num_steps
    choices = Choices.tight(num_composed, epsilon, delta)
    num_params = num_coordinates(params)
    stats: dict[str, Scalar] = {}
    if estimator is None:
        estimator = _best_estimator(
            choices,
            moment_bound,
            batch_size=batch_size,
            num_steps=num_steps,
            num_coordinates=num_params,
            num_vertices=constraint.num_vertices(num_params),
        )
        stats = {"scale": estimator.scale, "beta": estimator.beta}
    _validate.bounded_estimator(estimator)
    params, released = choose_vertices(
        loss_fn,
        params,
        data,
        key=key,
        choices=choices,
        constraint=constraint,
        estimator=estimator,
        learning_rate=learning_rate,
        num_steps=num_steps,
        batching=batching,
        execution=execution,
    )
    largest_score = constraint.diameter("l1", num_params) * moment_bound**0.5
    released["is_informative"] = released["selection_error"] < largest_score
    return Solution(
        params, choices.guarantee(num_samples, unit_of(data)), stats | released
    )


def _best_estimator(
    choices: Choices,
    moment_bound: float,
    *,
    batch_size: int,
    num_steps: int,
    num_coordinates: int,
    num_vertices: int,
) -> SmoothedTruncation:
    """Returns the scale that minimizes the bound of a choice's error.

    With probability 1 - zeta, and M the largest |h_beta|, all scores of all T steps err
    by at most the l1 diameter times

        tau (1 + 1/beta) / (2 s) + (s/m) (beta/2 + log(2dT/zeta)
                                          + 2 M log(|V|T/zeta) / epsilon_0),

    the error of the smoothed truncation (001, Lemma 3) and of a selection whose scores
    range over 2 s M / m per unit of the diameter.
    """
    beta = 2 * math.log(1 / FAILURE_PROB)  # as in 001, Algorithm 4
    supremum = float(SmoothedTruncation(1.0, beta).limit)
    selection = 2 * supremum * math.log(num_vertices * num_steps / FAILURE_PROB)
    statistics = beta / 2 + math.log(2 * num_coordinates * num_steps / FAILURE_PROB)
    cost = statistics + selection / choices.epsilon
    gain = batch_size * moment_bound * (1 + 1 / beta) / 2
    return SmoothedTruncation(math.sqrt(gain / cost), beta)
