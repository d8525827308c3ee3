"""Winnipeg: which crop grows where the radar and the camera look?"""

from dpjax.datasets._dataset import Dataset, assemble, every_fifth, in_units, signs
from dpjax.datasets._encoding import Numeric
from dpjax.datasets._files import DataFile, read_columns, unzipped

# The archive serves it inside a package; no checksum is known.
FILE = DataFile(
    path="winnipeg/WinnipegDataset.txt.gz",
    instructions=(
        "Take the package of https://archive.ics.uci.edu/dataset/525/"
        "crop+mapping+using+fused+optical+radar+data+set, and compress "
        "WinnipegDataset.txt of it with gzip."
    ),
)

_WHEAT = 6  # of seven crops: corn, pea, canola, soybean, oat, wheat, broadleaf

# f1 to f98 are of radar, in decibels and ratios, f99 to f174 of light, on two days.
SCHEMA = {f"f{index}": Numeric(scale=10) for index in range(1, 175)}


def load() -> Dataset:
    """Returns Crop Mapping Using Fused Optical-Radar Data.

    The target is +1 for wheat, else -1 (the paper does not say which classes it took).
    The scale of the features is a round number, chosen without the data. Every fifth
    block of a hundred records is in the test set, since neighbors are alike.

    Reference:
        I. Khosravi and S. K. Alavipanah, A random forest-based framework for crop
        mapping using temporal, spectral, textural and polarimetric observations (2019);
        004, section 6.
    """
    columns = read_columns(unzipped(FILE))
    crop = in_units(columns, "label", unit=1)
    return assemble(
        columns,
        SCHEMA,
        targets=signs(crop == _WHEAT),
        is_test=every_fifth(len(crop), block_size=100),
        name="winnipeg",
        task="classification",
        target_unit="+1 for wheat, else -1",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, data set 525",
    )
