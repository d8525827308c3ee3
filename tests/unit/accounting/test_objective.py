"""Perturbed objectives: noise against exact densities, both roots, inverse pairs."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from benchmarks.figures import printed
from dpjax.accounting import gaussian_stddev
from dpjax.accounting._objective import objective_epsilon, objective_noise

LOGISTIC = {"curvature_bound": 0.25, "is_non_increasing": True}


def noise_of(epsilon=1.0, delta=1e-5, make=objective_noise, **changes):
    arguments = {"num_samples": 1000, "regularization": 0.01, "curvature_bound": 0.25}
    return make(epsilon, delta, **(arguments | changes))


def paper_noise_of(**changes):
    return noise_of(make=printed.procedure_3, **changes)


def gaussian_delta(epsilon, ratio):
    upper = scipy.special.ndtr(ratio / 2 - epsilon / ratio)
    lower = scipy.special.log_ndtr(-ratio / 2 - epsilon / ratio)
    return upper - math.exp(epsilon + lower)


def two_dof_delta(epsilon, jacobian, stddev):
    """Cauchy-Schwarz in span(x, x'): loss <= J + 2/s^2 + (2/s) chi with 2 dof."""

    def integrand(radius):
        loss = jacobian + 2 / stddev**2 + 2 / stddev * radius
        shortfall = -math.expm1(epsilon - loss)
        return shortfall * radius * math.exp(-(radius**2) / 2)

    start = max(0.0, (epsilon - jacobian - 2 / stddev**2) * stddev / 2)
    return scipy.integrate.quad(integrand, start, start + 40, epsabs=0)[0]


def test_numbers_of_the_documented_budget():
    assert round(noise_of().stddev, 2) == 7.95
    assert round(noise_of(is_non_increasing=True).stddev, 2) == 7.63
    for num_features, stddev in ((10, 13.7), (50, 21.6), (1000, 73.0)):
        paper = paper_noise_of(num_features=num_features)
        assert round(paper.stddev, 1) == stddev


def test_two_dof_integral_against_monte_carlo():
    # Two-sided, 5 standard errors: false alarms 1e-6.
    epsilon, jacobian, stddev = 0.5, 0.1, 3.0
    radius = scipy.stats.chi(2).rvs(400_000, random_state=3)
    loss = jacobian + 2 / stddev**2 + 2 / stddev * radius
    values = np.maximum(0.0, -np.expm1(epsilon - loss))
    error = 5 * values.std() / math.sqrt(values.size)
    exact = two_dof_delta(epsilon, jacobian, stddev)
    assert abs(values.mean() - exact) < error
    assert abs(values.mean() - two_dof_delta(epsilon, jacobian, 2 * stddev)) > error


def test_vertices_need_less_noise_than_two_degrees_of_freedom():
    jacobian = math.log1p(0.025)
    assert two_dof_delta(1.0, jacobian, 8.70) == pytest.approx(1e-5, rel=0.02)
    # The vertices' noise would not do for the cruder bound.
    assert two_dof_delta(1.0, jacobian, noise_of().stddev) > 5e-5


@pytest.mark.quick(1)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-2), (0.3, 1e-3), (4.0, 0.1)])
def test_no_parallelogram_exceeds_the_bound(epsilon, delta):
    # E max over the vertices, exactly, for every angle between the two records.
    noise = noise_of(epsilon, delta)
    lambda_total = 0.01 + noise.extra_regularization
    jacobian = math.log1p(0.25 / (1000 * lambda_total))
    nodes = np.linspace(-9, 9, 1801)
    density = np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])

    def exact(angle):
        def largest(length):
            ratio = length / noise.stddev
            return jacobian + ratio**2 / 2 + ratio * np.abs(nodes)

        first = largest(2 * math.cos(angle))
        second = largest(2 * math.sin(angle))
        loss = np.maximum(first[:, None], second[None])
        return density @ np.maximum(0.0, -np.expm1(epsilon - loss)) @ density

    deltas = [exact(angle) for angle in np.linspace(0, math.pi / 4, 12)]
    assert max(deltas) <= delta * (1 + 1e-4)  # of the quadrature
    assert deltas[0] == pytest.approx(delta, rel=1e-3)  # records back to back


