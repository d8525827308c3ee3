"""dpjax: differentially private optimization for heavy-tailed data, in JAX.

A name is imported when it is first read (PEP 562): importing JAX takes a second, and
code that needs one package should not wait for all of them.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from dpjax._lazy import VERSION as _VERSION
from dpjax._lazy import lazily as _lazily

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
    from dpjax._types import ADD_OR_REMOVE_ONE, REPLACE_ONE
    from dpjax.gradients import check_model, per_sample_grad, robust_grad
    from dpjax.models import load_model
    from dpjax.solvers import PrivateTraining, recommend
    from dpjax.tables._statement import read_guarantee
    from dpjax.tables.describe._release import describe
    from dpjax.transforms import chain, dp_sgd

__version__ = _VERSION

__getattr__, __dir__ = _lazily(
    __name__,
    {
        "dpjax": "accounting audit batching constraints datasets estimators gradients "
        "loading losses mechanisms models parties solvers transforms tuning",
        "dpjax.tables._statement": "read_guarantee",
        "dpjax.tables.describe._release": "describe",
        "dpjax._types": "ADD_OR_REMOVE_ONE REPLACE_ONE",
        "dpjax.gradients": "check_model per_sample_grad robust_grad",
        "dpjax.models": "load_model",
        "dpjax.solvers": "PrivateTraining recommend",
        "dpjax.transforms": "chain dp_sgd",
    },
)

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "REPLACE_ONE",
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
    "read_guarantee",
    "recommend",
    "robust_grad",
    "solvers",
    "transforms",
    "tuning",
]
