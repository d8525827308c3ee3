"""Host-side privacy accounting: Gaussian, zCDP, subsampling, guarantees."""

from dpjax.accounting._correlated import (
    correlated_noise_multiplier,
    correlated_noise_multiplier_to_epsilon,
)
from dpjax.accounting._discrete_gaussian import (
    discrete_gaussian_epsilon,
    discrete_gaussian_stddev,
)
from dpjax.accounting._filter import PrivacyFilter, Spending
from dpjax.accounting._gaussian import (
    gaussian_epsilon,
    gaussian_stddev,
)
from dpjax.accounting._group import group_budget, group_privacy
from dpjax.accounting._guarantee import PrivacyGuarantee
from dpjax.accounting._objective import (
    objective_epsilon,
    objective_noise,
)
from dpjax.accounting._poisson_capacity import poisson_capacity
from dpjax.accounting._selection import (
    selection_epsilon,
    selection_event,
    total_selection_epsilon,
)
from dpjax.accounting._smooth import (
    calibrate_smooth_noise,
    smooth_noise_multiplier,
    smooth_noise_rho,
)
from dpjax.accounting._smooth_gaussian import (
    largest_smoothness,
    smooth_gaussian_epsilon,
    smooth_gaussian_multiplier,
)
from dpjax.accounting._subsampling import (
    gaussian_event,
    noise_multiplier,
    noise_multiplier_to_epsilon,
)
from dpjax.accounting._tuning import tuning_budget, tuning_epsilon
from dpjax.accounting._zcdp import epsilon_to_rho, rho_to_epsilon

__all__ = [
    "PrivacyFilter",
    "PrivacyGuarantee",
    "Spending",
    "calibrate_smooth_noise",
    "correlated_noise_multiplier",
    "correlated_noise_multiplier_to_epsilon",
    "discrete_gaussian_epsilon",
    "discrete_gaussian_stddev",
    "epsilon_to_rho",
    "gaussian_epsilon",
    "gaussian_event",
    "gaussian_stddev",
    "group_budget",
    "group_privacy",
    "largest_smoothness",
    "noise_multiplier",
    "noise_multiplier_to_epsilon",
    "objective_epsilon",
    "objective_noise",
    "poisson_capacity",
    "rho_to_epsilon",
    "selection_epsilon",
    "selection_event",
    "smooth_gaussian_epsilon",
    "smooth_gaussian_multiplier",
    "smooth_noise_multiplier",
    "smooth_noise_rho",
    "total_selection_epsilon",
    "tuning_budget",
    "tuning_epsilon",
]
