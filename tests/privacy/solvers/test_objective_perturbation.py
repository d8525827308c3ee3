"""Objective perturbation under attack: what is certified has so small a gradient."""

import numpy as np
import pytest

from tests.unit.solvers.test_objective_perturbation import (
    LOSSES,
    NORMAL,
    RNG,
    SIGNS,
    computed_minimizer,
    exact_gradient,
    solve,
)

WILD = (RNG.standard_cauchy(size=(300, 4)) * 1e30).astype(np.float32)
WILD[0], WILD[1, 0], WILD[2] = np.inf, np.nan, -3e38
ONES = np.ones((300, 4), np.float32)
DATA = {
    "normal": (NORMAL, SIGNS),
    "separable": (NORMAL, NORMAL[:, 0]),
    "one record many times": (ONES, ONES[:, 0]),
    "at odds": (ONES, SIGNS),
    "zeros": (0 * ONES, SIGNS),
    "tiny": (NORMAL * np.float32(1e-30), SIGNS),
    "wild": (WILD, SIGNS),
    "one record": (NORMAL[:1], SIGNS[:1]),
    "more features than records": (RNG.normal(size=(5, 30)), SIGNS[:5]),
}


# Every data set with one loss and budget, and every loss on data with many slopes.
CASES = [(name, "logistic", 0.1, 0.01) for name in DATA]
CASES += [("wild", loss, 10.0, 0.0) for loss in LOSSES]


@pytest.mark.parametrize(("name", "loss", "epsilon", "regularization"), CASES)
def test_certificate_holds(name, loss, epsilon, regularization):
    (features, labels), loss = DATA[name], LOSSES[loss]
    options = {"epsilon": epsilon, "regularization": regularization, "loss": loss}
    solution = solve(features, labels, **options)
    assert np.isfinite(np.asarray(solution.params)).all()
    stats = solution.stats
    convexity = len(features) * stats["regularization"]
    eta = stats["stddev"] * RNG.normal(size=features.shape[1])
    rows, params, _ = computed_minimizer(
        features, labels, loss, convexity, eta, stats["gradient_norm"]
    )
    gradient = exact_gradient(rows, params, loss, convexity, eta)
    assert np.linalg.norm(gradient) <= stats["gradient_norm"]
