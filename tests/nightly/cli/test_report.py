"""`dpjax report` of runs that take long."""

import pytest

from tests.unit.cli.test_report import assert_complete, assert_harmless, out, table

__all__ = ["out", "table"]


@pytest.mark.parametrize(
    "name",
    ["described", "labels", "ranges", "persons", "sampled", "intervals", "curves"],
)
def test_what_it_says_of_a_run(out, name):
    assert_complete(out, name)


def test_a_strangers_text_is_text(out):
    assert_harmless(out, "described")
