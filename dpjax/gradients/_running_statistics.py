"""Refuses parameters that carry the running statistics of a BatchNorm layer."""

from collections.abc import Mapping
from typing import Any

import jax

from dpjax._types import PyTree

_RECIPE = (
    "BatchNorm normalises an example by the others of its batch: its gradient is then "
    "not of one example alone, and per-sample gradients would normalise each by "
    "itself. Take GroupNorm or LayerNorm; or keep the statistics fixed and public: "
    "let loss_fn close over them (nnx.split(model, nnx.Param, ...), "
    "variables['params'], eqx.partition) and evaluate BatchNorm with them "
    "(use_running_average=True, inference=True)"
)


def refuse_running_statistics(params: PyTree) -> None:
    """Raises `ValueError` where params hold the state of BatchNorm.

    That is `nnx.BatchStat`, Linen's collection "batch_stats" or `equinox.nn.State`. No
    package is imported for it: nodes of the pytree are known by their names.
    """
    found: list[str] = []

    def look(node: Any) -> bool:
        name = _statistics_of(node)
        if name is not None:
            found.append(name)
        return name is not None

    jax.tree.flatten(params, is_leaf=look)
    if found:
        raise ValueError(
            f"params must hold no running statistics, got {found[0]} of BatchNorm. "
            f"{_RECIPE}."
        )


def _statistics_of(node: Any) -> str | None:
    if isinstance(node, Mapping) and "batch_stats" in node:
        return "Linen's collection 'batch_stats'"
    for kind in type(node).__mro__:
        package = kind.__module__.partition(".")[0]
        if (package, kind.__name__) == ("flax", "BatchStat"):
            return "nnx.BatchStat"
        if (package, kind.__name__) == ("equinox", "State"):
            return "equinox.nn.State"
    return None
