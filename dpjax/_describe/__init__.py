"""A private description of a table: counts, means, quantiles and histograms."""

from dpjax._describe._description import Description, Row
from dpjax._describe._page import costs_of, numbers_of
from dpjax._describe._release import (
    MOST_RECORDS,
    Kind,
    check,
    describe,
    guarantee,
    release,
)

__all__ = ["MOST_RECORDS", "Description", "Kind", "Row", "check"]
__all__ += ["costs_of", "describe", "guarantee", "numbers_of", "release"]
