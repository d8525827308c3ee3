"""Every loss x every solver that takes it, on targets beyond the loss's range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import estimators, losses, solvers
from tests.privacy.replay import _replay

N, D = 24, 3
KNOWN = {
    "squared": losses.squared,
    "logistic": losses.logistic,
    "smoothed hinge": losses.MarginLoss.smoothed_hinge(),
    "huber": losses.huber(1.0),
    "huber in scales": "huber",
    "poisson": losses.poisson(4.0),
    "gamma": losses.gamma(min_mean=0.2, max_target=6.0),
    "tweedie": losses.tweedie(1.5, min_mean=0.2, max_mean=3.0, max_target=6.0),
    "log link": losses.log_link(2.0),
    "softmax": losses.softmax(3),
}
# Of one prediction, smooth and convex.
ONE_PASS = [name for name in KNOWN if name not in ("huber in scales", "softmax")]
CLIPPED = ["squared", "gamma"]  # gradients of the loss's value, whatever it is
ODD = np.array([0.0, -1.0, -1e-3, -1e3, -1e308, 1e3, 1e308, np.nan, np.inf, -np.inf])


def odd_table(num_samples, first):
    """Records of which most have a target, or a feature, beyond what is declared."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((num_samples, D))
    features[1::7] *= rng.choice([0.0, 1e30, np.inf], (len(features[1::7]), 1))
    targets = rng.choice(ODD, num_samples)
    targets[: num_samples // 2] = -1.0  # a row of steps along the same line
    features[: num_samples // 2] = 0.5
    features[0], targets[0] = first
    return features, targets


SCO = {"epsilon": 9.0, "delta": 1e-5, "moment_bound": 9.0, "diameter": 4.0}
STEPS = {"learning_rate": 0.1, "num_steps": 3, "estimator": estimators.Clipping(1.0)}
BUDGET = {"epsilon": 1.0, "delta": 1e-5}
CURVES = {"smooth": (1,), "intercept": 0, "epsilon": 9_000.0, "delta": 1e-5}


def of_start(solve, **options):
    return lambda loss, data, key: solve(loss, jnp.zeros(D), data, key=key, **options)


def of_columns(solve, **options):
    return lambda loss, data, key: solve(loss, data, key=key, **options)


# How many records a solver takes here, and the losses that it takes.
SOLVERS = {
    "one pass": (of_start(solvers.dp_one_pass_sco, **SCO), 1_000, ONE_PASS),
    "descent": (of_start(solvers.dp_gradient_descent, **STEPS, **BUDGET), N, CLIPPED),
    "localized": (
        of_start(solvers.dp_localized_sco, **SCO, smoothness=1.0, num_steps=3),
        *(1_000, CLIPPED),
    ),
    "linear": (of_columns(solvers.dp_linear_model, intercept=0, **BUDGET), N, KNOWN),
    "additive": (of_columns(solvers.dp_additive_model, **CURVES), N, KNOWN),
}
CASES = [(name, solver) for solver in SOLVERS for name in SOLVERS[solver][-1]]


@pytest.mark.quick(12)
@pytest.mark.parametrize(("name", "solver"), CASES)
def test_what_a_record_moves_is_charged(hooks, name, solver):
    loss, (solve, num_samples, _) = KNOWN[name], SOLVERS[solver]
    solutions = []

    def run(first):
        data = odd_table(num_samples, first)
        solutions.append(solve(loss, data, jax.random.key(7)))
        return solutions[-1]

    others = (-0.5, 1e6), (np.nan, -1.0), (0.5, np.nan), (1e308, -np.inf)
    (kind, *_), _ = hooks.compare(run, (0.5, -1e6), others)
    assert kind == "Solution"
    assert _replay.charged(solutions[0].privacy) is not None
