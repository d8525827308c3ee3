"""Names of accounting for other layers of dpjax, not for users."""

from dpjax.accounting._events import samples_of
from dpjax.accounting._filter import Spending
from dpjax.accounting._group import group_budget
from dpjax.accounting._objective import objective_noise
from dpjax.accounting._poisson_capacity import poisson_capacity
from dpjax.accounting._sample import sample_budget, subsampled_epsilon
from dpjax.accounting._sample_privacy import sample_privacy
from dpjax.accounting._selection import total_selection_epsilon
from dpjax.accounting._smooth import calibrate_smooth_noise
from dpjax.accounting._smooth_gaussian import (
    largest_smoothness,
    smooth_gaussian_multiplier,
)
from dpjax.accounting._tuning import mixture_epsilon

__all__ = [
    "Spending",
    "calibrate_smooth_noise",
    "group_budget",
    "largest_smoothness",
    "mixture_epsilon",
    "objective_noise",
    "poisson_capacity",
    "sample_budget",
    "sample_privacy",
    "samples_of",
    "smooth_gaussian_multiplier",
    "subsampled_epsilon",
    "total_selection_epsilon",
]
