"""Solvers that release one fit, adapted for `dpjax train`, and their options.

The parameters of the first three functions are the options that a method reads.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax import _validate
from dpjax._types import LossFn, PyTree
from dpjax.accounting import noise_multiplier
from dpjax.cli._descent import Facts
from dpjax.cli._losses import LossName, loss_of
from dpjax.cli._settings import ModelName
from dpjax.constraints import L2Ball
from dpjax.estimators import Mean
from dpjax.solvers import (
    Solution,
    dp_additive_model,
    dp_linear_model,
    dp_objective_perturbation,
    dp_sample_and_aggregate,
    robust_gradient_descent,
)
from dpjax.solvers._shared import knots_of


def linear_model(
    facts: Facts,
    *,
    model: ModelName | None = None,
    max_features: int | None = None,
    power: float | None = None,
    intervals: bool = False,
) -> dict[str, Any]:
    """Returns the arguments of `fit_linear_model`."""
    rule = "tight with --method linear-model, which is of no paper"
    is_fine = facts.calibration == "tight"
    _validate.require(is_fine, "--calibration", facts.calibration, rule)
    arguments = {"loss": facts.loss, "power": power, "max_features": max_features}
    if intervals:
        num_columns = facts.num_features - 1
        rule = "left out where there is no column"
        _validate.require(num_columns > 0, "--intervals", True, rule)
        return arguments | {"intervals": True}
    if model == "linear" or max_features is not None:
        return arguments
    knots = knots_of(
        loss_of(facts.loss, power),
        *(facts.num_samples, facts.num_features, len(facts.bending)),
        noise_multiplier(facts.epsilon, facts.delta, num_steps=1),
    )
    return arguments | {"smooth": list(facts.bending) if knots else []}


def sample_aggregate(
    facts: Facts,
    *,
    subsets: int,
    radius: float = 1.0,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """Returns the arguments of `aggregate_fits`."""
    rule = f"at most the number of records, {facts.num_samples}"
    _validate.require(subsets <= facts.num_samples, "--subsets", subsets, rule)
    return {
        "num_subsets": subsets,
        "radius": radius,
        "learning_rate": learning_rate or facts.default_rate,
        "num_steps": steps or (10 if facts.is_quick else 100),
        "calibration": facts.calibration,
    }


def objective_perturbation_of_rows(
    facts: Facts, *, scale: float | None = None, l2: float = 0.0
) -> dict[str, Any]:
    """Returns the arguments of `perturb_objective`."""
    return {
        # Features of unit size make rows of about sqrt(d); longer rows are clipped.
        "longest_row": scale or math.sqrt(facts.num_features),
        # N Lambda of a few suits rows of norm 1.
        "regularization": l2 or 3 / facts.num_samples,
        "calibration": facts.calibration,
    }


def fit_linear_model(
    features: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None = None,
    exposures: jax.Array | None = None,
    *,
    loss: LossName,
    power: float | None = None,
    max_features: int | None = None,
    intervals: bool = False,
    smooth: Sequence[int] = (),
    **release: Any,
) -> Solution:
    """Fits a linear model, or an additive one if some features are `smooth`.

    The last feature is the constant 1. Weights and exposures are shares of their public
    maximum. A record without exposure has weight zero, because it was not observed.
    """
    offsets = None
    if exposures is not None:
        is_seen = exposures > 0
        offsets = jnp.log(jnp.where(is_seen, exposures, 1.0))
        weights = jnp.where(is_seen, 1.0 if weights is None else weights, 0.0)
    problem = loss_of(loss, power), (features, targets)
    release |= {"intercept": -1, "offsets": offsets, "weights": weights}
    if not smooth:
        release |= {"max_features": max_features, "intervals": intervals}
        return dp_linear_model(*problem, **release)
    solution = dp_additive_model(*problem, smooth=smooth, **release)
    curves = {"num_curves": len(smooth), "num_knots": len(solution.params.knots)}
    return dataclasses.replace(solution, stats=solution.stats | curves)


def aggregate_fits(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    num_subsets: int,
    radius: float,
    learning_rate: float,
    num_steps: int,
    **release: Any,
) -> Solution:
    """Fits each subset by gradient descent, and releases a center of the weights.

    The weights of each subset are projected onto the l2 ball of the radius, and so is
    the release. `release` holds key, budget and calibration.
    """
    fit = partial(
        robust_gradient_descent,
        loss_fn,
        params,
        estimator=Mean(),
        learning_rate=learning_rate,
        num_steps=num_steps,
    )
    solution = dp_sample_and_aggregate(
        lambda subset: fit(subset).params,
        data,
        num_subsets=num_subsets,
        diameter=2 * radius,
        **release,
    )
    params = L2Ball(radius).project(solution.params)
    return dataclasses.replace(solution, params=params)


def perturb_objective(
    features: jax.Array, targets: jax.Array, *, longest_row: float, **release: Any
) -> Solution:
    """Fits a logistic regression to features in units of the longest row."""
    rows = jnp.asarray(features) / longest_row
    solution = dp_objective_perturbation(rows, targets, **release)
    return dataclasses.replace(solution, params=solution.params / longest_row)
