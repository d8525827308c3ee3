"""Planted faults are caught with all releases, and the sound releases stand."""

import pytest

from tests.privacy.audit.test_planted_faults import FAULTS, check


@pytest.mark.parametrize("name", FAULTS)
def test_all_releases_catch(name, key):
    check(name, FAULTS[name].build(True).audit(key=key))


@pytest.mark.parametrize("name", FAULTS)
def test_without_the_fault_the_claim_stands(name, key):
    case = FAULTS[name].build(False)
    assert case.privacy.epsilon == FAULTS[name].build(True).privacy.epsilon
    assert case.audit(key=key).epsilon <= case.privacy.epsilon
