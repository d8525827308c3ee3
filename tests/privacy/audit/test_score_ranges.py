"""Attacks on the range that private choices of vertices rest on.

Gradients of neighbours are made as far apart as the linf sensitivity allows, along the
difference of two vertices, and at the ends of float32. The scores are taken as they are
computed, their differences in float64.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import mechanisms, solvers, transforms
from dpjax.constraints import L1Ball, Polytope, Simplex

TINY = float(np.finfo(np.float32).tiny)
FLOOR = 2.0**26 * TINY  # what a mechanism adds to the range
scores_of = jax.jit(lambda constraint, gradient: constraint.vertex_scores(gradient))


@functools.partial(jax.jit, static_argnums=3)
def range_of(constraint, sensitivity, limit, num_coordinates):
    options = {"epsilon": 1.0, "sensitivity": sensitivity, "limit": limit}
    transform = transforms.frank_wolfe(constraint, key=jax.random.key(0), **options)
    return transform.init(jnp.zeros(num_coordinates)).sensitivity_range


def ratio(constraint, gradient, other, limit):
    g, h = np.clip([gradient, other], -limit, limit).astype(np.float32)
    sensitivity = np.abs(g.astype(float) - h).max()
    first, second = (np.asarray(scores_of(constraint, x), float) for x in (g, h))
    assert np.isfinite([first, second]).all()
    stated = float(range_of(constraint, sensitivity, limit, g.size))
    return np.ptp(second - first) / (stated + FLOOR)


def random_vertices(rng, num_vertices, d):
    kind, shape = rng.integers(5), (num_vertices, d)
    if kind == 0:  # all far from zero, and nearly one point
        base = rng.normal(size=d) * 10.0 ** rng.uniform(-20, 25)
        return base * (1 + rng.integers(-3, 4, shape) * 2.0**-23)
    if kind == 1:
        return rng.standard_cauchy(shape) * 10.0 ** rng.uniform(-25, 20)
    if kind == 2:  # added up one after another, all but the first would be lost
        vertices = np.full(shape, 2.0**-25)
        vertices[:, 0] = 1
        return vertices * np.where(np.arange(num_vertices)[:, None] > 0, -1, 1)
    if kind == 3:
        return rng.normal(size=shape) * (rng.random(shape) < 0.1)
    return rng.normal(size=shape)


def random_constraint(rng, d):
    if (kind := rng.integers(6)) < 2:
        return (L1Ball, Simplex)[kind](10.0 ** rng.uniform(-20, 30))
    vertices = random_vertices(rng, int(rng.choice([2, 3, 8])), d)
    return Polytope(jnp.asarray(np.clip(vertices, -9e29, 9e29), jnp.float32))


def extreme_pair(constraint, rng, d):
    """Neighbours' gradients, as far apart as is allowed along two vertices."""
    limit = 10.0 ** rng.uniform(-18, 30)
    move = 2 * limit / float(rng.choice([1, 2, 1e3, 1e6, 1e9]))
    size = limit
    if rng.random() < 0.5:  # where scores are about to overflow, or to underflow
        corner = float(rng.choice([2.0**128, TINY]))
        largest = float(jnp.max(jnp.abs(constraint.vertex(0, jnp.zeros(d)))))
        size = min(limit, corner / max(largest, 1e-30))
    gradient = size * rng.choice([rng.uniform(-1, 1, d), np.sign(rng.normal(size=d))])
    places = 0, 1 % constraint.num_vertices(d)
    first, second = (np.asarray(constraint.vertex(i, jnp.zeros(d))) for i in places)
    along = np.sign(first.astype(float) - second)
    other = np.clip(gradient + move * along, -limit, limit)
    return np.clip(other - move * along, -limit, limit), other, limit


def widest(seed, num_cases, dimensions):
    rng, worst = np.random.default_rng(seed), 0.0
    for _ in range(num_cases):
        d = int(rng.choice(dimensions))
        constraint = random_constraint(rng, d)
        worst = max(worst, ratio(constraint, *extreme_pair(constraint, rng, d)))
    return worst


def test_no_search_finds_a_wider_range():
    assert 0.9 < widest(0, 60, [1, 2, 17]) <= 1


@pytest.mark.quick(0)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_long_search_finds_a_wider_range(seed):
    assert 0.99 < widest(seed, 3000, [1, 2, 3, 17, 1000]) <= 1


@pytest.mark.parametrize(
    "d", [10_000, pytest.param(1_000_000, marks=pytest.mark.quick(0))]
)
def test_scores_of_many_coordinates_stay_within_their_range(d):
    rng = np.random.default_rng(3)
    for vertices in (
        rng.uniform(0, 1, (3, d)),
        np.where(np.arange(d) > 0, 2.0**-25, 1)[None] * np.array([[1], [-1], [0]]),
    ):
        polytope = Polytope(jnp.asarray(vertices, jnp.float32))
        exact = np.asarray(polytope.vertices, float)
        gaps = np.abs(exact[:, None] - exact[None]).sum(axis=-1)
        assert float(polytope.diameter("l1", d)) == pytest.approx(gaps.max(), rel=1e-6)
        assert ratio(polytope, *extreme_pair(polytope, rng, d)) <= 1
    for ball in (L1Ball(3.0), Simplex(1e-20)):
        assert ratio(ball, *extreme_pair(ball, rng, d)) <= 1


