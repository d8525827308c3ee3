"""Nets: what they cover, how they spread, and which are refused before they exist."""

import itertools
import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial

from dpjax.constraints import Box, L1Ball, L2Ball, Simplex, grid_net, halton_net

LOWER, UPPER = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.3, 2.0])
SETS = {
    "box": Box(LOWER, UPPER),  # its last side has no length
    "uniform_box": Box(-1.0, 1.0),
    "l1": L1Ball(1.0),
    "l2": L2Ball(1.0),
    "simplex": Simplex(1.0),
}


def farthest(net, points):
    return scipy.spatial.KDTree(np.asarray(net)).query(np.asarray(points))[0].max()


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SETS)
def test_a_grid_covers_its_set(name, key):
    constraint, radius = SETS[name], 0.25
    net = grid_net(constraint, 3, radius=radius)
    assert net.dtype == jnp.float32
    assert jax.vmap(constraint.contains)(net).all()
    # Points within, and projections of points outside: on the boundary, in corners.
    wide = 1.5 * jax.random.normal(key, (20_000, 3))
    points = jax.vmap(constraint.project)(wide)
    assert farthest(net, points) <= radius * (1 + 1e-5)


def test_a_grid_over_a_cube_is_tight():
    num_coordinates = 4
    radius = math.sqrt(num_coordinates) / 5  # cells of side 2/5
    net = grid_net(Box(0.0, 2.0), num_coordinates, radius=radius * (1 + 1e-6))
    assert net.shape == (5**num_coordinates, num_coordinates)
    corners = list(itertools.product([0.0, 2.0], repeat=num_coordinates))
    assert farthest(net, corners) == pytest.approx(radius, rel=1e-5)
    assert len(np.unique(net, axis=0)) == len(net)
    # A radius that is large needs one point.
    np.testing.assert_allclose(grid_net(L2Ball(1.0), 4, radius=2.0), [[0.0] * 4])


def test_a_halton_net_spreads_over_its_box():
    net = np.asarray(halton_net(Box(LOWER, UPPER), 3, num_candidates=4096))
    assert net.shape == (4096, 3)
    assert (net >= LOWER.astype(np.float32)).all()
    assert (net <= UPPER.astype(np.float32)).all()
    # Every cell of a 16 by 9 grid holds its share but for one or two points, where
    # random points would be off by five.
    unit = (net[:, :2] - LOWER[:2]) / (UPPER - LOWER)[:2]
    counts, _, _ = np.histogram2d(*unit.T, bins=(16, 9), range=[(0, 1), (0, 1)])
    assert np.abs(counts - 4096 / 144).max() <= 2.5
    again = halton_net(Box(LOWER, UPPER), 3, num_candidates=100)
    np.testing.assert_array_equal(again, net[:100])


def test_a_net_too_large_is_refused_with_its_size_before_it_exists():
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"radius must be larger: 1.00e\+12 cells are"):
        grid_net(Box(0.0, 1.0), 4, radius=1e-3 * (1 + 1e-6))
    with pytest.raises(ValueError, match=r"more than 20,000,000, got 1e-20"):
        grid_net(L2Ball(1e30), 200, radius=1e-20)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
