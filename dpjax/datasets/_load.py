"""The real data sets, by their names."""

from importlib import import_module

from dpjax import _validate
from dpjax.datasets._dataset import Dataset
from dpjax.datasets._public_sets import PUBLIC_SETS


def load(name: str) -> Dataset:
    """Loads a real data set, encoded with public constants only.

    - `"adult"`: who earns more than 50,000 dollars? 32,561 records for training.
    - `"rand_hie"`: the medical cost of a person's year; 16,190.

    Both are in the package. `dpjax/datasets/_<name>.py` documents the target, the
    scales and the source of each.

    Args:
        name: one of these.

    Returns:
        The training and test records; its attributes describe features and targets.

    Raises:
        ValueError: If the name is another one.

    Example:
        >>> data = load("adult")
        >>> data.features.shape, data.test_features.shape
        ((32561, 105), (16281, 105))
    """
    _validate.require(
        name in PUBLIC_SETS, "name", name, f"one of {', '.join(PUBLIC_SETS)}"
    )
    return import_module(f"dpjax.datasets._{name}").load()
