"""Attacks of the daily tests with more keys, releases and searches."""

import pytest

from tests.privacy.audit.test_planted_faults import FAULTS, check
from tests.privacy.audit.test_score_ranges import check_many_coordinates, widest
from tests.unit.audit import test_lower_bound as short


@pytest.mark.parametrize(("bound", "name"), short.EACH)
def test_valid_over_many_keys(bound, name, key):
    short.check_over_many_keys(bound, name, 1000, key)


@pytest.mark.parametrize("release", short.LEARNT)
def test_statistics_are_learnt_for_any_release(release, key):
    short.check_learnt(release, key)


@pytest.mark.parametrize("name", FAULTS)
def test_all_releases_catch(name, key):
    check(name, FAULTS[name].build(True).audit(key=key))


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_fault_the_claim_stands(name, key):
    case = FAULTS[name].build(False)
    assert case.privacy.epsilon == FAULTS[name].build(True).privacy.epsilon
    assert case.audit(key=key).epsilon <= case.privacy.epsilon


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_search_finds_a_wider_range(seed):
    assert 0.99 < widest(seed, 3000, [1, 2, 3, 17, 1000]) <= 1


def test_many_coordinates():
    check_many_coordinates(1_000_000)
