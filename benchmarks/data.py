"""The real data sets that are not part of the package: where each is, and its schema.

Centers and scales are round numbers, chosen without the data.
"""

import gzip
import io
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpjax import datasets
from dpjax.datasets import Categorical, Dataset, Numeric
from dpjax.datasets._dataset import assemble, every_fifth, in_units, read_columns, signs

Columns = Mapping[str, np.ndarray]
_FLAG = Numeric(limit=1.0)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set outside of the package.

    Attributes:
        path: of its file, below $DPJAX_DATA; `how` tells how to obtain it.
        target: the column of the targets, and their unit in words.
        unit: what targets are divided by, in a regression.
        is_positive: says which values of the target are one class, the other class.
        is_test: a function of the columns that marks the test records.
    """

    path: str
    how: str
    schema: Mapping[str, Numeric | Categorical]
    target: tuple[str, str]
    unit: float = 1.0
    is_positive: Callable[[np.ndarray], np.ndarray] | None = None
    is_test: Callable[[Columns], np.ndarray] = lambda x: every_fifth(_size(x))
    source: str
    licence: str = "CC BY 4.0"

    def read(self, path: Path) -> Columns:
        """Returns the file's columns by name."""
        if path.suffix == ".zip":
            return _blog_feedback(path)
        return read_columns(gzip.decompress(path.read_bytes()))


