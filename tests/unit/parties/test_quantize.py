"""The grid: rounding, what it does to odd values, and to distances."""

import math

import numpy as np

from dpjax.parties._secure_sum import Grid
from tests.unit.refusals import refused


def test_grid_is_fine_against_the_noise():
    for stddev in (1e-9, 0.3, 1.0, 52.8, 1e12):
        grid = Grid.for_stddev(stddev, bound=stddev)
        assert 2**24 <= stddev / grid.step < 2**25
        assert math.frexp(grid.step)[0] == 0.5


def test_values_survive_to_half_a_step_and_nothing_leaves_the_bound():
    grid = Grid(step=2.0**-10, bound=1e3)
    values = np.random.default_rng(0).uniform(-1e3, 1e3, 1000)
    integers = grid.to_integers(values)
    assert integers.dtype == np.int64
    assert np.abs(grid.to_reals(integers) - values).max() <= 2.0**-11
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, -1e38, 5e-324, -7.4, 7.0])
    integers = Grid(step=1.0, bound=7.0).to_integers(odd)
    np.testing.assert_array_equal(integers, [0, 7, -7, 7, -7, 0, -7, 7])


def test_sensitivity_covers_the_worst_rounding():
    # Neighbours on either side of a rounding boundary, in every coordinate.
    grid, d = Grid(step=0.5, bound=100.0), 16
    below, above = np.full(d, 0.25 - 1e-9), np.full(d, 0.75 + 1e-9)
    moved = np.linalg.norm(grid.to_integers(above) - grid.to_integers(below))
    distance = np.linalg.norm(above - below)
    assert moved > distance / grid.step  # rounding adds to it
    assert moved <= grid.sensitivity(distance, d)


test_bad_arguments_are_named = refused(
    lambda changes: Grid(**{"step": 1.0, "bound": 1.0} | changes),
    *(({"step": step}, "step") for step in (0.3, 0.0, math.inf)),
    *(({"bound": bound}, "bound") for bound in (2.0**53, math.nan)),
)
