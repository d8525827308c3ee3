"""RAND Health Insurance Experiment: what does a person's care cost in a year?"""

from dpjax.datasets._dataset import (
    Dataset,
    assemble,
    bundled,
    every_fifth,
    in_units,
    read_columns,
)
from dpjax.tables.columns._kinds import Categorical, Numeric

_FLAG = Numeric(limit=1.0)

# The features were known before the year: the insurance plan, the person, the baseline
# health. Centers and scales are round numbers from the description: indices run from 0
# to 100, the family's income is near e^8.5 dollars, persons are aged 0 to 64. The
# schema leaves out the outcomes of the year (expenditures, counts of visits and
# admissions, and columns computed from them), the numbers of plan and person, and
# columns that repeat another: family size, income, coinsurance and offers are features
# by their logarithms, and the health index with its gaps filled (xghindx).
SCHEMA = {
    "logc": Numeric(center=2, scale=2),
    "idp": _FLAG,
    "lpi": Numeric(center=5, scale=3),
    "fmde": Numeric(center=4, scale=4),
    "tookphys": _FLAG,
    "year": Numeric(center=3, scale=1),
    "time": Numeric(center=1, scale=1),
    "site": Categorical(("1", "2", "3", "4", "5", "6")),
    "xage": Numeric(center=30, scale=15),
    **dict.fromkeys(("female", "child", "fchild", "black"), _FLAG),
    "educdec": Numeric(center=12, scale=3),
    "linc": Numeric(center=8.5, scale=1),
    "lnum": Numeric(center=1.2, scale=0.5),
    "physlm": _FLAG,
    "disea": Numeric(center=10, scale=10),
    "mhi": Numeric(center=75, scale=15),
    "xghindx": Numeric(center=75, scale=15),
    **dict.fromkeys(("hlthg", "hlthf", "hlthp"), _FLAG),
}


def load() -> Dataset:
    """Returns the RAND Health Insurance Experiment.

    The target is `meddol`, the medical expenditure of a person in a year, without
    dental care and outpatient psychotherapy, in hundreds of dollars. A fifth of the
    targets are zero, and the tail is heavy. A record is one year of a person, and a
    person has up to five records, so a guarantee for a record is no guarantee for a
    person.

    The records of a person stand together. To keep them on one side, the test set is
    every fifth block of 100 records; only persons at the edge of a block are split.

    Reference:
        J. P. Newhouse and the Insurance Experiment Group, Free for All? (1993).
    """
    columns = read_columns(bundled("randhie.csv.gz"))
    targets = in_units(columns, "meddol", unit=100)
    return assemble(
        columns,
        SCHEMA,
        targets=targets,
        is_test=every_fifth(len(targets), block_size=100),
        name="rand_hie",
        task="regression",
        target_unit="100 dollars",
        licence="public domain",
        source="RAND Corporation, as distributed with statsmodels (randhie)",
    )
