"""Constraints: projections, diameters, vertices, linear minimization, and nets."""

import itertools
import math
import tracemalloc
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.spatial

from dpjax import constraints
from dpjax.constraints import Box, L1Ball, L2Ball, Polytope, Simplex

VERTICES = np.random.default_rng(7).normal(size=(9, 5)).astype(np.float32) + 3
LOWER = np.array([-1.0, 0.0, -2.0, 0.5, 1.0], np.float32)
UPPER = np.array([1.0, 0.5, -1.0, 2.0, 1.0], np.float32)
SETS = {
    "l1": L1Ball(1.5),
    "l2": L2Ball(1.5),
    "simplex": Simplex(1.5),
    "uniform_box": Box(-0.5, 0.75),
    "box": Box(LOWER, UPPER),
    "polytope": Polytope(VERTICES),
}
WITH_PROJECTION = [name for name in SETS if name != "polytope"]
each = pytest.mark.parametrize("name", SETS)
# Of a box whose last side has no length.
SIDES = np.array([[-1.0, 0.0, 2.0], [1.0, 0.3, 2.0]])


def points(num_points=60, dim=5):
    """Points near and far, inside and outside, with zeros and ties."""
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-2, 2, size=(num_points, 1))
    x = rng.normal(size=(num_points, dim)) * sizes
    x[0], x[1], x[2, :3] = 0, 1, 0
    return jnp.asarray(x, jnp.float32)


def vertices_of(name, dim=5):
    """All vertices as rows, by hand."""
    eye = 1.5 * np.eye(dim)
    if name == "l1":
        return np.concatenate([eye, -eye])
    if name == "simplex":
        return eye
    if name == "polytope":
        return VERTICES.astype(np.float64)
    lower, upper = (-0.5, 0.75) if name == "uniform_box" else (LOWER, UPPER)
    bounds = np.broadcast_to(np.stack([lower, upper]).reshape(2, -1), (2, dim))
    return np.array(list(itertools.product(*bounds.T)), np.float64)


def nearest(name, x):
    """The projection by a general solver over weights of the vertices."""
    if name == "l2":
        return x * min(1, 1.5 / max(np.linalg.norm(x), 1e-9))
    vertices = vertices_of(name)
    # Non-negative least squares; a heavy row makes the weights sum to one.
    matrix = np.vstack([vertices.T, np.full(len(vertices), 1e5)])
    weights, _ = scipy.optimize.nnls(matrix, np.append(x, 1e5))
    return weights @ vertices


@pytest.mark.parametrize("name", WITH_PROJECTION)
def test_projection_is_the_nearest_point_inside_and_non_expansive(name):
    constraint, x = SETS[name], np.asarray(points())
    project = jax.jit(jax.vmap(constraint.project))
    projected = np.asarray(project(x))
    is_near = np.linalg.norm(x, axis=1) < 20
    expected = [nearest(name, row) for row in np.float64(x[is_near])]
    np.testing.assert_allclose(projected[is_near], expected, atol=2e-5)
    contains = jax.jit(jax.vmap(constraint.contains, (0, None)))
    assert contains(projected, 1e-5).all()
    beyond = [projected[0] + 2.0, projected[0] * np.nan, projected[0] + np.inf]
    beyond = np.stack([*beyond, *projected[: len(x) - 3]])
    assert not contains(beyond, 1e-5)[:3].any()
    assert contains(beyond, 20.0)[0]
    np.testing.assert_allclose(project(projected), projected, atol=1e-6)
    before = np.linalg.norm(x[:, None] - x[None], axis=-1)
    after = np.linalg.norm(projected[:, None] - projected[None], axis=-1)
    assert (after <= before * (1 + 1e-5) + 1e-6).all()


def test_points_and_radii_of_any_size_are_projected():
    x, inside = jnp.array([1.0, -2.0, 0.5]), jnp.array([0.1, -0.2, 1 / 3])
    for kind, expected in [
        (L1Ball, [0, -1, 0]),
        (Simplex, [1, 0, 0]),
        (L2Ball, np.array(x) / math.sqrt(5.25)),
        (lambda radius: Box(-radius, radius), [1, -1, 1]),
    ]:
        project = jax.jit(lambda radius, x, kind=kind: kind(radius).project(x))
        for radius, size in [(1, 1e6), (1, 1e37), (1e-20, 4e-20), (1e30, 4e30)]:
            projected = project(float(radius), size * x) / radius
            np.testing.assert_allclose(projected, expected, atol=1e-5)
        if kind is not Simplex:  # points inside stay as they are
            assert (project(1.0, inside) == inside).all()
    assert (L2Ball(1.0).minimize_linear(jnp.zeros(3)) == 0).all()
    least = L2Ball(1.0).minimize_linear(1e30 * jnp.array([3.0, -4.0]))
    np.testing.assert_allclose(least, [-0.6, 0.8], rtol=1e-6)


