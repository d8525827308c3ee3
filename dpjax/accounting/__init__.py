"""Host-side privacy accounting: Gaussian, zCDP, subsampling, guarantees."""

from dpjax.accounting._capacity import poisson_capacity
from dpjax.accounting._gaussian import (
    gaussian_epsilon,
    gaussian_event,
    gaussian_stddev,
)
from dpjax.accounting._guarantee import PrivacyGuarantee, parallel_composition
from dpjax.accounting._subsampling import (
    noise_multiplier,
    noise_multiplier_to_epsilon,
    sampled_gaussian_event,
)
from dpjax.accounting._zcdp import epsilon_to_rho, rho_to_epsilon

__all__ = [
    "PrivacyGuarantee",
    "epsilon_to_rho",
    "gaussian_epsilon",
    "gaussian_event",
    "gaussian_stddev",
    "noise_multiplier",
    "noise_multiplier_to_epsilon",
    "parallel_composition",
    "poisson_capacity",
    "rho_to_epsilon",
    "sampled_gaussian_event",
]
