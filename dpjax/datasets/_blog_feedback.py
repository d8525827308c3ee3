"""BlogFeedback: how many comments does a blog post get in the next 24 hours?"""

import zipfile

import numpy as np

from dpjax.datasets._dataset import Dataset, assemble, in_units
from dpjax.datasets._encoding import Numeric
from dpjax.datasets._files import DataFile, locate, read_matrix

FILE = DataFile(
    path="blogfeedback/BlogFeedback.zip",
    instructions="Take it from https://archive.ics.uci.edu/dataset/304/blogfeedback.",
    address="https://archive.ics.uci.edu/static/public/304/blogfeedback.zip",
    sha256="1ba74e5ad920f7cd037502b2968581cc695146a226a73eff52fe8ad875ed4bcf",
)

_COMMENTS = Numeric(scale=100)
_LINKS = Numeric(scale=10)
_FLAG = Numeric(limit=1.0)
_COUNTED = ("total", "last-24h", "24h-before", "first-24h", "change")
_STATISTICS = ("mean", "std", "min", "max", "median")

# The 280 columns in the order of the file, which has no header; names follow the
# archive's description. Counts keep their tails: they are only divided, comments by 100
# and links by 10. A post is at most 72 hours old; its length is in characters.
SCHEMA = {
    **{
        f"source-{kind}-{counted}-{statistic}": scaling
        for kind, scaling in (("comments", _COMMENTS), ("links", _LINKS))
        for counted in _COUNTED
        for statistic in _STATISTICS
    },
    **{f"comments-{counted}": _COMMENTS for counted in _COUNTED},
    **{f"links-{counted}": _LINKS for counted in _COUNTED},
    "hours-since-publication": Numeric(center=36, scale=24),
    "length": Numeric(scale=1_000),
    **{f"word-{index}": _FLAG for index in range(1, 201)},
    **{f"weekday-now-{day}": _FLAG for day in range(1, 8)},
    **{f"weekday-published-{day}": _FLAG for day in range(1, 8)},
    "num-parents": Numeric(),
    **{f"parent-comments-{part}": _COMMENTS for part in ("min", "max", "mean")},
}


def load() -> Dataset:
    """Returns BlogFeedback, fetched from its archive at first use, with its own split.

    The target is the number of comments of a blog post in the next 24 hours, in tens:
    two thirds are zero, and the tail is heavy. The training set is of 2010 and 2011,
    the test set of 60 days in 2012.

    Reference:
        K. Buza, Feedback prediction for blogs (2014); 004, section 6.
    """
    with zipfile.ZipFile(locate(FILE)) as archive:
        days = sorted(name for name in archive.namelist() if "test" in name)
        train = read_matrix(archive.read("blogData_train.csv"))
        test = read_matrix(b"".join(archive.read(day) for day in days))
    table = np.vstack([train, test])
    columns = dict(zip((*SCHEMA, "target"), table.T, strict=True))
    return assemble(
        columns,
        SCHEMA,
        targets=in_units(columns, "target", unit=10),
        is_test=np.arange(len(table)) >= len(train),
        name="blog_feedback",
        task="regression",
        target_unit="10 comments",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, doi 10.24432/C58S3F",
    )