def smoothed_hinge(margin, width=0.5):
    inner = np.clip(1 + width - margin, 0, 2 * width)
    is_curved = (inner > 0) & (inner < 2 * width)
    return -inner / (2 * width), is_curved / (2 * width)


def logistic(margin):
    slope = scipy.special.expit(-margin)
    return -slope, slope * (1 - slope)


def pseudo_huber(margin):
    root = np.hypot(1.0, margin - 0.3)
    return (margin - 0.3) / root, root**-3


LOSSES = {
    "logistic": (logistic, {"curvature_bound": 0.25, "is_non_increasing": True}),
    "smoothed hinge": (
        smoothed_hinge,
        {"curvature_bound": 1.0, "is_non_increasing": True},
    ),
    "pseudo-Huber": (pseudo_huber, {"curvature_bound": 1.0}),
}


def density(points, records, loss, convexity, stddev):
    """The exact density of the minimiser, through eta(w) and its Jacobian.

    points has shape (d, ...); all records but those given are zero vectors.
    """
    eta = -convexity * points
    dimension = len(points)
    matrix = convexity * np.eye(dimension).reshape((dimension,) * 2 + (1,) * dimension)
    for record in np.asarray(records, float):
        slope, curvature = loss(np.tensordot(record, points, 1))
        eta = eta - np.multiply.outer(record, slope)
        matrix = matrix + np.multiply.outer(np.outer(record, record), curvature)
    determinant = matrix[0, 0]
    if dimension == 2:
        determinant = determinant * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]
    log_gaussian = -np.sum(eta**2, axis=0) / (2 * stddev**2)
    return (
        np.exp(log_gaussian)
        / (2 * math.pi * stddev**2) ** (dimension / 2)
        * (determinant)
    )


def hockey_sticks(epsilon, data, other, loss, convexity, stddev):
    """What is spent from the one to the other, and back."""
    dimension = len(data[0])
    reach = (7 * stddev + 2 * len(data)) / convexity
    axis = np.linspace(-reach, reach, 200_001 if dimension == 1 else 1001)
    points = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"))
    first, second = (
        density(points, records, loss, convexity, stddev) for records in (data, other)
    )
    cell = (axis[1] - axis[0]) ** dimension
    for one in (first, second):
        assert one.sum() * cell == pytest.approx(1, abs=3e-3)
    return [
        np.maximum(one - math.exp(epsilon) * two, 0).sum() * cell
        for one, two in ((first, second), (second, first))
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("regularization", [0.0, 1e-3, 0.03])
@pytest.mark.parametrize(
    ("data", "other"),
    [
        ([[1.0]], [[-1.0]]),
        ([[-1.0]], [[0.0]]),
        ([[0.0]], [[1.0]]),
        ([[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]),
        ([[1.0, 0.0], [0.6, 0.8]], [[0.6, 0.8], [0.6, 0.8]]),
        ([[1.0, 0.0]], [[0.0, -1.0]]),
    ],
)
def test_exact_minimisers_of_neighbours(name, regularization, data, other):
    loss, bounds = LOSSES[name]
    epsilon, delta = 1.0, 1e-2
    noise = noise_of(epsilon, delta, regularization=regularization, **bounds)
    convexity = 1000 * (regularization + noise.extra_regularization)
    spent = hockey_sticks(epsilon, data, other, loss, convexity, noise.stddev)
    assert max(spent) <= delta * (1 + 1e-3)  # of the quadrature


def test_noise_is_close_to_the_smallest():
    # Records back to back, both on the slope -1 of the hinge: a Gaussian shift of 2.
    loss, bounds = LOSSES["smoothed hinge"]
    noise = noise_of(1.0, 1e-2, regularization=0.2, **bounds)
    spent = [
        hockey_sticks(1.0, [[1.0]], [[-1.0]], loss, 200, factor * noise.stddev)[0]
        for factor in (1.0, 0.95)
    ]
    assert spent[0] <= 1e-2 < spent[1]


def test_the_other_root_of_procedure_3_is_not_private():
    # At epsilon = 1 without regularization, e = 1/2 and N Delta = c/(e^(1/4) - 1).
    noise = paper_noise_of(num_features=10, regularization=0.0)
    assert round(noise.stddev, 2) == 25.86
    law = scipy.stats.chi2(10)
    wrong = 2 / (0.5 * noise.stddev)  # the roots' product is -2/e, up to sign
    assert round(wrong, 3) == 0.155
    for stddev in (noise.stddev, wrong):
        threshold = ((stddev**2 * 0.5 - 2) / (2 * stddev)) ** 2
        assert law.sf(threshold) == pytest.approx(1e-5, rel=1e-6)
    convexity = 1000 * noise.extra_regularization
    arguments = [1.0, [[1.0]], [[-1.0]], logistic, convexity]
    assert hockey_sticks(*arguments, noise.stddev)[0] < 1e-5
    assert hockey_sticks(*arguments, wrong)[0] > 0.5


@pytest.mark.parametrize("is_non_increasing", [True, False])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3, 0.9])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 1000.0])
def test_inverse_pair_never_exceeds_the_budget(epsilon, delta, is_non_increasing):
    arguments = {
        "num_samples": 50,
        "curvature_bound": 0.7,
        "derivative_bound": 3.0,
        "is_non_increasing": is_non_increasing,
    }
    noise = objective_noise(epsilon, delta, regularization=1e-3, **arguments)
    total = 1e-3 + noise.extra_regularization
    spent = objective_epsilon(noise.stddev, delta, regularization=total, **arguments)
    assert spent <= epsilon * (1 + 1e-9)
    if epsilon >= 0.01:
        assert spent == pytest.approx(epsilon, rel=1e-4)
    if not is_non_increasing:  # the condition of equation (2)
        remaining = epsilon - math.log1p(0.7 / (50 * total))
        ratio = 6 / noise.stddev
        assert ratio * math.hypot(1, ratio / 2) <= remaining * (1 + 1e-9)
        assert 2 * gaussian_delta(remaining, ratio) <= delta * (1 + 1e-6)


