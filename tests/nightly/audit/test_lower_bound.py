"""Lower bounds on epsilon over many keys, and for every kind of release."""

import pytest

from tests.unit.audit.test_lower_bound import (
    EACH,
    LEARNT,
    check_learnt,
    check_over_many_keys,
)


@pytest.mark.parametrize(("bound", "name"), EACH)
def test_valid_over_many_keys(bound, name, key):
    check_over_many_keys(bound, name, 1000, key)


@pytest.mark.parametrize("release", LEARNT)
def test_statistics_are_learnt_for_any_release(release, key):
    check_learnt(release, key)
