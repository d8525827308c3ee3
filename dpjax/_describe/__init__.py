"""A private description of a table: counts, means, quantiles and histograms."""

from dpjax._describe._description import Description
from dpjax._describe._page import svg_of
from dpjax._describe._release import (
    MOST_RECORDS,
    Kind,
    check,
    describe,
    guarantee,
    release,
)

__all__ = ["MOST_RECORDS", "Description", "Kind", "check"]
__all__ += ["describe", "guarantee", "release", "svg_of"]
