"""Lower bounds on epsilon over many keys, and for every kind of release."""

import pytest

from tests.unit.audit import test_lower_bound as short


@pytest.mark.parametrize(("bound", "name"), short.EACH)
def test_valid_over_many_keys(bound, name, key):
    short.check_over_many_keys(bound, name, 1000, key)


@pytest.mark.parametrize("release", short.LEARNT)
def test_statistics_are_learnt_for_any_release(release, key):
    short.check_learnt(release, key)
