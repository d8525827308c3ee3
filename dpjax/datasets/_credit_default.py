"""Default of credit card clients: who does not pay next month?"""

from dpjax.datasets._dataset import Dataset, assemble, every_fifth, in_units, signs
from dpjax.datasets._encoding import Numeric
from dpjax.datasets._files import DataFile, read_columns, unzipped

# The archive (doi 10.24432/C55S3H) serves a spreadsheet, from which this table was
# derived; no address is known that serves the table itself.
FILE = DataFile(
    path="credit/UCI_Credit_Card.csv.gz",
    instructions=(
        "Take the spreadsheet of https://archive.ics.uci.edu/dataset/350, and write it "
        "as gzipped CSV: columns ID, LIMIT_BAL, SEX, AGE, PAY_0, PAY_2 to PAY_6, "
        "BILL_AMT1 to BILL_AMT6, PAY_AMT1 to PAY_AMT6, default-payment-next-month; SEX "
        "less one, so that 1 is a woman; EDUCATION and MARRIAGE one-hot as EDUCATION_0 "
        "to EDUCATION_6 and MARRIAGE_0 to MARRIAGE_3."
    ),
)

_FLAG = Numeric(limit=1.0)
_MONTHS = (1, 2, 3, 4, 5, 6)

# Amounts are in New Taiwan dollars; bills, payments and credit limits keep their tails:
# they are only divided. PAY_m counts the months of delay, -2 to 8.
SCHEMA = {
    "LIMIT_BAL": Numeric(scale=100_000),
    "SEX": _FLAG,
    "AGE": Numeric(center=40, scale=10),
    **{f"PAY_{month}": Numeric() for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": Numeric(scale=100_000) for month in _MONTHS},
    **{f"PAY_AMT{month}": Numeric(scale=10_000) for month in _MONTHS},
    **{f"EDUCATION_{code}": _FLAG for code in range(7)},
    **{f"MARRIAGE_{code}": _FLAG for code in range(4)},
}


def load() -> Dataset:
    """Returns Default of Credit Card Clients (Taiwan, 2005).

    The target is +1 for a client who defaults on the next month's payment, else -1.
    Every fifth record is in the test set.

    Reference:
        I.-C. Yeh and C.-H. Lien, The comparisons of data mining techniques for the
        predictive accuracy of probability of default of credit card clients (2009).
    """
    columns = read_columns(unzipped(FILE))
    defaults = in_units(columns, "default-payment-next-month", unit=1) > 0.5
    return assemble(
        columns,
        SCHEMA,
        targets=signs(defaults),
        is_test=every_fifth(len(defaults)),
        name="credit_default",
        task="classification",
        target_unit="+1 for default on the next payment, else -1",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, doi 10.24432/C55S3H",
    )