def load(name: str) -> Dataset:
    """Loads a real data set: one of `SOURCES`, or of `dpjax.datasets.load`."""
    if (one := SOURCES.get(name)) is None:
        return datasets.load(name)
    path = Path(os.environ.get("DPJAX_DATA", "$DPJAX_DATA"), one.path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not on this machine: {one.how}")
    columns, (target, words) = one.read(path), one.target
    targets = in_units(columns, target, unit=one.unit)
    task = "regression"
    if one.is_positive is not None:
        task, targets = "classification", signs(one.is_positive(targets))
    facts = {"target_unit": words, "licence": one.licence, "source": one.source}
    facts |= {"name": name, "task": task, "is_test": one.is_test(columns)}
    return assemble(columns, one.schema, targets=targets, **facts)


def _size(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _numbers(text: bytes) -> np.ndarray:
    """Reads lines of numbers as float32; NaN where a cell does not parse."""
    options = {"delimiter": ",", "dtype": np.float32}
    try:
        return np.loadtxt(io.BytesIO(text), ndmin=2, **options)
    except ValueError:  # An odd cell: genfromtxt takes it, ten times slower.
        return np.atleast_2d(np.genfromtxt(io.BytesIO(text), **options))


def _blog_feedback(path: Path) -> Columns:
    """Reads an archive: the training file, then the files of the test days."""
    with zipfile.ZipFile(path) as archive:
        days = sorted(name for name in archive.namelist() if "test" in name)
        train = _numbers(archive.read("blogData_train.csv"))
        test = _numbers(b"".join(archive.read(day) for day in days))
    header = (*_BLOG_FEEDBACK, "target")
    columns = dict(zip(header, np.vstack([train, test]).T, strict=True))
    return columns | {"is_test": np.arange(len(train) + len(test)) >= len(train)}


# What the insurer knew beforehand. Round numbers: the bonus-malus scale runs from 0 to
# 22 and starts at 11; a common car of 1997 had 55 kW; Belgium lies within a degree or
# two of 4.5 E, 50.8 N. Left out are the outcomes (claim, nclaims, average), the policy
# number and the postcode, which the coordinates stand for.
_BELGIAN_MOTOR = {
    "expo": Numeric(center=1, scale=1),
    "coverage": Categorical(("TPL", "TPL+", "TPL++")),
    "ageph": Numeric(center=45, scale=15),
    "sex": Categorical(("female", "male")),
    "bm": Numeric(center=11, scale=11),
    "power": Numeric(center=55, scale=20),
    "agec": Numeric(center=7, scale=5),
    "fuel": Categorical(("gasoline", "diesel")),
    "use": Categorical(("private", "work")),
    "fleet": _FLAG,
    "long": Numeric(center=4.5, scale=1),
    "lat": Numeric(center=50.8, scale=0.5),
}
_COMMENTS = Numeric(scale=100)
_LINKS = Numeric(scale=10)
_COUNTED = ("total", "last-24h", "24h-before", "first-24h", "change")
_STATISTICS = ("mean", "std", "min", "max", "median")

# The 280 columns in the order of the file, which has no header; names follow the
# archive's description. Counts keep their tails: they are only divided, comments by 100
# and links by 10. A post is at most 72 hours old; its length is in characters.
_BLOG_FEEDBACK = {
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

# Amounts are in New Taiwan dollars; bills, payments and credit limits keep their tails:
# they are only divided. PAY_m counts the months of delay, -2 to 8.
_CREDIT_DEFAULT = {
    "LIMIT_BAL": Numeric(scale=100_000),
    "SEX": _FLAG,
    "AGE": Numeric(center=40, scale=10),
    **{f"PAY_{month}": Numeric() for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": Numeric(scale=100_000) for month in range(1, 7)},
    **{f"PAY_AMT{month}": Numeric(scale=10_000) for month in range(1, 7)},
    **{f"EDUCATION_{code}": _FLAG for code in range(7)},
    **{f"MARRIAGE_{code}": _FLAG for code in range(4)},
}
_UCI = "UCI Machine Learning Repository"
_ARCHIVE = "https://archive.ics.uci.edu/dataset"

SOURCES = {
    # Claims of a policy in the time that it was in force (`expo`, at most a year):
    # eight policies in nine claim nothing. R. Henckaerts, K. Antonio, M. Clijsters and
    # R. Verbelen, A data driven binning strategy for the construction of insurance
    # tariff classes (2018).
    "belgian_motor": Source(
        path="insurance/beMTPL97.csv.gz",
        how="Install the R package CASdatasets (https://dutangc.github.io/CASdatasets) "
        "and run: library(CASdatasets); data(beMTPL97); write.csv(beMTPL97, "
        'gzfile("beMTPL97.csv.gz"), row.names = FALSE).',
        schema=_BELGIAN_MOTOR,
        target=("amount", "1,000 euros"),
        unit=1_000,
        licence="GPL 2 or later (R package CASdatasets)",
        source="R package CASdatasets, beMTPL97",
    ),
    # Comments on a post in the next 24 hours: two thirds have none. The training set is
    # of 2010 and 2011, the test set of 60 days in 2012. K. Buza, Feedback prediction
    # for blogs (2014); 004, section 6.
    "blog_feedback": Source(
        path="blogfeedback/BlogFeedback.zip",
        how=f"Take it from {_ARCHIVE}/304/blogfeedback.",
        schema=_BLOG_FEEDBACK,
        target=("target", "10 comments"),
        unit=10,
        is_test=lambda columns: columns["is_test"],
        source=f"{_UCI}, doi 10.24432/C58S3F",
    ),
    # I.-C. Yeh and C.-H. Lien, The comparisons of data mining techniques for the
    # predictive accuracy of probability of default of credit card clients (2009).
    "credit_default": Source(
        path="credit/UCI_Credit_Card.csv.gz",
        how=f"Take the spreadsheet of {_ARCHIVE}/350, and write it as gzipped CSV: "
        "columns ID, LIMIT_BAL, SEX, AGE, PAY_0, PAY_2 to PAY_6, BILL_AMT1 to "
        "BILL_AMT6, PAY_AMT1 to PAY_AMT6, default-payment-next-month; SEX less one, so "
        "that 1 is a woman; EDUCATION and MARRIAGE one-hot as EDUCATION_0 to "
        "EDUCATION_6 and MARRIAGE_0 to MARRIAGE_3.",
        schema=_CREDIT_DEFAULT,
        target=(
            "default-payment-next-month",
            "+1 for default on the next payment, else -1",
        ),
        is_positive=lambda default: default > 0.5,
        source=f"{_UCI}, doi 10.24432/C55S3H",
    ),
}
