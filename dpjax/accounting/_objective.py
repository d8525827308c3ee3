"""Objective perturbation of linear predictors: its noise.

The mechanism releases w, the minimizer of

    J(w) = sum_i phi(y_i <w, x_i>) + (N Lambda / 2) ||w||^2 + <eta, w>,            (1)

with ||x_i|| <= 1, y_i = +-1, phi convex, |phi'| <= L, phi' Lipschitz with constant c,
and eta ~ N(0, sigma^2 I). Let delta_G(e, m) be the exact delta of a Gaussian release of
sensitivity / stddev = m at epsilon = e, and j = log(1 + c / (N Lambda)). Then, under
replace-one and in any dimension,

    delta(epsilon) <= 2 delta_G(epsilon - j, 2L/sigma)                              (2)
        where (epsilon - j)^2 >= m^2 + m^4/4, m = 2L/sigma;
    delta(epsilon) <= delta_G(epsilon - j, 2L/sigma) + 2 delta_G(epsilon - j, L/sigma)
        where phi' <= 0 everywhere, as for the logistic loss.                       (3)

Proof: `docs/privacy/proofs/solvers.md`, 4.1.
"""

import math
from typing import NamedTuple

from dpjax.accounting._gaussian import gaussian_stddev

# The two smaller terms of (3) get this share of delta. Any share is valid; this share
# raises sigma by about one part in 1e4, and is enough for the terms at usual budgets.
_SMALL_TERMS = 1e-3

# Jacobian terms above this do not help: N Lambda is then below c / 146.
_LARGEST_JACOBIAN = 5.0


class ObjectiveNoise(NamedTuple):
    """The noise and the regularization of a perturbed objective."""

    stddev: float  # of each coordinate of eta, on the scale of the *sum* of losses
    extra_regularization: float  # Delta >= 0; Lambda = regularization + Delta


def objective_noise(
    epsilon: float,
    delta: float,
    *,
    num_samples: int,
    regularization: float,
    curvature_bound: float,
    derivative_bound: float = 1.0,
    is_non_increasing: bool = False,
) -> ObjectiveNoise:
    """Returns the noise and extra regularization that make a minimizer private.

    The objective in w is the *sum* of N losses phi(y <w, x>), ||x|| <= 1, plus
    (N lambda / 2) ||w||^2 and a random linear term, whose stddev solves the bound (2)
    of this module, or (3) for a loss that never increases. If the bound's term
    j = log(1 + c / (N Lambda)) would exceed min(epsilon/2, 5), lambda is raised to a
    Lambda where it does not. The exact minimizer is then (epsilon, delta)-DP under
    replace-one, for predictors that use a record only through <w, x>.
    """
    budget = min(epsilon / 2, _LARGEST_JACOBIAN)
    least = curvature_bound / (num_samples * math.expm1(budget))
    extra = max(0.0, least - regularization)
    # The budget that j leaves calibrates sigma.
    total = regularization + extra
    remaining = epsilon - math.log1p(curvature_bound / (num_samples * total))
    if is_non_increasing:
        largest = gaussian_stddev(remaining, (1 - _SMALL_TERMS) * delta, sensitivity=2)
        stddev = gaussian_stddev(remaining, _SMALL_TERMS * delta / 2, sensitivity=1)
        unit = max(largest, stddev)
    else:
        # The condition of (2), solved for m: m^2 = 2 (sqrt(1 + e^2) - 1).
        ratio = math.sqrt(2) * remaining / math.sqrt(1 + math.hypot(1, remaining))
        unit = max(gaussian_stddev(remaining, delta / 2, sensitivity=2), 2 / ratio)
    return ObjectiveNoise(unit * derivative_bound, extra)
