"""Each planted fault changes one piece of the library, and leaves it a program."""

import ast

import pytest

from tests.nightly.mutations import FAULTS, ROOT, place_of


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_one_place(fault):
    ast.parse(place_of(fault, ROOT).read_text().replace(fault.old, fault.new))
    assert fault.old != fault.new
    assert all((ROOT / path).exists() for path in fault.tests.split())


def test_faults_have_names_of_their_own():
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 80