def test_noise_falls_with_every_slack():
    base = noise_of(**LOGISTIC).stddev
    assert noise_of(epsilon=1.1, **LOGISTIC).stddev < base
    assert noise_of(delta=2e-5, **LOGISTIC).stddev < base
    assert noise_of(num_samples=2000, **LOGISTIC).stddev < base
    assert noise_of(regularization=0.02, **LOGISTIC).stddev < base
    assert noise_of(curvature_bound=0.2, is_non_increasing=True).stddev < base
    assert base < noise_of(is_non_increasing=False).stddev
    # No Jacobian remains at a huge regularization: nearly the Gaussian mechanism.
    gaussian = gaussian_stddev(1.0, 1e-5, sensitivity=2)
    limit = noise_of(regularization=1e9, **LOGISTIC).stddev
    assert gaussian < limit < 1.001 * gaussian


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_a_scaled_loss_is_the_same_objective(scale):
    # s J has the losses s phi, the regularization s Lambda and the noise s eta.
    scaled = {
        "regularization": 0.01 * scale,
        "curvature_bound": 0.25 * scale,
        "derivative_bound": scale,
    }
    assert noise_of(**scaled).stddev == pytest.approx(scale * noise_of().stddev)
    paper = paper_noise_of(num_features=5, **scaled)
    one = paper_noise_of(num_features=5)
    assert paper.stddev == pytest.approx(scale * one.stddev)


def test_extra_regularization_takes_half_of_epsilon():
    noise = noise_of(epsilon=0.5, regularization=1e-4)
    total = 1e-4 + noise.extra_regularization
    assert math.log1p(0.25 / (1000 * total)) == pytest.approx(0.25)
    assert noise_of(epsilon=0.5, regularization=1e-2).extra_regularization == 0
    # At any epsilon the objective stays strongly convex.
    assert noise_of(epsilon=1e4, regularization=0.0).extra_regularization > 1e-6


@pytest.mark.parametrize("regularization", [0.0, 1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("num_features", [2, 30, 1000])
@pytest.mark.parametrize("delta", [1e-9, 1e-2])
def test_papers_noise_gives_more_privacy_than_it_claims(
    regularization, num_features, delta
):
    changes = {"num_features": num_features, "regularization": regularization}
    noise = paper_noise_of(delta=delta, num_samples=100, **changes)
    total = regularization + noise.extra_regularization
    assert total > 0
    spent = objective_epsilon(
        noise.stddev, delta, num_samples=100, regularization=total, curvature_bound=0.25
    )
    assert spent < 1
