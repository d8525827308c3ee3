"""Solvers that release one fit, as `dpjax train` calls them."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from dpjax._types import Calibration, Key, LossFn, PyTree
from dpjax.constraints import L2Ball
from dpjax.estimators import Mean
from dpjax.solvers import (
    Solution,
    objective_perturbation,
    robust_gradient_descent,
    sample_and_aggregate,
)


def aggregate_fits(
    loss_fn: LossFn,
    params: PyTree,
    data: PyTree,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    num_subsets: int,
    radius: float,
    learning_rate: float,
    num_steps: int,
    calibration: Calibration,
) -> Solution:
    """Fits each subset by gradient descent, and releases a centre of the weights.

    The weights of a subset are projected onto the l2 ball of the radius, and so is what
    is released.
    """
    fit = partial(
        robust_gradient_descent,
        loss_fn,
        params,
        estimator=Mean(),
        learning_rate=learning_rate,
        num_steps=num_steps,
    )
    solution = sample_and_aggregate(
        lambda subset: fit(subset).params,
        data,
        key=key,
        epsilon=epsilon,
        delta=delta,
        num_subsets=num_subsets,
        diameter=2 * radius,
        calibration=calibration,
    )
    params = L2Ball(radius).project(solution.params)
    return dataclasses.replace(solution, params=params)


def perturb_objective(
    features: jax.Array,
    targets: jax.Array,
    *,
    key: Key,
    epsilon: float,
    delta: float,
    longest_row: float,
    regularization: float,
    calibration: Calibration,
) -> Solution:
    """Fits a logistic regression to features in units of the longest row."""
    solution = objective_perturbation(
        jnp.asarray(features) / longest_row,
        targets,
        key=key,
        epsilon=epsilon,
        delta=delta,
        regularization=regularization,
        calibration=calibration,
    )
    return dataclasses.replace(solution, params=solution.params / longest_row)
