"""A model with the units of its table: predictions, coefficients, curves in them."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from dpjax import _tables, _validate, losses
from dpjax._shapes import Shape
from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Numeric, encode
from dpjax.solvers import Curves

Link = Literal["identity", "logit", "log"]
_LOSS_OF_LINK: dict[Link, losses.LinearLoss] = {
    "identity": losses.squared,
    "logit": losses.logistic,
    "log": losses.log_link(1.0),  # means are those of any power
}


@dataclass(frozen=True)
class BoundedColumn:
    """A column of amounts from zero to a public maximum: an exposure, or a weight.

    Args:
        column: its name.
        max: the largest amount, positive, public.

    Raises:
        ValueError: if the maximum is not positive and finite.

    Example:
        >>> import numpy as np
        >>> years = BoundedColumn("years", 2.0)
        >>> years.shares(np.array(["1", "9", "-1", "?", ""])).tolist()
        [0.5, 1.0, 0.0, 0.0, 0.0]
    """

    column: str
    max: float

    def __post_init__(self) -> None:
        _validate.positive(max=self.max)

    def shares(self, cells: _tables.Column) -> np.ndarray:
        """Returns what share of the maximum each cell holds.

        Args:
            cells: text or numbers, shape (n,).

        Returns:
            float32 in [0, 1], shape (n,): larger cells count as the maximum; those that
            hold no number, or a negative one, as zero.
        """
        return np.clip(Numeric(scale=self.max).encode(cells)[:, 0], 0.0, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """A linear or additive model, and what is public about the columns that it reads.

    A record's features are its columns, encoded one by one, and a last one of ones.

    Attributes:
        params: the weights of the features, shape (d,), the last of them the intercept;
            of an additive model `Curves` of the features.
        columns: how each column becomes features, by its name.
        target_name: the name of the target.
        target: the centre and scale that the target had in training; a `Categorical` of
            one label, the positive one, where it is a class.
        target_unit: what a target of 1 stands for in training, in words.
        link: "identity" where the score, <w, x> or the sum of curves, predicts the
            target, "logit" where it is the logarithm of the odds of the positive label,
            "log" where it is the logarithm of the target's mean.
        exposure: with the link "log", to what means are in proportion; the score is
            then that of the maximum.
        privacy: the guarantee for the weights and the rest of the file.
        method: how it was trained, in words.
        data: the name of what it was trained on.
        versions: of the packages that trained it.

    Raises:
        ValueError: if params are not of the features, link is unknown, or there is an
            exposure, or no number about zero, that it does not go with.

    Example:
        >>> import math, numpy as np
        >>> from dp_accounting import NonPrivateDpEvent
        >>> from dpjax.accounting import PrivacyGuarantee
        >>> from dpjax.datasets import Categorical, Numeric
        >>> model = Model(
        ...     params=np.array([2.0, 1.0, 0.5]),
        ...     columns={"rooms": Numeric(4, 2), "town": Categorical(("Ghent",))},
        ...     target_name="price", target=Numeric(300, 100), link="identity",
        ...     privacy=PrivacyGuarantee.of(
        ...         math.inf, 0.0, dp_event=NonPrivateDpEvent()))
        >>> model.predict({"rooms": ["6", "?"], "town": ["Ghent", "Lier"]}).tolist()
        [650.0, 350.0]
        >>> model.coefficients()
        {'rooms': 100.0, 'town=Ghent': 100.0, 'intercept': -50.0}
    """

    params: np.ndarray | Curves
    columns: Mapping[str, Numeric | Categorical]
    target_name: str
    target: Numeric | Categorical
    link: Link
    privacy: PrivacyGuarantee
    target_unit: str = ""
    method: str = ""
    data: str = ""
    versions: Mapping[str, str] | None = None
    exposure: BoundedColumn | None = None

    def __post_init__(self) -> None:
        _validate.choice(Link, link=self.link)
        is_amount = isinstance(self.target, Numeric) and self.target.center == 0
        _validate.require(
            (is_amount or self.link != "log")
            and (self.exposure is None or self.link == "log"),
            "link",
            self.link,
            "log where there is an exposure, and then of a target whose center is 0",
        )
        num_features = len(self.feature_names)
        params = self.params
        slopes = np.asarray(params.slopes if isinstance(params, Curves) else params)
        _validate.require(
            slopes.shape == (num_features,) and slopes.dtype.kind == "f",
            "params",
            slopes.shape,
            f"one number for each of {num_features} features",
        )
        if isinstance(params, Curves):
            _check_curves(params, bending_features(self.columns))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in the order of params."""
        names = [name for key, kind in self.columns.items() for name in kind.names(key)]
        return (*names, "intercept")

    @property
    def curves(self) -> Curves:
        """The functions of the features, straight lines in a linear model."""
        if isinstance(self.params, Curves):
            return self.params
        slopes, heights = jnp.asarray(self.params), jnp.zeros((0, 0))
        return Curves(slopes, heights, (), (), len(slopes) - 1)

    @property
    def positive(self) -> str | None:
        """The label whose probability is predicted, or None for a number."""
        target = self.target
        return target.categories[0] if isinstance(target, Categorical) else None

    @property
    def mean_range(self) -> tuple[float, float] | None:
        """The least and the largest mean that a log link predicts, else None.

        In units of the target; of the largest exposure, where there is one.
        """
        if self.link != "log" or not isinstance(self.target, Numeric):
            return None
        ends = _LOSS_OF_LINK["log"].mean_of(jnp.array([-jnp.inf, jnp.inf]))
        low, high = self.target.scale * np.asarray(ends, np.float64)
        return float(low), float(high)

    def predict(self, table: Any) -> np.ndarray:
        """Predicts the target of every record, in its own units.

        As in training, a cell that holds no number lies at the centre of its column,
        and one that matches no category counts as none of them. An exposure
        counts as its maximum where it is larger, and as zero where it is negative or no
        number. Where a table has no such column, all have an exposure of one.

        Args:
            table: a data frame of pandas or polars, a mapping of names to arrays of
                shape (n,), or the path of a file that `dpjax train` reads. Columns that
                the model does not know are left out.

        Returns:
            float64 of shape (n,): the target, or the probability of the positive label.

        Raises:
            ValueError: if a column is missing or holds neither text nor numbers, or a
                file cannot be read.
        """
        return self.predict_columns(self.read(table))

    def read(self, table: Any) -> Mapping[str, _tables.Column]:
        """Returns the columns of a table that the model reads, each of shape (n,).

        Where it reads none, since it predicts a constant, the first column stands for
        the records.

        Args:
            table: as of `predict`.

        Raises:
            ValueError: as `predict`.
        """
        is_path = isinstance(table, str | os.PathLike)
        path = Path(table) if is_path else Path()
        names = _tables.column_names(path) if is_path else _tables.frame_names(table)
        missing = [name for name in self.columns if name not in names]
        _validate.require(
            not missing,
            "table",
            names,
            f"a table with the columns that the model reads; {missing} are not in it",
        )
        wanted = list(self.columns) or names[:1]
        if self.exposure is not None and self.exposure.column in names:
            wanted.append(self.exposure.column)
        if is_path:
            return _tables.read_columns(path, wanted)
        return _tables.frame_columns(table, wanted)

    def predict_columns(self, columns: Mapping[str, _tables.Column]) -> np.ndarray:
        """Predicts the target of every record of what `read` returns.

        Args:
            columns: arrays of shape (n,) by name.

        Returns:
            As `predict`.
        """
        features = np.ones((len(next(iter(columns.values()))), 1), np.float32)
        if self.columns:
            features = np.hstack([encode(columns, self.columns)[0], features])
        if isinstance(self.params, Curves):
            scores = self.params.predict(features)
        else:
            scores = features @ np.asarray(self.params, np.float64)
        means = _LOSS_OF_LINK[self.link].mean_of(jnp.asarray(scores))
        means = np.asarray(means, np.float64)
        if self.exposure is not None:
            cells = columns.get(self.exposure.column)
            one = 1 / self.exposure.max
            means = means * (one if cells is None else self.exposure.shares(cells))
        if isinstance(self.target, Numeric):
            return self.target.center + self.target.scale * means
        return means

    def coefficients(self) -> dict[str, float]:
        """Returns the weight of every feature in the units of its column.

        By how much the target, or the logarithm of the odds or of the mean, is larger
        where a column of numbers is larger by one, or a column has that category. The
        intercept is that where columns of numbers are zero, and none has a listed
        category, for an exposure of one.
        Where a column of numbers is clipped (`limit` of `datasets.Numeric`), this is so
        within the limit.

        Returns:
            Numbers, by the names of features.

        Raises:
            ValueError: if the model is additive.
        """
        _validate.require(
            not isinstance(self.params, Curves),
            "params",
            type(self.params),
            "weights; an additive model has shapes",
        )
        weights = np.asarray(self.params, np.float64).tolist()
        unit, start = self._units()
        found, intercept, place = {}, weights[-1], 0
        for key, kind in self.columns.items():
            for name in kind.names(key):
                weight = weights[place]
                if isinstance(kind, Numeric):
                    weight /= kind.scale
                    intercept -= weight * kind.center
                found[name] = unit * weight
                place += 1
        return found | {"intercept": start + unit * intercept}

    def shapes(self) -> dict[str, Shape]:
        """Returns what every column adds, in its units.

        To the target, or to the logarithm of the odds or of the mean. That is zero at
        the center of a column of numbers, and for a cell that matches no category.

        Returns:
            `(grid, values)` by the names of columns, each of shape (m,): between the
            numbers of a grid are straight lines; of categories it has them all.
        """
        curves, (unit, _), shapes, place = self.curves, self._units(), {}, 0
        for key, kind in self.columns.items():
            if isinstance(kind, Categorical):
                grid = np.array(kind.categories, object)
                values = curves.slopes[place : place + len(grid)]
                shape = Shape(grid, np.asarray(values, np.float64))
            else:
                shape = Shape.of_number(
                    partial(curves.curve, place),
                    curves.knots if place in curves.smooth else (),
                    center=kind.center,
                    scale=kind.scale,
                    ends=(-kind.limit, kind.limit),
                )
            shapes[key] = shape._replace(values=unit * shape.values)
            place += len(kind.names(key))
        return shapes

    @property
    def constant(self) -> float:
        """The score where no column adds anything, in the unit of `shapes`."""
        unit, start = self._units()
        return start + unit * float(self.curves.slopes[-1])

    def _units(self) -> tuple[float, float]:
        """Returns what a score of one adds, and where a score of zero is."""
        if not isinstance(self.target, Numeric):
            return 1.0, 0.0
        if self.link == "log":
            largest = 1.0 if self.exposure is None else self.exposure.max
            return 1.0, math.log(self.target.scale) - math.log(largest)
        return self.target.scale, self.target.center


