"""Tables in files: cells, columns, models, private descriptions, and the command.

Only `dpjax.sklearn`, `dpjax.datasets` and the public paths to this package
(`dpjax.models`, `dpjax.loading`, `dpjax.describe`, `dpjax.read_guarantee`) import it.
"""


def default_delta(num_samples: int) -> float:
    """Returns the default delta n^-1.1, at most 1/2; n is public under replace-one.

    Example:
        >>> f"{default_delta(32_561):.3g}"
        '1.09e-05'
    """
    return min(0.5, num_samples**-1.1)
