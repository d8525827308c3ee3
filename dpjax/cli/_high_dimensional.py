"""Solver arguments from options: methods for many features, and l1 regression.

The parameters of a function are the options that its method reads; it returns the
arguments of the solver.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax.cli._descent import Facts, check_steps, choose_estimator
from dpjax.cli._settings import EstimatorName
from dpjax.constraints import Box, L1Ball, halton_net

_MOST_NUMBERS = 2**28  # in all candidates together: 1 GiB
_MOST_FEATURES_OF_A_BOX = 10  # beyond, halton_net's points lie on lines


def frank_wolfe(
    facts: Facts,
    *,
    radius: float = 1.0,
    estimator: EstimatorName | None = None,
    scale: float | None = None,
    moment_bound: float | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """Checks the options of `dp_frank_wolfe` and returns its arguments."""
    is_paper = facts.calibration == "paper"
    if learning_rate is not None:
        _validate.within(0, 1, **{"--learning-rate": learning_rate})
    rule = "another one with --method frank-wolfe"
    _validate.require(estimator != "median-of-means", "--estimator", estimator, rule)
    is_smoothed = estimator in (None, "smoothed-truncation")
    rule = "smoothed-truncation with --calibration paper, with --method frank-wolfe"
    _validate.require(is_smoothed or not is_paper, "--estimator", estimator, rule)
    rule = f"given with --method frank-wolfe and --estimator {estimator}"
    is_fine = is_smoothed or scale is not None or estimator == "clipping"
    _validate.require(is_fine, "--scale", scale, rule)
    chosen = None  # the solver's default, whose scale is made for choices of vertices
    if scale is not None or not is_smoothed:
        chosen = choose_estimator(
            facts, estimator, scale=scale, num_samples=facts.num_samples
        )
    return {
        "constraint": L1Ball(radius),
        "estimator": chosen,
        "moment_bound": moment_bound or facts.moment_bound,
        "num_steps": _steps(steps, facts),
        "learning_rate": learning_rate,
        "calibration": facts.calibration,
    }


def lasso(
    facts: Facts,
    *,
    radius: float = 1.0,
    scale: float | None = None,
    moment_bound: float = 1.0,
    steps: int | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `dp_lasso`."""
    _check_delta(facts)
    return {
        "radius": radius,
        "threshold": _threshold(scale),
        "num_steps": _steps(steps, facts),
        "fourth_moment_bound": moment_bound,
        "calibration": facts.calibration,
    }


def sparse_linear(
    facts: Facts,
    *,
    radius: float = 1.0,
    sparsity: int,
    scale: float | None = None,
    moment_bound: float = 1.0,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `dp_sparse_linear_regression`."""
    _check_sparsity(sparsity, facts)
    return {
        "sparsity": sparsity,
        "threshold": _threshold(scale),
        "learning_rate": learning_rate,
        "num_steps": check_steps(steps, facts),
        "fourth_moment_bound": moment_bound,
        "radius": radius,
        "calibration": facts.calibration,
    }


def hard_thresholding(
    facts: Facts,
    *,
    sparsity: int,
    estimator: EstimatorName | None = None,
    scale: float | None = None,
    moment_bound: float | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `dp_iterative_hard_thresholding`."""
    _check_delta(facts)
    _check_sparsity(sparsity, facts)
    # The papers' number of steps; each step has records of its own.
    papers = max(1, math.floor(math.log(facts.num_samples)))
    num_steps = check_steps(steps, facts) or papers
    return {
        "sparsity": sparsity,
        "estimator": choose_estimator(
            facts._replace(num_features=sparsity),  # the number of noisy coordinates
            estimator,
            scale=scale,
            moment_bound=moment_bound,
            num_samples=facts.num_samples // num_steps,
        ),
        # The theory's 2/3 of the inverse smoothness, for features of unit size.
        "learning_rate": learning_rate or 2 / 3 / facts.smoothness,
        "num_steps": num_steps,
        "calibration": facts.calibration,
    }


def l1(
    facts: Facts,
    *,
    radius: float = 1.0,
    candidates: int | None = None,
    scale: float | None = None,
    moment_bound: float = 1.0,
) -> dict[str, Any]:
    """Returns the arguments of `dp_l1_regression`, with its candidates."""
    number = candidates or (1_000 if facts.is_quick else 100_000)
    _validate.require(
        2 <= number <= _MOST_NUMBERS // facts.num_features,
        "--candidates",
        number,
        f"from 2 to {_MOST_NUMBERS // facts.num_features:,} with "
        f"{facts.num_features} features, for memory",
    )
    return {
        "candidates": candidate_net(number, facts.num_features, radius),
        "truncation": None if scale is None else 1 / scale,
        "residual_moment_bound": moment_bound,
        "calibration": facts.calibration,
    }


def candidate_net(number: int, num_features: int, radius: float) -> jax.Array:
    """Returns public weight vectors to choose from; the first one is zero.

    Up to ten features: a Halton sequence in the box of ±radius. With more features
    nearly all of a box is corners. Each vector is then uniform in the l1 ball of four
    random coordinates, from a fixed key: a thin net of coarse weights.

    Example:
        >>> print(candidate_net(3, 2, 3.0))
        [[ 0.  0.]
         [-3. -3.]
         [ 0. -1.]]
    """
    zero = jnp.zeros((1, num_features))
    if num_features <= _MOST_FEATURES_OF_A_BOX:
        net = halton_net(Box(-radius, radius), num_features, num_candidates=number - 1)
        return jnp.concatenate([zero, net])
    place_key, sign_key, size_key = jax.random.split(jax.random.key(0), 3)
    shape = (number - 1, 4)
    places = jax.random.randint(place_key, shape, 0, num_features)
    signs = jax.random.rademacher(sign_key, shape, jnp.float32)
    gaps = jax.random.exponential(size_key, (number - 1, 5))
    sizes = radius * gaps[:, 1:] / jnp.sum(gaps, axis=1, keepdims=True)
    net = jnp.zeros((number - 1, num_features))
    net = net.at[jnp.arange(number - 1)[:, None], places].add(signs * sizes)
    return jnp.concatenate([zero, net])


def is_thin(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a method has too few candidates for their dimension."""
    net = arguments.get("candidates")
    return net is not None and net.shape[1] > _MOST_FEATURES_OF_A_BOX


def _check_delta(facts: Facts) -> None:
    """Requires delta > 0 for the papers' constants."""
    if facts.calibration == "paper":
        _validate.probability(**{"--delta": facts.delta})


def _threshold(scale: float | None) -> float | None:
    if scale is not None:
        _validate.within(1e-8, 1e12, **{"--scale": scale})
    return scale


def _check_sparsity(sparsity: int, facts: Facts) -> None:
    rule = f"at most the number of features, {facts.num_features}"
    _validate.require(sparsity <= facts.num_features, "--sparsity", sparsity, rule)


def _steps(steps: int | None, facts: Facts) -> int | None:
    """Returns the number of steps; None is the solver's default."""
    if steps is None and facts.is_quick:
        return min(10, facts.num_samples)
    return check_steps(steps, facts)
