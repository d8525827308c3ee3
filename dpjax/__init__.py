"""dpjax: differentially private optimization for heavy-tailed data, in JAX."""

from importlib import metadata as _metadata

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
from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE, NeighboringRelation
from dpjax.gradients import per_sample_grad, robust_grad
from dpjax.models import load_model
from dpjax.solvers import PrivateTraining
from dpjax.transforms import chain, dp_sgd

try:
    __version__ = _metadata.version("dpjax")
except _metadata.PackageNotFoundError:  # a folder of files that was never installed
    __version__ = "0+unknown"

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
    "NeighboringRelation",
    "PrivateTraining",
    "accounting",
    "audit",
    "batching",
    "chain",
    "constraints",
    "datasets",
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
