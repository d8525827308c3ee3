"""Belgian motor third-party liability (1997): what does a policy's year cost?"""

from dpjax.datasets._dataset import Dataset, assemble, every_fifth, in_units
from dpjax.datasets._encoding import Categorical, Numeric
from dpjax.datasets._files import DataFile, read_columns, unzipped

# The R package CASdatasets serves the data in R's own format; no address is known that
# serves them as CSV.
FILE = DataFile(
    path="insurance/beMTPL97.csv.gz",
    instructions=(
        "Install the R package CASdatasets (https://dutangc.github.io/CASdatasets) and "
        "run: library(CASdatasets); data(beMTPL97); "
        'write.csv(beMTPL97, gzfile("beMTPL97.csv.gz"), row.names = FALSE).'
    ),
)

# What the insurer knew beforehand. Round numbers: the bonus-malus scale runs from 0 to
# 22 and starts at 11; a common car of 1997 had 55 kW; Belgium lies within a degree or
# two of 4.5 E, 50.8 N. Left out are the outcomes (claim, nclaims, average), the policy
# number and the postcode, which the coordinates stand for.
SCHEMA = {
    "expo": Numeric(center=1, scale=1),
    "coverage": Categorical(("TPL", "TPL+", "TPL++")),
    "ageph": Numeric(center=45, scale=15),
    "sex": Categorical(("female", "male")),
    "bm": Numeric(center=11, scale=11),
    "power": Numeric(center=55, scale=20),
    "agec": Numeric(center=7, scale=5),
    "fuel": Categorical(("gasoline", "diesel")),
    "use": Categorical(("private", "work")),
    "fleet": Numeric(limit=1.0),
    "long": Numeric(center=4.5, scale=1),
    "lat": Numeric(center=50.8, scale=0.5),
}


def load() -> Dataset:
    """Returns Belgian motor third-party liability insurance.

    The target is `amount`, the sum of what a policy's holder claimed during the time
    that the policy was in force (`expo`, at most a year), in thousands of euros: eight
    policies in nine claim nothing, and the tail of the rest is heavy. Every fifth
    record is in the test set.

    Reference:
        R. Henckaerts, K. Antonio, M. Clijsters and R. Verbelen, A data driven binning
        strategy for the construction of insurance tariff classes (2018).
    """
    columns = read_columns(unzipped(FILE))
    targets = in_units(columns, "amount", unit=1_000)
    return assemble(
        columns,
        SCHEMA,
        targets=targets,
        is_test=every_fifth(len(targets)),
        name="belgian_motor",
        task="regression",
        target_unit="1,000 euros",
        licence="GPL 2 or later (R package CASdatasets)",
        source="R package CASdatasets, beMTPL97",
    )