def test_many_coordinates_projected_on_a_simplex_sum_to_its_size(key):
    # One entry far above the rest: float32 prefix sums alone leave an error of 1e-3.
    x = -0.9999 + 1e-6 * jax.random.normal(key, (300_000,))
    x = x.at[0].set(0.0)
    projected = Simplex(1.0).project(x + 10)
    assert np.asarray(projected, np.float64).sum() == pytest.approx(1, abs=1e-4)


@each
def test_diameter_is_the_largest_distance(name):
    dims = [5] if name in ("box", "polytope") else [1, 2, 5]
    for order, dim in itertools.product((1, 2), dims):
        if name == "l2":
            ends = np.ones((1, dim)) / math.sqrt(dim) * 1.5  # the widest one of l1
            rows = np.concatenate([ends, -ends])
        else:
            rows = vertices_of(name, dim)
        expected = np.linalg.norm(rows[:, None] - rows[None], ord=order, axis=-1).max()
        diameter = float(SETS[name].diameter(f"l{order}", dim))
        assert diameter == pytest.approx(expected, rel=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_diameters_of_one_vertex_and_of_a_large_polytope_are_exact(norm, key):
    one = Polytope(jnp.full((1, 4), 1e20))
    assert one.diameter(norm, 4) == 0
    grad = jax.grad(lambda polytope: polytope.diameter(norm, 4))(one)
    assert jnp.isfinite(grad.vertices).all()
    # Squares of these entries pass the largest float32.
    vertices = 1e25 * jax.random.uniform(key, (500, 200)).at[:, 5:].set(0)
    corners = jnp.zeros((2, 200)).at[1, :5].set(2e25)
    many = Polytope(jnp.concatenate([vertices, corners]))
    expected = 1e26 if norm == "l1" else math.sqrt(5) * 2e25
    assert float(many.diameter(norm, 200)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["l1", "simplex", "polytope"])
def test_vertices_and_their_scores_are_those_of_the_explicit_list(name):
    constraint, rows = SETS[name], vertices_of(name)
    assert constraint.num_vertices(5) == len(rows)
    gradients = np.asarray(points(10))
    scores = jax.jit(jax.vmap(constraint.vertex_scores))(gradients)
    np.testing.assert_allclose(scores, -gradients @ rows.T, rtol=1e-4, atol=1e-4)
    like = jnp.zeros(5)
    vertex = jax.jit(jax.vmap(lambda i: constraint.vertex(i, like)))
    np.testing.assert_allclose(vertex(np.arange(len(rows))), rows, rtol=1e-6)
    for index in (0, np.int64(1)):
        np.testing.assert_allclose(constraint.vertex(index, like), rows[index])
    # They err by no more than stated.
    gradients = np.asarray(points(2000)) * np.float32(0.37)
    scores = jax.jit(jax.vmap(constraint.vertex_scores))(gradients)
    exact = -rows.astype(np.float64) @ gradients.T.astype(np.float64)
    stated = constraint.score_error(5) * np.abs(gradients).max(axis=1)
    assert (np.abs(scores - exact.T) <= stated[:, None]).all()


@pytest.mark.quick(3)
@each
def test_a_linear_function_is_smallest_at_its_minimizer(name):
    constraint = SETS[name]
    gradients = np.asarray(points(20))
    minimize = jax.jit(jax.vmap(constraint.minimize_linear))
    minimizers = np.asarray(minimize(gradients))
    values = (minimizers * gradients).sum(axis=1)
    if name == "l2":
        least = -1.5 * np.linalg.norm(gradients, axis=1)
    else:
        least = (gradients.astype(np.float64) @ vertices_of(name).T).min(axis=1)
    assert values == pytest.approx(least, rel=1e-5, abs=1e-5)
    if name in WITH_PROJECTION:
        assert jax.jit(jax.vmap(constraint.contains))(minimizers).all()
    # |<v - w, g - g'>| <= diameter_l1 ||g - g'||_inf: the range of scores.
    signs = np.array([*itertools.product([-1, 1], repeat=5)], np.float32)
    ranges = ((minimize(-signs) - minimize(signs)) * signs).sum(axis=1)
    assert (np.asarray(ranges) <= constraint.diameter("l1", 5) * (1 + 1e-5)).all()


def as_tree(x):
    return {"b": x[0], "w": (x[1:3].reshape(2, 1), x[3:])}


def test_polytope_contains_combinations_of_its_vertices():
    rng = np.random.default_rng(0)
    vertices = 1e3 * rng.normal(size=(8, 5)).astype(np.float32)
    polytope = Polytope(vertices)
    for _ in range(5):
        inside = rng.dirichlet(np.ones(8)) @ vertices
        assert polytope.contains(inside, tolerance=1e-2)
        outside = 1.01 * vertices[3] - 0.01 * vertices[rng.integers(3)]
        assert not polytope.contains(outside, tolerance=1e-2)
    with pytest.raises(ValueError, match=r"constraint must .*Polytope"):
        polytope.project(inside)
    with pytest.raises(ValueError, match="params must be concrete for a polytope"):
        jax.jit(polytope.contains)(inside)
    single = Polytope(np.ones((1, 2)))
    assert single.contains(jnp.ones(2))
    assert not single.contains(jnp.zeros(2))


def run(constraint, x):
    """Returns all that a constraint has, of one vector or tree."""
    out = [constraint.minimize_linear(x), constraint.diameter("l1", 5)]
    if not isinstance(constraint, Polytope):
        out += [constraint.project(x), constraint.contains(x)]
    if not isinstance(constraint, L2Ball | Box):
        out += [constraint.vertex_scores(x), constraint.vertex(1, x)]
    return out


@pytest.mark.quick(3)
@each
def test_constraints_run_under_jit_and_vmap_on_trees_and_on_all_platforms(name):
    constraint, x = SETS[name], points(4)
    check = partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-6)
    singles = [run(constraint, row) for row in x]
    check(jax.jit(run)(constraint, x[0]), singles[0])
    stacked = jax.tree.map(lambda a: np.stack([a] * 4), constraint)
    check([leaf[3] for leaf in jax.jit(jax.vmap(run))(stacked, x)], singles[3])
    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(jax.jit(run), platforms=platforms)(constraint, x[0])
    assert exported.platforms == platforms
    # A pytree is one vector, whose leaves keep their types.
    in_tree = Box(as_tree(LOWER), as_tree(UPPER)) if name == "box" else constraint
    vector = jnp.float32([3, -2, 1.5, 0.7, -4])
    tree = as_tree(vector)
    for result, flat in zip(run(in_tree, tree), run(constraint, vector), strict=True):
        check(result, as_tree(flat) if isinstance(result, dict) else flat)
    tree["b"] = tree["b"].astype(jnp.bfloat16)
    least = jax.eval_shape(in_tree.minimize_linear, tree)
    assert [x.dtype for x in jax.tree.leaves(least)] == ["bfloat16"] + ["float32"] * 2


