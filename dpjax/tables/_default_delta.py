"""The default delta of a run."""


def default_delta(num_samples: int) -> float:
    """Returns n^-1.1, at most 1/2; n is public under replace-one.

    Example:
        >>> f"{default_delta(32_561):.3g}"
        '1.09e-05'
    """
    return min(0.5, num_samples**-1.1)
