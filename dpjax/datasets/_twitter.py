"""Buzz in social media: how much will a topic be discussed on Twitter?"""

from dpjax.datasets._dataset import Dataset, assemble, every_fifth, in_units
from dpjax.datasets._encoding import Numeric
from dpjax.datasets._files import DataFile, read_matrix, unzipped

# The archive serves it inside a package with other data; no checksum is known.
FILE = DataFile(
    path="twitter/Twitter.data.gz",
    instructions=(
        "Take the package of https://archive.ics.uci.edu/dataset/248/"
        "buzz+in+social+media, and compress regression/Twitter/Twitter.data of it "
        "with gzip."
    ),
)

# Eleven numbers of each of seven days, in the order of the file, which has no header.
# Counts keep their tails: they are only divided. Levels, rates and mean lengths stay
# as they are.
_COUNT, _RATE = Numeric(scale=1_000), Numeric()
_KINDS = {
    "created-discussions": _COUNT,
    "author-increase": _COUNT,
    "attention-by-authors": _RATE,
    "burstiness": _RATE,
    "atomic-containers": _COUNT,
    "attention-by-contributions": _RATE,
    "contribution-sparseness": _RATE,
    "author-interaction": _RATE,
    "authors": _COUNT,
    "discussion-length": _RATE,
    "active-discussions": _COUNT,
}
SCHEMA = {f"{name}-{day}": kind for name, kind in _KINDS.items() for day in range(7)}


def load() -> Dataset:
    """Returns the Twitter part of Buzz in Social Media.

    The target is the mean number of active discussions of a topic in the two weeks
    after the seven days that the features tell of, in thousands; its tail is heavy. The
    scales of the features are round numbers, chosen without the data. Every fifth
    record is in the test set.

    Reference:
        F. Kawala, A. Douzal-Chouakria, E. Gaussier and E. Dimert, Prédictions
        d'activité dans les réseaux sociaux en ligne (2013); 004, section 6.
    """
    table = read_matrix(unzipped(FILE))
    columns = dict(zip((*SCHEMA, "target"), table.T, strict=True))
    return assemble(
        columns,
        SCHEMA,
        targets=in_units(columns, "target", unit=1_000),
        is_test=every_fifth(len(table)),
        name="twitter",
        task="regression",
        target_unit="1,000 discussions",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, data set 248",
    )
