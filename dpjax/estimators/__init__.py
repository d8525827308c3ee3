"""Robust means with a known worst-case sensitivity.

Which one? `Clipping` bounds a whole vector, so its noise does not grow with the number
of coordinates d; it is biased where vectors are longer than its norm, whatever n and
epsilon are. `SmoothedTruncation`, `Truncation` and `Winsorization` bound each
coordinate: sqrt(d) times the noise, but a bias that theory balances against it: a
public bound on a moment sets their scale (`for_moment`), where the norm of clipping is
a guess. Measured with the same steps and the best of five settings for each, clipping
was ahead more often than not. For networks `Normalization` needs no clip norm,
`Grouped` bounds every layer by itself, and with `AdaptiveThreshold` the thresholds of
norms follow a private quantile of them. With `Scaled` every coordinate has a public
scale, and noise in proportion to it. `MedianOfMeans` is for moments below two,
`TrimmedMean` for data that are well within a known range. The measured tables, data by
data: "Which method" and "Which estimator" in benchmarks/FIGURES.md of the repository.
"""

from dpjax.estimators._adaptive import AdaptiveThreshold
from dpjax.estimators._clipping import Clipping
from dpjax.estimators._estimator import Estimator
from dpjax.estimators._grouped import Grouped
from dpjax.estimators._mean import Mean
from dpjax.estimators._median_of_means import MedianOfMeans
from dpjax.estimators._normalization import Normalization
from dpjax.estimators._scaled import Scaled
from dpjax.estimators._sensitivity import Sensitivity
from dpjax.estimators._smoothed_clipping import SmoothedClipping
from dpjax.estimators._smoothed_truncation import SmoothedTruncation
from dpjax.estimators._trimmed_mean import TrimmedMean
from dpjax.estimators._truncation import Truncation
from dpjax.estimators._winsorization import Winsorization

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
