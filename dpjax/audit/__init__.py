"""Attacks on a privacy claim: lower bounds on epsilon, with confidence."""

from dpjax.audit._lower_bound import epsilon_lower_bound
from dpjax.audit._one_run import one_run

__all__ = ["epsilon_lower_bound", "one_run"]
