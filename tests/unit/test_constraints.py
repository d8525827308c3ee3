"""Constraints: projections, diameters, vertices and linear minimisation."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.test_util import check_grads

from dpjax.constraints import Box, L1Ball, L2Ball, Polytope, Simplex
from tests.unit.refusals import refused

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
WITH_VERTICES = ["l1", "simplex", "polytope"]
each = pytest.mark.parametrize("name", SETS)
each_projection = pytest.mark.parametrize("name", WITH_PROJECTION)
each_vertex_set = pytest.mark.parametrize("name", WITH_VERTICES)


def points(num_points=60, dim=5):
    """Points near and far, inside and outside, with zeros and ties."""
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-2, 2, size=(num_points, 1))
    x = rng.normal(size=(num_points, dim)) * sizes
    x[0] = 0
    x[1] = 1
    x[2, :3] = 0
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
    heavy = 1e5
    matrix = np.vstack([vertices.T, heavy * np.ones(len(vertices))])
    weights, _ = scipy.optimize.nnls(matrix, np.append(x, heavy))
    return weights @ vertices


@pytest.mark.quick(3)
@each_projection
def test_projection_is_the_nearest_point(name):
    x = np.asarray(points())
    x = x[np.linalg.norm(x, axis=1) < 20]
    found = jax.jit(jax.vmap(SETS[name].project))(x)
    expected = [nearest(name, row) for row in np.asarray(x, np.float64)]
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.quick(3)
@each_projection
def test_projection_is_inside_idempotent_and_non_expansive(name):
    constraint, x = SETS[name], points()
    project = jax.jit(jax.vmap(constraint.project))
    projected = np.asarray(project(x))
    assert jax.jit(jax.vmap(constraint.contains))(projected).all()
    np.testing.assert_allclose(project(projected), projected, atol=1e-6)
    before = np.linalg.norm(x[:, None] - x[None], axis=-1)
    after = np.linalg.norm(projected[:, None] - projected[None], axis=-1)
    assert (after <= before * (1 + 1e-5) + 1e-6).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["l1", "l2", "uniform_box"])
def test_points_inside_stay_as_they_are(name):
    x = jnp.array([0.1, -0.2, 0.0, 0.3, 1 / 3])
    assert (SETS[name].project(x) == x).all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1e6, 1e20, 1e37])
def test_projection_of_huge_points(size):
    x = size * jnp.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(L1Ball(1.0).project(x), [0, -1, 0], atol=1e-6)
    np.testing.assert_allclose(Simplex(1.0).project(x), [1, 0, 0], atol=1e-6)
    expected = np.array([1.0, -2.0, 0.5]) / math.sqrt(5.25)
    np.testing.assert_allclose(L2Ball(1.0).project(x), expected, rtol=1e-5)
    np.testing.assert_array_equal(Box(-1.0, 1.0).project(x), [1, -1, 1])


@pytest.mark.quick(1)
@pytest.mark.parametrize("radius", [1e-20, 1e30])
def test_extreme_radii(radius):
    x = radius * jnp.array([2.0, -1.0, 0.5])
    for constraint, expected in [
        (L1Ball(radius), [1, 0, 0]),
        (Simplex(radius), [1, 0, 0]),
        (L2Ball(radius), np.array([2.0, -1.0, 0.5]) / math.sqrt(5.25)),
    ]:
        found = constraint.project(x) / radius
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_simplex_sum_of_many_coordinates(key):
    # A long sum with its largest entry far above the rest: float32 prefix sums alone
    # leave an error of 1e-3 here.
    x = -0.9999 + 1e-6 * jax.random.normal(key, (300_000,))
    x = x.at[0].set(0.0)
    projected = Simplex(1.0).project(x + 10)
    assert np.asarray(projected, np.float64).sum() == pytest.approx(1, abs=1e-4)


@each
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_diameter_is_the_largest_distance(name, norm, dim):
    if dim != 5 and name in ("box", "polytope"):
        pytest.skip("the set has five coordinates")
    if name == "l2":
        ends = np.ones((1, dim)) / math.sqrt(dim) * 1.5  # the widest direction of l1
        rows = np.concatenate([ends, -ends])
    else:
        rows = vertices_of(name, dim)
    gaps = rows[:, None] - rows[None]
    order = 1 if norm == "l1" else 2
    expected = np.linalg.norm(gaps, ord=order, axis=-1).max()
    found = SETS[name].diameter(norm, dim)
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_diameter_of_one_vertex_and_of_a_large_polytope(norm, key):
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


@pytest.mark.quick(2)
@each
def test_l1_diameter_bounds_the_range_of_scores(name):
    """|<v - w, g - g'>| <= diameter_l1 ||g - g'||_inf, and signs can attain it."""
    rows = VERTICES if name == "polytope" else None
    constraint = SETS[name]
    diameter = float(constraint.diameter("l1", 5))
    signs = np.array([*itertools.product([-1, 1], repeat=5)], np.float32)
    minimize = jax.jit(jax.vmap(constraint.minimize_linear))
    ranges = ((minimize(-signs) - minimize(signs)) * signs).sum(axis=1)
    assert (np.asarray(ranges) <= diameter * (1 + 1e-5)).all()
    if rows is not None:
        gaps = np.abs(rows[:, None] - rows[None]).sum(-1)
        assert gaps.max() == pytest.approx(diameter, rel=1e-6)


@pytest.mark.quick(1)
@each_vertex_set
def test_scores_and_vertices_against_the_explicit_list(name):
    constraint, rows = SETS[name], vertices_of(name)
    assert constraint.num_vertices(5) == len(rows)
    gradients = np.asarray(points(10))
    scores = jax.jit(jax.vmap(constraint.vertex_scores))(gradients)
    np.testing.assert_allclose(scores, -gradients @ rows.T, rtol=1e-4, atol=1e-4)
    like = jnp.zeros(5)
    vertex = jax.jit(jax.vmap(lambda i: constraint.vertex(i, like)))
    found = vertex(np.arange(len(rows)))
    np.testing.assert_allclose(found, rows, rtol=1e-6)
    for index in (0, len(rows) - 1, np.int64(1), jnp.array(2)):
        np.testing.assert_allclose(constraint.vertex(index, like), rows[index])


@pytest.mark.quick(3)
@each
def test_linear_minimisation(name):
    constraint = SETS[name]
    gradients = np.asarray(points(20))
    found = np.asarray(jax.jit(jax.vmap(constraint.minimize_linear))(gradients))
    values = (found * gradients).sum(axis=1)
    if name == "l2":
        least = -1.5 * np.linalg.norm(gradients, axis=1)
    else:
        least = (gradients.astype(np.float64) @ vertices_of(name).T).min(axis=1)
    assert values == pytest.approx(least, rel=1e-5, abs=1e-5)
    if name in WITH_PROJECTION:
        assert jax.jit(jax.vmap(constraint.contains))(found).all()


def test_linear_minimisation_of_zero_and_huge_gradients():
    assert (L2Ball(1.0).minimize_linear(jnp.zeros(3)) == 0).all()
    found = L2Ball(1.0).minimize_linear(1e30 * jnp.array([3.0, -4.0]))
    np.testing.assert_allclose(found, [-0.6, 0.8], rtol=1e-6)


def as_tree(x):
    return {"b": x[0], "w": (x[1:3].reshape(2, 1), x[3:])}


@pytest.mark.quick(3)
@each
def test_a_pytree_is_one_vector(name):
    x = jnp.array([3.0, -2.0, 1.5, 0.7, -4.0])
    constraint = SETS[name]
    in_tree = Box(as_tree(LOWER), as_tree(UPPER)) if name == "box" else constraint

    def check(found, expected):
        assert jax.tree.structure(found) == jax.tree.structure(as_tree(x))
        jax.tree.map(np.testing.assert_array_equal, found, as_tree(expected))

    check(in_tree.minimize_linear(as_tree(x)), constraint.minimize_linear(x))
    assert in_tree.diameter("l2", 5) == constraint.diameter("l2", 5)
    if name in WITH_PROJECTION:
        projected = in_tree.project(as_tree(x))
        check(projected, constraint.project(x))
        assert in_tree.contains(projected)
        assert not in_tree.contains(as_tree(x))
    if name in WITH_VERTICES:
        check(in_tree.vertex(1, as_tree(x)), constraint.vertex(1, x))
        scores = in_tree.vertex_scores(as_tree(x))
        np.testing.assert_array_equal(scores, constraint.vertex_scores(x))


@each_projection
def test_contains(name):
    constraint = SETS[name]
    assert not constraint.contains(jnp.full(5, jnp.nan))
    assert not constraint.contains(jnp.full(5, jnp.inf))
    inside = constraint.project(jnp.ones(5))
    assert constraint.contains(inside)
    assert not constraint.contains(inside + 2.0)
    assert constraint.contains(inside + 2.0, tolerance=20.0)


def test_polytope_contains_combinations_of_its_vertices():
    rng = np.random.default_rng(0)
    vertices = 1e3 * rng.normal(size=(8, 5)).astype(np.float32)
    polytope = Polytope(vertices)
    for _ in range(20):
        inside = rng.dirichlet(np.ones(8)) @ vertices
        assert polytope.contains(inside, tolerance=1e-2)
        outside = 1.01 * vertices[3] - 0.01 * vertices[rng.integers(3)]
        assert not polytope.contains(outside, tolerance=1e-2)
    single = Polytope(np.ones((1, 2)))
    assert single.contains(jnp.ones(2))
    assert not single.contains(jnp.zeros(2))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", WITH_VERTICES)
def test_scores_err_by_no_more_than_stated(name):
    constraint = SETS[name]
    gradients = np.asarray(points(2000)) * np.float32(0.37)
    scores = jax.jit(jax.vmap(constraint.vertex_scores))(gradients)
    exact = -vertices_of(name).astype(np.float64) @ gradients.T.astype(np.float64)
    stated = constraint.score_error(5) * np.abs(gradients).max(axis=1)
    assert (np.abs(scores - exact.T) <= stated[:, None]).all()


@pytest.mark.quick(1)
@each
def test_jit_vmap_and_export(name):
    constraint, x = SETS[name], points(4)

    def run(constraint, x):
        out = [constraint.minimize_linear(x), constraint.diameter("l1", 5)]
        if name in WITH_PROJECTION:
            out += [constraint.project(x), constraint.contains(x)]
        if name in WITH_VERTICES:
            out += [constraint.vertex_scores(x), constraint.vertex(1, x)]
        return out

    def check(found, expected):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            found,
            expected,
        )

    check(jax.jit(run)(constraint, x[0]), run(constraint, x[0]))
    batched = jax.jit(jax.vmap(run, in_axes=(None, 0)))(constraint, x)
    check([leaf[3] for leaf in batched], run(constraint, x[3]))
    stacked = jax.tree.map(lambda a: np.stack([a, a]), constraint)
    found = jax.jit(jax.vmap(run))(stacked, x[:2])
    check([leaf[1] for leaf in found], run(constraint, x[1]))
    platforms = ["cpu", "cuda", "tpu"]
    exported = jax.export.export(jax.jit(run), platforms=platforms)(constraint, x[0])
    assert exported.platforms == tuple(platforms)


@pytest.mark.quick(1)
@each_projection
def test_gradients_of_projection(name):
    x = jnp.array([1.2, -2.2, 0.4, 0.81, 0.1])
    with jax.enable_x64(True):
        constraint = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), SETS[name])

        project = jax.jit(lambda constraint, x: constraint.project(x))

        def loss(constraint, x):
            weights = jnp.arange(1.0, 6.0, dtype=x.dtype)
            return jnp.sum(weights * project(constraint, x) ** 2)

        x = jnp.asarray(x, jnp.float64)
        check_grads(lambda x: loss(constraint, x), (x,), order=1)
        if name != "box":  # where two bounds are equal there is no derivative
            check_grads(lambda constraint: loss(constraint, x), (constraint,), order=1)
        check_grads(lambda x: loss(constraint, x), (0.01 * x,), order=1, modes=["rev"])


@pytest.mark.quick(1)
@each_projection
def test_gradients_are_finite_at_zero(name):
    jacobian = jax.jit(jax.jacobian(SETS[name].project))(jnp.zeros(5))
    assert jnp.isfinite(jacobian).all()


@pytest.mark.slow
def test_a_sweep_over_radii_compiles_once():
    traces = []

    @jax.jit
    def project(ball, x):
        traces.append(None)
        return ball.project(x)

    for radius in (0.5, 1.0, 2.0):
        project(L1Ball(radius), jnp.ones(3))
    assert len(traces) == 1


@pytest.mark.quick(1)
@each
def test_float64(name):
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(points())[5], jnp.float64)
        constraint = SETS[name]
        assert constraint.minimize_linear(x).dtype == jnp.float64
        if name in WITH_VERTICES:
            assert constraint.vertex_scores(x).dtype == jnp.float64
            assert constraint.vertex(0, x).dtype == jnp.float64
        if name in WITH_PROJECTION:
            found = constraint.project(x)
            assert found.dtype == jnp.float64
            expected = nearest(name, np.asarray(x))
            np.testing.assert_allclose(found, expected, atol=1e-7)
            assert constraint.contains(found, 1e-12)


@pytest.mark.quick(2)
@each
def test_dtypes_of_leaves_are_kept(name):
    constraint = SETS[name]
    if name == "box":
        constraint = Box(as_tree(LOWER), as_tree(UPPER))
    x = as_tree(points()[5])
    x["b"] = x["b"].astype(jnp.bfloat16)
    x["w"] = (x["w"][0], jnp.array([1, 2]))
    outputs = [constraint.minimize_linear(x)]
    if name in WITH_PROJECTION:
        outputs.append(constraint.project(x))
    for found in outputs:
        assert found["b"].dtype == jnp.bfloat16
        assert found["w"][0].dtype == found["w"][1].dtype == jnp.float32


test_bad_arguments_are_named = refused(
    lambda make: make(),
    (lambda: Box(1.0, 0.0), r"upper must be nowhere below lower, 1.0, got 0.0"),
    (lambda: Box(-math.inf, 0.0), r"lower must be between .*got -inf"),
    (lambda: Box(0.0, math.nan), r"upper must be between .*got nan"),
    (lambda: Box(None, 0.0), r"lower must be a number .*got None"),
    (lambda: Box(0.0, LOWER), r"upper must be shaped as lower"),
    (lambda: Polytope([[1.0]]), r"vertices must be a real array .*got \[\[1.0\]\]"),
    (lambda: Polytope(np.ones(3)), r"vertices must be a real array"),
    (lambda: Polytope(np.ones((0, 3))), r"vertices must be a real array"),
    (lambda: Polytope(np.array([[math.inf]])), r"vertices must be between"),
    (lambda: SETS["l1"].num_vertices(0), r"num_coordinates must be .*got 0"),
    (lambda: SETS["box"].diameter("l1", 4), r"num_coordinates must be 5,.*got 4"),
    (lambda: SETS["polytope"].diameter("l1", 4), r"num_coordinates must be 5"),
    (lambda: SETS["polytope"].vertex_scores(jnp.ones(4)), r"num_coordinates .*4"),
    (lambda: SETS["polytope"].vertex(0, jnp.ones(4)), r"num_coordinates must"),
    (lambda: SETS["polytope"].project(jnp.ones(5)), r"constraint must .*Polytope"),
    (
        lambda: jax.jit(SETS["polytope"].contains)(jnp.ones(5)),
        r"constraint must .*Polytope",
    ),
    (lambda: SETS["box"].project(jnp.ones(4)), r"params must be shaped as the"),
    (lambda: SETS["box"].minimize_linear({"a": LOWER}), r"gradient must be shaped"),
    (lambda: SETS["l1"].project({}), r"params must be a pytree of real arrays"),
    (
        lambda: SETS["l2"].project(jnp.ones(2, complex)),
        r"params must be a pytree of",
    ),
    (lambda: SETS["l1"].vertex(10, jnp.ones(5)), r"index must be .*9, got 10"),
    (lambda: SETS["l1"].vertex(-1, jnp.ones(5)), r"index must be .*got -1"),
    (lambda: SETS["l1"].vertex(0.5, jnp.ones(5)), r"index must be .*got 0.5"),
    (lambda: SETS["l1"].contains(jnp.ones(2), -1.0), r"tolerance must be .*-1.0"),
)