@pytest.mark.parametrize(("scale", "d"), [(1e-30, 17), (3.3, 1), (1.1e7, 2), (7e29, 2)])
def test_the_diameter_of_a_polytope_far_from_zero(scale, d):
    # Rows next to each other in float32: quotients of them may be one number.
    first = (scale * np.random.default_rng(0).uniform(0.5, 1, d)).astype(np.float32)
    vertices = np.stack([first, np.nextafter(first, np.float32(np.inf))])
    polytope = Polytope(jnp.asarray(vertices))
    gap = vertices[1].astype(float) - vertices[0]
    assert float(polytope.diameter("l1", d)) == pytest.approx(gap.sum(), rel=1e-6)
    exact = math.sqrt((gap**2).sum())
    assert float(polytope.diameter("l2", d)) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ("constraint", "gradient", "other"),
    [
        (Simplex(1e30), [3.41e8, 3.38e8, 0.0], [3.39e8, 3.38e8, 0.0]),
        (L1Ball(1e20), [3.41e18, 3e18], [3.39e18, 3e18]),
        (L1Ball(1e20), [1.71e18, 0.0], [1.69e18, 0.0]),  # differences overflow
        (Polytope(jnp.array([[9e29, -9e29], [-9e29, 9e29]])), [1e9, 1e9], [1e8, 1e8]),
        (Polytope(jnp.array([[9e29] * 3, [8e29] * 3])), [2e8] * 3, [1.9e8] * 3),
    ],
)
def test_scores_that_would_overflow_are_in_for_both_neighbors(
    constraint, gradient, other
):
    pair = [scores_of(constraint, jnp.array(g)) for g in (gradient, other)]
    scores = np.asarray(pair, float)
    assert np.isfinite(scores).all()
    assert (np.ptp(scores, axis=1) <= np.finfo(np.float32).max).all()
    sensitivity = np.abs(np.subtract(gradient, other)).max()
    stated = float(range_of(constraint, sensitivity, 1e10, len(gradient)))
    assert np.ptp(scores[1] - scores[0]) <= stated


@pytest.mark.parametrize(
    ("mechanism", "scores", "other", "sensitivity_range"),
    [
        # Finite scores whose difference overflows, and one that does not.
        (mechanisms.exponential, [1.71e38, -1.71e38], [1.69e38, -1.69e38], 3.0e38),
        # Products below the smallest normal number count as zero.
        (mechanisms.permute_and_flip, [0.0, 0.0], [1.18e-38, -1.18e-38], 4e-40),
    ],
)
def test_choices_at_the_ends_of_float32(mechanism, scores, other, sensitivity_range):
    # By a factor of e at most, of epsilon 1; five standard errors of 20,000 draws.
    options = {"epsilon": 1.0, "sensitivity_range": sensitivity_range}

    def share(scores):
        keys = jax.random.split(jax.random.key(2), 20_000)
        choices = jax.vmap(lambda key: mechanism(key, jnp.array(scores), **options))
        return float((choices(keys) == 1).mean())

    first, second = share(scores), share(other)
    error = 5 * math.sqrt(0.25 / 20_000)
    assert first > 0.05
    assert first <= math.e * second + 2 * error
    assert second <= math.e * first + 2 * error


@pytest.mark.parametrize(
    ("radius", "threshold", "n", "level"),
    [
        (1e20, 1e10, 200, 0.017),  # scores differ by more or less than 2^128
        (1e-20, 1e-8, 100_000, 0.011755),  # products above or below 2^-126
        (1e30, 1e12, 200, 0.5),  # all scores overflow, and the range does
    ],
)
def test_lasso_at_the_ends_of_its_settings(radius, threshold, n, level):
    # One record moves the scores, radius K^2 (level +- 1/n), across the end.
    num_runs = 400
    setting = {"radius": radius, "threshold": threshold, "num_steps": 1}
    setting |= {"epsilon": 1.0, "delta": 0.0}

    def share_of_worse_vertex(first_target):
        features = jnp.full((n, 1), threshold)
        targets = jnp.full(n, level * threshold).at[0].set(first_target)

        def choose(key):
            return solvers.dp_lasso(features, targets, key=key, **setting).params[0]

        keys = jax.random.split(jax.random.key(4), num_runs)
        return float((jax.vmap(choose)(keys) < 0).mean())

    shares = share_of_worse_vertex(threshold), share_of_worse_vertex(-threshold)
    error = 5 * math.sqrt(0.25 / num_runs)
    assert min(shares) > 0.01
    for one, other in (shares, shares[::-1]):
        assert one <= math.e * other + error