def farthest(net, points):
    return scipy.spatial.KDTree(np.asarray(net)).query(np.asarray(points))[0].max()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "constraint",
    [Box(*SIDES), Box(-1.0, 1.0), L1Ball(1.0), L2Ball(1.0), Simplex(1.0)],
    ids=["box", "uniform_box", "l1", "l2", "simplex"],
)
def test_a_grid_covers_its_set(constraint, key):
    radius = 0.25
    net = constraints.grid_net(constraint, 3, radius=radius)
    assert net.dtype == jnp.float32
    assert jax.vmap(constraint.contains)(net).all()
    # Points within, and projections of points outside: on the boundary, in corners.
    points = jax.vmap(constraint.project)(1.5 * jax.random.normal(key, (20_000, 3)))
    assert farthest(net, points) <= radius * (1 + 1e-5)


def test_a_grid_over_a_cube_is_tight():
    num_coordinates = 4
    box, radius = Box(0.0, 2.0), math.sqrt(num_coordinates) / 5  # cells of side 2/5
    net = constraints.grid_net(box, num_coordinates, radius=radius * (1 + 1e-6))
    assert net.shape == (5**num_coordinates, num_coordinates)
    corners = list(itertools.product([0.0, 2.0], repeat=num_coordinates))
    assert farthest(net, corners) == pytest.approx(radius, rel=1e-5)
    assert len(np.unique(net, axis=0)) == len(net)
    # A radius that is large needs one point.
    net = constraints.grid_net(L2Ball(1.0), 4, radius=2.0)
    np.testing.assert_allclose(net, [[0.0] * 4])


def test_a_net_too_large_is_refused_with_its_size_before_it_exists():
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"radius must be larger: 1.00e\+12 cells are"):
        constraints.grid_net(Box(0.0, 1.0), 4, radius=1e-3 * (1 + 1e-6))
    with pytest.raises(ValueError, match=r"more than 20,000,000, got 1e-20"):
        constraints.grid_net(L2Ball(1e30), 200, radius=1e-20)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
