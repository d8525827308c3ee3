"""Tables in files: cells, columns, models, private descriptions, and the command.

Only `dpjax.sklearn`, `dpjax.datasets` and the public paths to this package
(`dpjax.models`, `dpjax.loading`, `dpjax.describe`) import it.
"""

from typing import Any


def default_delta(num_samples: int) -> float:
    """Returns the default delta n^-1.1, at most 1/2; n is public under replace-one.

    Example:
        >>> f"{default_delta(32_561):.3g}"
        '1.09e-05'
    """
    return min(0.5, num_samples**-1.1)


def stated(privacy: Any) -> dict[str, Any]:
    """Returns the numbers, the relation and the words of a guarantee, for JSON."""
    return {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "relation": privacy.relation.name,
        "description": privacy.description,
    }
