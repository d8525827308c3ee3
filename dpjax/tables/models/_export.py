"""The numbers of a model, from which files in other languages are written.

With z = (x - center) / scale, a column of numbers x adds

    at_center + sum_j rate_j (clip(z, low_j, high_j) - clip(0, low_j, high_j)),

a line or a curve, constant beyond its ends. A cell that is missing, no number, or
beyond the range of float32 in z counts as z = 0. Of categories each adds its weight.
"""

import itertools
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from dpjax import _validate
from dpjax._rounding import claim
from dpjax.tables.columns._encoding import Categorical, Numeric
from dpjax.tables.io._texts import number_of
from dpjax.tables.io._untrusted import printable
from dpjax.tables.models._terms import LARGEST, Link, Terms

if TYPE_CHECKING:
    from dpjax.tables.models._model import Model

Format = Literal["onnx", "sql"]
FARTHEST = 3.4028235677973366e38  # from here on float32 rounds to infinity
BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))  # that are stripped
_TRUTH = ("true", "false")
_TRUTHS = {0.0: ("false", "False", "FALSE"), 1.0: ("true", "True", "TRUE")}


class Numbers(NamedTuple):
    """Holds what a column of numbers adds: `ramps` are (low, high, rate)."""

    name: str
    center: float
    scale: float
    at_center: float
    ramps: tuple[tuple[float, float, float], ...]

    def value(self, z: float) -> float:
        """Returns what is added at a number, in scales from the center."""
        return self.at_center + sum(
            rate * (min(max(z, low), high) - min(max(0.0, low), high))
            for low, high, rate in self.ramps
        )


class Levels(NamedTuple):
    """A column of categories, each with its weight, else 0.

    Attributes:
        name: of the column.
        weights: of usual spellings.
        texts: of the categories that are compared as texts.
        numbers: of those that texts equal by value: whole numbers, and others with an
            exponent.
        codes: of those, such as 01 and 0.5, which numeric cells equal by value.
    """

    name: str
    weights: dict[str, float]
    texts: dict[str, float]
    numbers: dict[int | float, float]
    codes: dict[float, float]


class Parts(NamedTuple):
    """A whole model: center + scale * mean(intercept + columns) * exposure.

    Attributes:
        columns: the terms of the score.
        intercept: the constant term.
        link: the link from score to mean, as in `Model`.
        exposure: a factor of the mean, or None for 1.
        center: center of the target.
        scale: scale of the target.
        comments: two printable lines: what the model predicts, and its guarantee.
    """

    columns: list[Numbers | Levels]
    intercept: float
    link: Link
    exposure: Numbers | None
    center: float
    scale: float
    comments: list[str]

    @property
    def inputs(self) -> dict[str, bool]:
        """The columns that are read, and whether each holds numbers."""
        read = [*self.columns, self.exposure]
        return {x.name: isinstance(x, Numbers) for x in read if x is not None}


def parts_of(model: "Model", terms: Terms) -> Parts:
    """Returns the parts of a model.

    Raises:
        ValueError: If a weight is not finite, or if other languages cannot write the
            name of a column or of a category.
    """
    numbers = [terms.slopes, terms.heights]
    is_finite = all(np.isfinite(each).all() for each in numbers)
    _validate.require(is_finite, "params", numbers, "finite, of a model to export")
    columns: list[Numbers | Levels] = []
    place = 0
    for name, kind in model.columns.items():
        if not kind.categories:
            at_center = float(terms.curve(place, np.zeros(1))[0])
            of_column = float(kind.center), float(kind.scale), at_center
            ramps = _ramps(terms, place, float(kind.limit))
            columns.append(Numbers(name, *of_column, ramps))
        else:
            columns.append(_levels(name, kind, terms.slopes[place:].tolist()))
        place += len(kind.names(name))
    center, scale = float(model.target.center), float(model.target.scale)
    exposure = None
    if (share := model.exposure) is not None:
        line = ((0.0, 1.0, 1.0),)
        exposure = Numbers(share.column, 0.0, float(share.max), 0.0, line)
        same = model.columns.get(share.column)
        is_number = same is None or not same.categories
        rule = "no column of categories, of a model to export"
        _validate.require(is_number, "exposure", share.column, rule)
    start, comments = float(terms.slopes[-1]), _comments(model)
    parts = Parts(columns, start, model.link, exposure, center, scale, comments)
    levels = (x.weights for x in columns if isinstance(x, Levels))
    for text in itertools.chain(parts.inputs, *levels):
        written = text.replace("\0", "").encode("utf-8", "ignore").decode()
        rule = "text without NUL, in UTF-8, of a model to export"
        _validate.require(text == written != "", "columns", text, rule)
    return parts


def _comments(model: "Model") -> list[str]:
    privacy, target = model.privacy, model.target_name
    if model.positive is not None:
        target = f"the probability of {target} = {model.positive}"
    stated = claim(privacy.epsilon, privacy.delta)
    first = f"Predicts {target}: {model.method} of {model.data}."
    return [*map(printable, (first, f"Privacy: {stated}. {privacy.description}"))]


def _ramps(
    terms: Terms, place: int, limit: float
) -> tuple[tuple[float, float, float], ...]:
    """Returns the linear pieces of a curve, from one knot to the next."""
    end = min(limit, LARGEST if terms.knots else FARTHEST)
    knots = terms.knots if place in terms.smooth else ()
    ends = [-end, *(float(knot) for knot in knots if -end < knot < end), end]
    slope = float(terms.slopes[place])
    if not knots:
        return ((-end, end, slope),)
    heights = np.interp(ends, knots, terms.heights[terms.smooth.index(place)])
    rates = slope + np.diff(heights) / np.diff(ends)
    return tuple(zip(ends[:-1], ends[1:], rates.tolist(), strict=True))


def _levels(name: str, kind: Numeric | Categorical, weights: list[float]) -> Levels:
    spellings = {text: weights[at] for text, at in _spellings(kind).items()}
    levels = Levels(name, spellings, {}, {}, {})
    texts = map(str.strip, kind.categories)
    for place, (text, weight) in enumerate(zip(texts, weights, strict=False)):
        number = number_of(text)
        if not np.isfinite(number):
            levels.texts[text] = weight
            continue
        exact = Decimal(text) if text.lower() not in _TRUTH else Decimal(number)
        if exact == exact.to_integral_value():
            (row,) = kind.encode(np.array([str(int(exact))], object))
            if row[place]:
                levels.numbers[int(exact)] = weight
                continue
        levels.texts[text] = weight
        (row,) = kind.encode(np.array([number]))
        levels.codes[number] = weights[int(row.argmax())]
        if text == repr(number):
            levels.numbers[number] = weight
    return levels


def _spellings(kind: Numeric | Categorical) -> dict[str, int]:
    """Returns all spellings of each category: 1 also as 1.0 and true."""
    texts: dict[str, None] = {}
    for category in kind.categories:
        text = category.strip()
        number = number_of(text)
        written = [text, *_TRUTHS.get(number, ())]
        if np.isfinite(number):
            written.append(repr(number))
        if np.isfinite(number) and number == int(number):
            written += [str(int(number)), f"{int(number)}.0"]
        texts |= dict.fromkeys(written)
    rows = kind.encode(np.array([*texts], object))
    return {
        text: int(row.argmax())
        for text, row in zip(texts, rows, strict=True)
        if any(row)
    }
