"""Every loss x every solver that takes it, on targets beyond the loss's range.

Of all records, not of the one that is replaced alone: what a release moves is compared
with what was charged, as in `test_solvers`.
"""

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


def one_pass(loss, data, key):
    return solvers.dp_one_pass_sco(
        loss,
        jnp.zeros(D),
        data,
        key=key,
        epsilon=9.0,
        delta=1e-5,
        moment_bound=9.0,
        diameter=4.0,
    )


def descent(loss, data, key):
    return solvers.dp_gradient_descent(
        loss,
        jnp.zeros(D),
        data,
        key=key,
        epsilon=1.0,
        delta=1e-5,
        learning_rate=0.1,
        num_steps=3,
        estimator=estimators.Clipping(1.0),
    )


def localized(loss, data, key):
    return solvers.dp_localized_sco(
        loss,
        jnp.zeros(D),
        data,
        key=key,
        epsilon=9.0,
        delta=1e-5,
        moment_bound=9.0,
        diameter=4.0,
        smoothness=1.0,
        num_steps=3,
    )


def linear(loss, data, key):
    budget = {"key": key, "epsilon": 1.0, "delta": 1e-5}
    return solvers.dp_linear_model(loss, data, intercept=0, **budget)


def additive(loss, data, key):
    options = {"smooth": (1,), "intercept": 0, "epsilon": 9_000.0, "delta": 1e-5}
    return solvers.dp_additive_model(loss, data, key=key, **options)


SOLVERS = {"one pass": (one_pass, 1_000)} | {
    solve.__name__: (solve, size)
    for solve, size in ((descent, N), (localized, 1_000), (linear, N), (additive, N))
}


CASES = [
    (name, solver)
    for name in KNOWN
    for solver in SOLVERS
    if (name in ONE_PASS if solver == "one pass" else name in CLIPPED)
    or solver in ("linear", "additive")
]


@pytest.mark.quick(12)
@pytest.mark.parametrize(("name", "solver"), CASES)
def test_what_a_record_moves_is_charged(hooks, name, solver):
    loss, (solve, num_samples) = KNOWN[name], SOLVERS[solver]
    guarantees = []

    def run(first):
        data = odd_table(num_samples, first)
        solution = solve(loss, data, jax.random.key(7))
        guarantees.append(solution.privacy)
        return solution

    shown = hooks.record(lambda: run((0.5, -1e6)))
    (kind, *_), _ = shown
    assert kind == "Solution"
    price = _replay.charged(guarantees[0])
    assert price is not None
    for first in ((-0.5, 1e6), (np.nan, -1.0), (0.5, np.nan), (1e308, -np.inf)):
        hooks.replay(lambda first=first: run(first), shown, price)
