"""Rents of flats: a skeleton of a data set."""

from dpjax.datasets._dataset import Dataset, assemble, every_fifth, in_units
from dpjax.datasets._encoding import Categorical, Numeric
from dpjax.datasets._files import DataFile, locate, read_columns

FILE = DataFile(
    path="rents/rents.csv",
    instructions="Take the table of ADDRESS, and keep the columns of the schema.",
)

# Centres and scales are round numbers from the description, not from the records:
# flats have some 70 square metres, and were built in the 20th century.
SCHEMA = {
    "area": Numeric(center=70, scale=30),
    "year_built": Numeric(center=1950, scale=50),
    "district": Categorical(("north", "south")),
}


def load() -> Dataset:
    """Returns the rents of flats.

    The target is the rent of a month in hundreds of euros. Every fifth record is in
    the test set.

    Reference:
        Who made the data, and where they are described.
    """
    columns = read_columns(locate(FILE).read_bytes())
    targets = in_units(columns, "rent", unit=100)
    return assemble(
        columns,
        SCHEMA,
        targets=targets,
        is_test=every_fifth(len(targets)),
        name="rents",
        task="regression",
        target_unit="hundreds of euros a month",
        licence="its name",
        source="its address, or its doi",
    )
