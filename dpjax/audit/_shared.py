"""The catalogue of audits, for the command and the records of benchmarks."""

from dpjax.audit._catalogue import cases
from dpjax.audit._lower_bound import Case

__all__ = ["Case", "cases"]