def bending_features(columns: Mapping[str, Numeric | Categorical]) -> list[int]:
    """Returns the indices of the features that may bend.

    Those are numbers that reach further than one scale from their center, which flags
    do not.

    Example:
        >>> bending_features({"town": Categorical(("Ghent", "Lier")), "age": Numeric()})
        [2]
    """
    kinds = [kind for key, kind in columns.items() for _ in kind.names(key)]
    return [
        index
        for index, kind in enumerate(kinds)
        if isinstance(kind, Numeric) and kind.limit > 1
    ]


def _check_curves(curves: Curves, numbers: list[int]) -> None:
    """Requires curves of columns of numbers, each with a height for each knot."""
    smooth, knots, heights = curves.smooth, curves.knots, np.asarray(curves.heights)
    index, shape = len(curves.slopes) - 1, (len(smooth), len(knots))
    is_ascending = all(-math.inf < a < b < math.inf for a, b in pairwise(knots))
    is_each = set(smooth) <= set(numbers) and len(set(smooth)) == len(smooth) > 0
    is_height = heights.shape == shape and heights.dtype.kind == "f"
    for is_fine, value, rule in (
        (is_each, smooth, f"curves of different features among {numbers}"),
        (is_ascending and len(knots) > 1, knots, "of two or more knots, ascending"),
        (is_height, heights.shape, f"heights of shape {shape}, curves by knots"),
        (curves.intercept == index, curves.intercept, f"of the intercept {index}"),
    ):
        _validate.require(is_fine, "params", value, rule)
