"""Longer attacks on the range that private choices of vertices rest on."""

import pytest

from tests.privacy.audit.test_score_ranges import check_many_coordinates, widest


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_search_finds_a_wider_range(seed):
    assert 0.99 < widest(seed, 3000, [1, 2, 3, 17, 1000]) <= 1


def test_many_coordinates():
    check_many_coordinates(1_000_000)
