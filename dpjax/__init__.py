"""dpjax: differentially private optimization for heavy-tailed data, in JAX.

A name is imported when it is first read (PEP 562), since JAX takes a second: what needs
one layer does not wait for all of them.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from dpjax import (
        accounting,
        audit,
        batching,
        constraints,
        datasets,
        estimators,
        gradients,
        loading,
        losses,
        mechanisms,
        models,
        parties,
        solvers,
        transforms,
        tuning,
    )
    from dpjax._describe import describe
    from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation
    from dpjax.gradients import check_model, per_sample_grad, robust_grad
    from dpjax.models import load_model
    from dpjax.solvers import PrivateTraining
    from dpjax.transforms import chain, dp_sgd

    __version__: str

# Where a name comes from; every other one is a package.
_SOURCES = {
    "ADD_OR_REMOVE_ONE": "dpjax._types",
    "REPLACE_ONE": "dpjax._types",
    "NeighboringRelation": "dpjax._types",
    "PrivateTraining": "dpjax.solvers",
    "chain": "dpjax.transforms",
    "check_model": "dpjax.gradients",
    "describe": "dpjax._describe",
    "dp_sgd": "dpjax.transforms",
    "load_model": "dpjax.models",
    "per_sample_grad": "dpjax.gradients",
    "robust_grad": "dpjax.gradients",
}

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "NeighboringRelation",
    "PrivateTraining",
    "accounting",
    "audit",
    "batching",
    "chain",
    "check_model",
    "constraints",
    "datasets",
    "describe",
    "dp_sgd",
    "estimators",
    "gradients",
    "load_model",
    "loading",
    "losses",
    "mechanisms",
    "models",
    "parties",
    "per_sample_grad",
    "robust_grad",
    "solvers",
    "transforms",
    "tuning",
]


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        value = _version()
    elif name in _SOURCES:
        value = getattr(_import_module(_SOURCES[name]), name)
    elif name in __all__:
        value = _import_module(f"dpjax.{name}")
    else:
        raise AttributeError(f"module 'dpjax' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    metadata = _import_module("importlib.metadata")
    try:
        return metadata.version("dpjax")
    except metadata.PackageNotFoundError:  # a folder of files that was never installed
        return "0+unknown"
