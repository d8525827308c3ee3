"""The public data sets by their names, each read when it is asked for."""

from typing import TYPE_CHECKING

from dpjax._public_sets import PUBLIC_SETS

if TYPE_CHECKING:
    from dpjax.datasets import Dataset


def public_name(data: str) -> str | None:
    """Returns the name of the public data set that is meant, or None for a file.

    Example:
        >>> public_name("rand-hie"), public_name("prices.csv")
        ('rand_hie', None)
    """
    name = data.replace("-", "_")
    return name if name in PUBLIC_SETS else None


def public_set(name: str) -> "Dataset":
    """Returns the records of a public data set."""
    from dpjax import datasets

    return datasets.load(name)
