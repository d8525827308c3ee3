"""The real data sets, by their names."""

from importlib import import_module

from dpjax import _validate
from dpjax._public_sets import PUBLIC_SETS
from dpjax.datasets._dataset import Dataset


def load(name: str) -> Dataset:
    """Loads a real data set, encoded with public constants only.

    - `"adult"`: who earns more than 50,000 dollars? 32,561 records for training.
    - `"rand_hie"`: the medical cost of a person's year; 16,190.
    - `"blog_feedback"`: comments that a blog post gets in a day; 52,397.
    - `"credit_default"`: who does not pay next month? 24,000.
    - `"belgian_motor"`: the claims of a policy; 130,570.
    - `"twitter"`: discussions of a topic; 466,600.
    - `"winnipeg"`: where does wheat grow? 260,734.
    - `"year_prediction"`: is a song of this century? 463,715.

    The first two are in the package. The others are looked up in the folder $DPJAX_DATA
    and then in the cache ($XDG_CACHE_HOME/dpjax, or ~/.cache/dpjax); `"blog_feedback"`
    is downloaded into the cache. `dpjax/datasets/_<name>.py` documents the target, the
    scales and the source of each set.

    Args:
        name: one of these.

    Returns:
        The training and test records; its attributes describe features and targets.

    Raises:
        ValueError: If the name is another one, or a downloaded file has a wrong
            checksum.
        OSError: If a file is not on this machine and cannot be downloaded; the message
            says how to obtain it. It is a FileNotFoundError if no address is known.

    Example:
        >>> data = load("adult")
        >>> data.features.shape, data.test_features.shape
        ((32561, 105), (16281, 105))
    """
    _validate.require(
        name in PUBLIC_SETS, "name", name, f"one of {', '.join(PUBLIC_SETS)}"
    )
    return import_module(f"dpjax.datasets._{name}").load()
