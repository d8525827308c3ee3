"""The delta that a run gets where none is asked for."""


def default_delta(num_samples: int) -> float:
    """Returns n^-1.1, as n is public under replace-one, and a half for one record.

    Example:
        >>> f"{default_delta(32_561):.3g}"
        '1.09e-05'
    """
    return min(0.5, num_samples**-1.1)
