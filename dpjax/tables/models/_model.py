"""A model in the units of its table: predictions, coefficients, curves and its file.

Reading the file runs no code, because no entry may have Python objects.
"""

import dataclasses
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpjax import _validate
from dpjax.tables._pages import Shape
from dpjax.tables._statement import Statement, stored_arrays
from dpjax.tables._summary import Summary, errors_of_sums, noise_shares, units_matrix
from dpjax.tables.columns._kinds import (
    BoundedColumn,
    Categorical,
    Numeric,
    date_kind,
    dates_of,
    encode,
)
from dpjax.tables.io import _tables
from dpjax.tables.io._texts import TextFormat
from dpjax.tables.io._untrusted import number, of_type, well_formed
from dpjax.tables.models import _export, _terms
from dpjax.tables.models._terms import Terms

if TYPE_CHECKING:
    from dpjax.accounting import PrivacyGuarantee
    from dpjax.solvers import Curves


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """A linear or additive model, with the public schema of the columns that it reads.

    The features of a record are its encoded columns, one after another, and a one at
    the end.

    Attributes:
        params: the weights of the features, shape (d,), the intercept last, or (d, K)
            for K classes; for an additive model `Curves` of the features.
        columns: how each column is encoded, by its name.
        target_name: the name of the target.
        target: the center and scale of the target in training; for labels, a
            `Categorical` of the positive label or labels, or of K classes.
        target_unit: the unit of the target in training, in words.
        link: "identity" if the score, <w, x> or the sum of curves, predicts the target,
            "logit" if it is the log odds of the positive label, "log" if it is the
            logarithm of the target's mean, "softmax" if probabilities of the classes
            are in proportion to the exponentials of their scores.
        exposure: with the link "log", the column to which means are proportional; the
            score is then for the maximum exposure.
        privacy: the guarantee for the weights and the rest of the file.
        method: how the model was trained, in words.
        data: the name of the training data.
        versions: the versions of the packages that trained the model.
        standard_errors: standard errors of the weights of a linear model, shape (d,),
            infinite where noise hides the error; or None.
        correlations: correlations of the errors of the weights, shape (d, d), or None.
        noise_errors: the parts of the standard errors that noise makes, (d,), or None.
        noise_correlations: their correlations, shape (d, d), or None.

    Raises:
        ValueError: If params do not fit the features, or the link does not fit target
            and exposure.
    """

    params: "np.ndarray | Curves"
    columns: Mapping[str, Numeric | Categorical]
    target_name: str
    target: Numeric | Categorical
    link: _terms.Link
    privacy: "PrivacyGuarantee"
    target_unit: str = ""
    method: str = ""
    data: str = ""
    versions: Mapping[str, str] | None = None
    exposure: BoundedColumn | None = None
    standard_errors: np.ndarray | None = None
    correlations: np.ndarray | None = None
    noise_errors: np.ndarray | None = None
    noise_correlations: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Checks that parameters, columns, link and exposure fit each other."""
        _validate.choice(_terms.Link, link=self.link)
        is_amount = not self.target.categories and self.target.center == 0
        is_fine = is_amount if self.link == "log" else self.exposure is None
        rule = "log if there is an exposure, and log only if the target's center is 0"
        _validate.require(is_fine, "link", self.link, rule)
        num_features, given = len(self.feature_names), vars(self)
        params: Any = self.params
        # Entries of a file that need JAX are made on first use, by `__getattr__`.
        for name in ("params", "privacy"):
            if isinstance(given[name], Terms | Statement):
                given[f"_{name}"] = given.pop(name)
        slopes = self._numbers.slopes
        classes = self.target.categories if self.link == "softmax" else ()
        shape = (num_features, *[len(classes)] * bool(classes))
        is_fine = slopes.shape == shape and slopes.dtype.kind == "f"
        rule = f"floats of shape {shape}, one row for each feature"
        _validate.require(is_fine, "params", (slopes.dtype.name, slopes.shape), rule)
        is_linear = not hasattr(params, "slopes")
        if not is_linear:
            _terms.check_curves(params, _terms.bending_features(self.columns))
        for pair in (_ERRORS, _OF_NOISE):
            errors, correlations = (getattr(self, name) for name in pair)
            if errors is not None or correlations is not None:
                rule = f"weights if {pair[0]} or {pair[1]} are given"
                _validate.require(is_linear, "params", "curves", rule)
                both = pair[0], errors, pair[1], correlations
                _terms.check_errors(num_features, *both)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, in the order of params."""
        names = [name for key, kind in self.columns.items() for name in kind.names(key)]
        return (*names, "intercept")

    @property
    def curves(self) -> "Curves":
        """The functions of the features: straight lines in a linear model."""
        return self._numbers.made()

    @property
    def _numbers(self) -> _terms.Terms:
        return vars(self).get("_params") or _terms.Terms.of(self.params)

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Creates params or privacy, which need JAX, from the file on first use."""
            given = vars(self).get(f"_{name}")
            if not isinstance(given, Terms | Statement):
                text = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(text)
            value = vars(self)[name] = given.made()
            return value

    @property
    def positive(self) -> str | None:
        """The positive label or labels, which the probability is for, or None."""
        return " or ".join(self.target.categories) if self.link == "logit" else None

    @property
    def mean_range(self) -> tuple[float, float] | None:
        """The smallest and the largest mean that a log link predicts, else None.

        They are in units of the target, and with an exposure for its maximum.
        """
        if self.link != "log":
            return None
        low, high = _terms.MEANS
        return self.target.scale * low, self.target.scale * high

    def predict(self, table: Any) -> np.ndarray:
        """Predicts the target of every record of `table`, in the target's units.

        As in training, a cell that does not parse counts as the center of its column,
        and a cell without a listed category as none of them. An exposure is clipped to
        its maximum, and is zero if it is negative or does not parse. If the table has
        no exposure column, all exposures are one.

        Args:
            table: a data frame of pandas or polars, an Arrow table, a mapping of names
                to arrays of shape (n,), or the path of a file that `dpjax train` reads.
                Cells are converted one by one, by the declared type of their column.

        Returns:
            float64 of shape (n,): the target, or the probability of the positive label.
            For K classes (n, K): their probabilities.

        Raises:
            ValueError: If a column is missing or has neither text nor numbers, or the
                file cannot be read.
        """
        return self.predict_columns(self.read(table))

    def read(self, table: Any) -> Mapping[str, _tables.Column]:
        """Returns the columns of a table that the model reads, for `predict_columns`.

        `table` is as for `predict`. A model that predicts a constant reads no column.
        For such a model the first column is returned, which tells the number of
        records.
        """
        path = Path(table) if isinstance(table, str | os.PathLike) else None
        names = _tables.column_names(path) if path else _tables.frame_names(table)
        missing = [name for name in self.columns if name not in names]
        rule = f"a table with the columns that the model reads; {missing} are not in it"
        _validate.require(not missing, "table", names, rule)
        wanted = list(self.columns) or names[:1]
        if self.exposure is not None and self.exposure.column in names:
            wanted.append(self.exposure.column)
        if path is not None:
            dates = TextFormat(dates=dates_of(self.columns))
            return _tables.read_columns(path, wanted, text_format=dates)
        return _tables.frame_columns(table, wanted, dates_of(self.columns))

    def predict_columns(self, columns: Mapping[str, _tables.Column]) -> np.ndarray:
        """Returns predictions (n,) as `predict` does, from the columns of `read`."""
        features = np.ones((len(next(iter(columns.values()))), 1), np.float32)
        if self.columns:
            features = np.hstack([encode(columns, self.columns)[0], features])
        means = _terms.means_of(self.link, self._numbers.scores(features))
        if self.exposure is not None:
            cells = columns.get(self.exposure.column)
            unit = 1 / self.exposure.max
            means = means * (unit if cells is None else self.exposure.shares(cells))
        return self.target.center + self.target.scale * means

    def export(self, format: _export.Format) -> bytes:
        """Returns the content of a file that predicts as the model does, without dpjax.

        Predictions agree to the rounding of float32. ONNX compares texts as they are
        written: a text that may be another spelling of a category, such as 1.0 or true
        for 1, stops the runtime.

        Args:
            format: "sql" writes one expression of the columns, which may have any type
                of text or numbers, for a table with the name record: `SELECT (...) FROM
                my_table AS record`; of classes it is the most probable one. "onnx"
                writes a graph with an input of shape (n,), of float64 or text, for each
                column.

        Returns:
            The content, which states the guarantee. SQL is text in UTF-8.

        Raises:
            ValueError: If the format is unknown, a weight is not finite, or the format
                cannot hold the name of a column or of a category.
            ImportError: Without the package onnx.
        """
        _validate.choice(_export.Format, format=format)
        write = _export.onnx_file if format == "onnx" else _export.sql_file
        outputs = self._numbers.of_outputs()
        return write(*(_export.parts_of(self, terms) for terms in outputs))

    def coefficients(self) -> dict[str, Any]:
        """Returns the weight of every feature, by name, in the units of its column.

        For K classes it is a list of K weights, one of each class's score.

        A weight is the change of the target (or of the log odds, or of the logarithm of
        the mean) if a numeric column grows by one within its limit, or a column has the
        category. The "intercept" is the value if all numeric columns are zero, no
        column has a category, and the exposure is one. An additive model raises
        `ValueError`.
        """
        rule = "weights: of an additive model call shapes instead"
        _validate.require(not self._numbers.knots, "params", "curves", rule)
        matrix, start = self._in_units(), self._units()[1]
        values = matrix @ np.asarray(self._numbers.slopes, np.float64)
        values[-1] += start
        return dict(zip(self.feature_names, values.tolist(), strict=True))

    def summary(self, level: float = 0.95) -> Summary:
        """Returns a printable table of `coefficients`, with standard errors.

        Args:
            level: the probability of each of its `intervals`, shape (d, 2), in (0, 1).

        Raises:
            ValueError: If the level is out of its range, or `standard_errors` is None.
        """
        _validate.probability(level=level)
        errors, correlations = self.standard_errors, self.correlations
        if errors is None or correlations is None:
            rule = "those of a model that was trained with intervals"
            raise ValueError(f"standard_errors must be {rule}, got None.")
        values = self.coefficients()
        matrix, shares = self._in_units(), None
        of_noise, pairs = self.noise_errors, self.noise_correlations
        if of_noise is not None and pairs is not None:
            both = (errors, correlations), (of_noise, pairs)
            shares = noise_shares(matrix, *both)
        return Summary(
            f"{self.method} of {self.data}",
            [*values],
            np.array([*values.values()]),
            errors_of_sums(matrix, errors, correlations),
            self.privacy.description,
            {"log": "factor", "logit": "odds ratio"}.get(self.link),
            level,
            noise_shares=shares,
        )

    def _in_units(self) -> np.ndarray:
        """Returns the matrix from weights of features to weights of columns."""
        kinds = [kind for key, kind in self.columns.items() for _ in kind.names(key)]
        pairs = [(kind.center, kind.scale) for kind in kinds]
        return self._units()[0] * units_matrix(*np.reshape(pairs, (-1, 2)).T)

    def shapes(self) -> dict[str, Shape]:
        """Returns the contribution of every column, as a function in its units.

        It is added to the target, to the log odds, or to the logarithm of the mean. It
        is zero at the center of a numeric column, and for the reference or an unlisted
        category.

        Returns:
            `(grid, values)` by the names of columns, each of shape (m,); values for K
            classes (m, K). Contributions are linear between the numbers of a grid. It
            ends at the limit of its column, or if that is above four scales, two scales
            from the center. The grid of a column of categories lists them all.
        """
        terms, (unit, _), shapes, place = self._numbers, self._units(), {}, 0
        for key, kind in self.columns.items():
            if isinstance(kind, Categorical):
                values = kind.weights(terms.slopes[place:])
                shape = Shape(np.array(kind.categories, object), values)
            else:
                shape = Shape.of_number(
                    partial(terms.curve, place),
                    terms.knots if place in terms.smooth else (),
                    center=kind.center,
                    scale=kind.scale,
                    limit=kind.limit,
                )
            shapes[key] = shape._replace(values=unit * shape.values)
            place += len(kind.names(key))
        return shapes

    @property
    def constant(self) -> Any:
        """The score if every column contributes zero, in the unit of `shapes`."""
        unit, start = self._units()
        return (start + unit * np.asarray(self._numbers.slopes[-1], float)).tolist()

    def _units(self) -> tuple[float, float]:
        """Returns the scale and the offset from scores to the unit of `shapes`."""
        if self.link == "log":
            largest = 1.0 if self.exposure is None else self.exposure.max
            return 1.0, math.log(self.target.scale) - math.log(largest)
        return self.target.scale, self.target.center


_FORMAT = 2
# Entries that a file may lack.
_ERRORS, _OF_NOISE = (
    ("standard_errors", "correlations"),
    ("noise_errors", "noise_correlations"),
)


def model_file(model: Model) -> bytes:
    """Returns the content of a model's file, which `load_model` reads.

    It is a NumPy archive of numbers and one JSON text. The entry `params` has a weight
    for each feature, shape (d,), and `heights`, shape (k, m), the heights of k curves
    at m knots; in a linear model k = m = 0. For K classes both have a last axis (K,).
    The JSON text `model` has `format`, the version of this format; `columns`, in order,
    each with center and scale or its categories; `knots`, m numbers in scales from the
    center; and `curves`, the names of the k features with a curve. A model with
    intervals also has the `standard_errors` of params, shape (d,), and their
    `correlations`, shape (d, d), and `noise_errors` and `noise_correlations` alike.
    """
    terms, names = Terms.of(model.params), model.feature_names
    statement = vars(model).get("_privacy") or Statement.of(model.privacy)
    content = {
        "format": _FORMAT,
        "versions": dict(model.versions or {}),
        "data": model.data,
        "method": model.method,
        "link": model.link,
        "exposure": model.exposure and dataclasses.asdict(model.exposure),
        "columns": {name: kind.declared() for name, kind in model.columns.items()},
        "knots": list(terms.knots),
        "curves": [names[index] for index in terms.smooth],
        "target": {
            "name": model.target_name,
            "unit": model.target_unit,
            **model.target.declared(),
        },
        "feature_names": names,
        "privacy": statement.content(),
    }
    text, file = np.array(json.dumps(content, ensure_ascii=False)), io.BytesIO()
    known = ((name, getattr(model, name)) for name in (*_ERRORS, *_OF_NOISE))
    errors: Any = {name: np.asarray(x) for name, x in known if x is not None}
    np.savez(file, **errors, params=terms.slopes, heights=terms.heights, model=text)
    return file.getvalue()


def load_model(path: str | os.PathLike[str]) -> Model:
    """Loads a model that `dpjax train` has written.

    Loading runs no code from the file. The file stores epsilon, delta, relation and
    description of the guarantee, but not its `dp_event`: the loaded model has an
    `UnsupportedDpEvent` in its place.

    Args:
        path: the path of `model.npz`, or of its folder.

    Returns:
        The model, in the units of its table. `predict(table)` predicts the records of a
        data frame or a file; `coefficients()`, `shapes()` for the curves of an additive
        model, and with intervals `summary(level=0.95)` explain it; `export(format)`
        returns the content of a file for "sql" or "onnx"; `privacy` is its guarantee.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file is no model, is incomplete, has an earlier or later
            format, or has values of other types than `model_file` writes.

    Example:
        >>> import dpjax
        >>> model = dpjax.load_model("out/model.npz")  # doctest: +SKIP
        >>> model.predict("new.csv")  # doctest: +SKIP
        array([1210.4, 843.9])
        >>> dpjax.load_model(dpjax.__file__)
        Traceback (most recent call last):
            ...
        ValueError: model must be a file that dpjax train has written ...
    """
    path = Path(path)
    path = path / "model.npz" if path.is_dir() else path
    raw, rule = path.read_bytes(), "model must be a file that dpjax train has written"
    with well_formed(f"{rule} (model.npz) in full", path):
        with stored_arrays(io.BytesIO(raw)) as entries:
            params, text = entries["params"], entries["model"]
            heights = entries["heights"] if "heights" in entries.files else None
            names = {*_ERRORS, *_OF_NOISE}.intersection(entries.files)
            errors: Any = {name: entries[name] for name in names}
        content = of_type(dict, "model", json.loads(of_type(str, "model", text.item())))
        version = content.get("format")
        is_known = type(version) is int and version == _FORMAT
        rule = f"{_FORMAT}, or the version of dpjax that wrote the file must read it"
        _validate.require(is_known, "format", version, rule)
        return _model(params, heights, errors, content)


def _model(
    slopes: np.ndarray,  # the weights of the features, (d,)
    heights: Any,  # of k curves at m knots, (k, m)
    errors: Mapping[str, np.ndarray],  # standard errors and correlations, if any
    content: Mapping[str, Any],  # the JSON
) -> Model:
    """Returns, for `load_model`, a file's model; raises if a value's type is wrong."""
    target, columns, versions = (
        of_type(dict, name, content[name]) for name in ("target", "columns", "versions")
    )
    bent, knots, names = (
        of_type(list, name, content[name])
        for name in ("curves", "knots", "feature_names")
    )
    of_type(np.ndarray, "heights", heights)
    params: Any = slopes
    if bent or knots or heights.shape != (0, 0):
        knots = tuple(number("knots", knot) for knot in knots)
        smooth = tuple(names.index(name) for name in bent)
        params = Terms(slopes, heights, knots, smooth)  # which `Model` checks
    if (exposure := content["exposure"]) is not None:
        of_type(dict, "exposure", exposure)
        largest = number("max", exposure["max"])
        exposure = BoundedColumn(of_type(str, "column", exposure["column"]), largest)
    model = Model(
        params=cast(Any, params),
        columns={name: _kind(kind) for name, kind in columns.items()},
        target_name=_text(target, "name"),
        target=_kind({k: v for k, v in target.items() if k not in ("name", "unit")}),
        target_unit=_text(target, "unit"),
        link=content["link"],
        exposure=exposure,
        privacy=cast(Any, Statement.read(content["privacy"])),
        method=_text(content, "method"),
        data=_text(content, "data"),
        versions={name: _text(versions, name) for name in versions},
        **errors,
    )
    if names != [*model.feature_names]:
        raise ValueError(f"feature_names must be {model.feature_names}, got {names}")
    return model


def _text(content: Mapping[str, Any], name: str) -> str:
    return of_type(str, name, content[name])


def _kind(content: Any) -> Numeric | Categorical:
    """Returns a column's encoding from its JSON; raises if a value has a wrong type."""
    of_type(dict, "column", content)
    if "format" in content:
        return date_kind(**{k: of_type(str, k, value) for k, value in content.items()})
    if "categories" in content:
        names = of_type(list, "categories", content["categories"])
        names = tuple(of_type(str, "categories", name) for name in names)
        return Categorical(names, content.get("reference"))
    numbers = {name: number(name, value) for name, value in content.items()}
    if not numbers.keys() >= {"center", "scale"}:
        raise ValueError(f"columns need categories, or center and scale, got {content}")
    return Numeric(**numbers)
