"""`dpjax report` of runs that take long."""

import pytest

from tests.unit.cli.test_report import assert_complete, out, table

__all__ = ["out", "table"]


@pytest.mark.parametrize(
    "name", ["ranges", "persons", "sampled", "intervals", "curves"]
)
def test_what_it_says_of_a_run(out, name):
    assert_complete(out, name)
