"""Attacks on a privacy claim: lower bounds on epsilon, with confidence."""

from dpjax.audit._case import Case, cases
from dpjax.audit._lower_bound import (
    Audit,
    epsilon_lower_bound,
    gaussian_lower_bound,
)
from dpjax.audit._one_run import OneRunAudit, one_run

__all__ = [
    "Audit",
    "Case",
    "OneRunAudit",
    "cases",
    "epsilon_lower_bound",
    "gaussian_lower_bound",
    "one_run",
]
