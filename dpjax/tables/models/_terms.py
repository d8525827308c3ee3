"""The numbers of a model in NumPy: it is loaded, and predicts, without JAX."""

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

if TYPE_CHECKING:
    from dpjax.accounting import PrivacyGuarantee
    from dpjax.solvers import Curves

Link = Literal["identity", "logit", "log"]
LARGEST = 1e15  # scales: features of curves are clipped to it, as in `solvers.Curves`
MEANS = 1e-3, 30.0  # in scales: the range of means of `losses.log_link`
FAR = 700.0  # log odds, whose exponential is within the range of float64


class Terms(NamedTuple):
    """The terms of a model's score, one for each feature.

    Attributes:
        slopes: shape (d,), the last of them the intercept.
        heights: shape (k, m), of k curves at m knots; (0, 0) in a linear model.
        knots: m numbers, ascending, in scales from the center.
        smooth: the indices of the k features that have a curve.
    """

    slopes: np.ndarray
    heights: np.ndarray
    knots: tuple[float, ...] = ()
    smooth: tuple[int, ...] = ()

    @classmethod
    def of(cls, params: "np.ndarray | Curves") -> "Terms":
        """Returns the terms of weights or curves."""
        if not hasattr(params, "slopes"):
            return cls(np.asarray(params), np.zeros((0, 0)))
        curves = cast("Curves", params)
        arrays = np.asarray(curves.slopes), np.asarray(curves.heights)
        return cls(*arrays, curves.knots, curves.smooth)

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Returns the sum of all terms for features (n, d), float64 of shape (n,)."""
        slopes = np.asarray(self.slopes, np.float64)
        if not self.knots:
            return features @ slopes
        features = np.clip(features, -LARGEST, LARGEST)
        bends = (
            np.interp(features[:, index], self.knots, heights)
            for index, heights in zip(self.smooth, self.heights, strict=True)
        )
        return sum(bends, start=features @ slopes)

    def curve(self, index: int, grid: np.ndarray) -> np.ndarray:
        """Returns what a feature adds at each number of a grid, shape (m,)."""
        values = float(self.slopes[index]) * np.asarray(grid, np.float64)
        if index not in self.smooth:
            return values
        heights = self.heights[self.smooth.index(index)]
        return values + np.interp(grid, self.knots, heights)

    def made(self) -> "Curves":
        """Returns a pytree of JAX."""
        from dpjax.solvers import Curves

        slopes, heights = cast(Any, self.slopes), cast(Any, self.heights)
        return Curves(slopes, heights, self.knots, self.smooth, len(slopes) - 1)


def means_of(link: Link, scores: np.ndarray) -> np.ndarray:
    """Returns the mean of the target at each score, as `mean_of` of the link's loss."""
    if link == "logit":
        return 1 / (1 + np.exp(-np.clip(scores, -FAR, FAR)))
    if link == "log":
        low, high = map(math.log, MEANS)
        return np.exp(np.clip(scores, low, high))
    return scores


class Statement(NamedTuple):
    """The guarantee as a file states it."""

    epsilon: float
    delta: float
    relation: str
    description: str

    def made(self) -> "PrivacyGuarantee":
        """Returns the guarantee, with an event that no accountant supports."""
        from dp_accounting import NeighboringRelation, UnsupportedDpEvent

        from dpjax.accounting import PrivacyGuarantee

        of_file = self._replace(relation=NeighboringRelation[self.relation])._asdict()
        return PrivacyGuarantee(**of_file, dp_event=UnsupportedDpEvent())
