"""Robust means with a known worst-case sensitivity.

Choosing an estimator: `Clipping` bounds the norm of a whole vector, so its noise does
not grow with the number of coordinates d; it is biased if norms exceed the clip norm,
for all n and epsilon. `SmoothedTruncation`, `Truncation` and `Winsorization` bound each
coordinate. Their noise is sqrt(d) times larger, but a public bound on a moment sets
their scale and balances bias and noise (`for_moment`), while a clip norm is a guess;
clipping was better in most measurements ("Which estimator" in benchmarks/FIGURES.md).
For networks, `Normalization` needs no clip norm, `Grouped` bounds each layer
separately, and with `AdaptiveThreshold` the clip norm follows a private quantile of the
norms. With `Scaled` every coordinate has a public scale, and noise proportional to it.
`MedianOfMeans` is for moments below two, `TrimmedMean` for data well within a known
range. An argument out of its range raises `ValueError`.
"""

from dpjax.estimators._adaptive import AdaptiveThreshold, Scaled
from dpjax.estimators._clipping import Clipping, Grouped, Normalization
from dpjax.estimators._estimator import Estimator, Mean, Sensitivity
from dpjax.estimators._order import MedianOfMeans, TrimmedMean
from dpjax.estimators._smoothed import SmoothedClipping, SmoothedTruncation
from dpjax.estimators._truncation import Truncation, Winsorization

__all__ = [
    "AdaptiveThreshold",
    "Clipping",
    "Estimator",
    "Grouped",
    "Mean",
    "MedianOfMeans",
    "Normalization",
    "Scaled",
    "Sensitivity",
    "SmoothedClipping",
    "SmoothedTruncation",
    "TrimmedMean",
    "Truncation",
    "Winsorization",
]
