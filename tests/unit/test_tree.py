"""Data as JAX arrays: copies, in which no integer wraps around."""

import numpy as np
import pytest

from dpjax._tree import arrays, linear_data


def test_no_integer_wraps_around():
    """Nor does a feature or a target, which becomes a float."""
    cells = np.array([2**53 + 1, -(2**32) - 1, 7])
    np.testing.assert_array_equal(arrays(cells), [2**31 - 1, -(2**31), 7])
    _, targets = linear_data(cells[:, None], cells)
    np.testing.assert_array_equal(targets, cells.astype(np.float32))


def test_arrays_are_copies():
    for size in range(1000, 1020):  # some of them begin where JAX would read in place
        given = np.ones(size, np.float32)
        array = arrays(given)
        given[:] = 2
        assert array[0] == 1
    with pytest.raises(ValueError, match="masked"):
        arrays(np.ma.masked_array([1.0, 2.0], [False, True]))
