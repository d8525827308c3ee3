"""Tables of people with a file: cells, columns, models, descriptions, and the command.

Nothing but `dpjax.sklearn`, `dpjax.datasets` and public paths to what stands here
(`dpjax.models`, `dpjax.loading`, `dpjax.describe`) imports this package.
"""


def default_delta(num_samples: int) -> float:
    """Returns n^-1.1, at most 1/2: delta of a run, as n is public under replace-one.

    Example:
        >>> f"{default_delta(32_561):.3g}"
        '1.09e-05'
    """
    return min(0.5, num_samples**-1.1)
