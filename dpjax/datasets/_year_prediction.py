"""Year Prediction MSD: was a song released in this century?"""

import numpy as np

from dpjax.datasets._dataset import Dataset, assemble, signs
from dpjax.datasets._encoding import Numeric
from dpjax.datasets._files import DataFile, read_matrix, unzipped

# The archive serves it inside a package; no checksum is known.
FILE = DataFile(
    path="year_prediction/YearPredictionMSD.txt.gz",
    instructions=(
        "Take the package of https://archive.ics.uci.edu/dataset/203/"
        "yearpredictionmsd, and compress YearPredictionMSD.txt of it with gzip."
    ),
)

_NUM_TRAIN = 463_715  # the archive's split: no artist is in both parts

# Twelve means of the timbre and 78 covariances, in the order of the file, which has no
# header; they keep their tails.
SCHEMA = {
    **{f"timbre-mean-{index}": Numeric(scale=50) for index in range(1, 13)},
    **{f"timbre-covariance-{index}": Numeric(scale=1_000) for index in range(1, 79)},
}


def load() -> Dataset:
    """Returns the year prediction part of the Million Song Dataset.

    The target is +1 for a song of the year 2000 or later, else -1 (the paper does not
    say where it cut). The scales of the features are round numbers, chosen without the
    data. The split is the archive's.

    Reference:
        T. Bertin-Mahieux, D. P. W. Ellis, B. Whitman and P. Lamere, The Million Song
        Dataset (2011); 004, section 6.
    """
    table = read_matrix(unzipped(FILE))
    columns = dict(zip(("year", *SCHEMA), table.T, strict=True))
    return assemble(
        columns,
        SCHEMA,
        targets=signs(columns["year"] >= 2000),
        is_test=np.arange(len(table)) >= _NUM_TRAIN,
        name="year_prediction",
        task="classification",
        target_unit="+1 for a song of 2000 or later, else -1",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, data set 203",
    )
