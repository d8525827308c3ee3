"""Samples of every precision and size, in programs drawn at random, with x64."""

import pytest

from tests.any_precision import check_moves_of_program


@pytest.mark.quick(20)
@pytest.mark.parametrize("seed", range(400))
def test_no_record_moves_a_mean_beyond_its_sensitivity(seed):
    check_moves_of_program(seed)
