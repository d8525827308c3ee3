"""Host-side privacy accounting: Gaussian, zCDP, subsampling, guarantees.

An argument out of its range raises `ValueError`.
"""

from dpjax.accounting._filter import PrivacyFilter
from dpjax.accounting._gaussian import gaussian_epsilon, gaussian_stddev
from dpjax.accounting._guarantee import PrivacyGuarantee, delta_of, epsilon_of
from dpjax.accounting._sample import Sample
from dpjax.accounting._sampling import Sampling
from dpjax.accounting._subsampling import noise_multiplier, noise_multiplier_to_epsilon
from dpjax.accounting._tuning import tuning_budget, tuning_epsilon
from dpjax.accounting._zcdp import epsilon_to_rho, rho_to_epsilon

__all__ = [
    "PrivacyFilter",
    "PrivacyGuarantee",
    "Sample",
    "Sampling",
    "delta_of",
    "epsilon_of",
    "epsilon_to_rho",
    "gaussian_epsilon",
    "gaussian_stddev",
    "noise_multiplier",
    "noise_multiplier_to_epsilon",
    "rho_to_epsilon",
    "tuning_budget",
    "tuning_epsilon",
]
