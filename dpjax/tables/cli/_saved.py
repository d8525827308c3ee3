"""Serves a saved model: prints, draws, exports and predicts, without JAX."""

import csv
import dataclasses
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpjax import _validate
from dpjax._rounding import claim, digits
from dpjax.tables import _pages
from dpjax.tables.cli import _settings, _terminal
from dpjax.tables.cli._curator import count_cells, say_to_curator, undecoded
from dpjax.tables.columns._kinds import dates_of, is_date, labels_of
from dpjax.tables.io._tables import Column, column_names, read_columns
from dpjax.tables.io._texts import Texts, text_of
from dpjax.tables.io._untrusted import harmless
from dpjax.tables.models._model import Model, load_model
from dpjax.tables.models._terms import interpolated

_WHERE = "where it is"
_SHOWN = (-2.0, -1.0, 0.0, 1.0, 2.0)  # where values of curves are shown, in scales


def export(settings: _settings.ExportSettings) -> None:
    """Writes a model in another language, whole or not at all."""
    suffix = f".{settings.format}"
    output = settings.output or Path(f"model{suffix}")
    _terminal.check_output(output, {"MODEL": Path(settings.model)}, suffix)
    _terminal.write_output(output, model_at(settings.model).export(settings.format))


def model_at(path: str) -> Model:
    """Returns the model of a command's first argument."""
    rule = "a file that dpjax train has written, or its folder"
    _validate.require(Path(path).exists(), "MODEL", path, rule)
    return load_model(path)


def show(settings: _settings.ShowSettings) -> None:
    """Runs `dpjax show`: prints a model in its table's units, and its guarantee."""
    model = model_at(settings.model)
    console = _terminal.terminal()
    versions = ", ".join(f"{k} {v}" for k, v in (model.versions or {}).items())
    console.print(f"{model.method} of {model.data} ({versions})")
    console.print(meaning(model))
    head, lines = weights_of(model)
    right = [title for title in head[1:] if title != _WHERE]
    console.print(_terminal.table_of(head, lines, right))
    if model.standard_errors is not None:
        for note in model.summary().sentences:
            console.print(note)
    stated = claim(model.privacy.epsilon, model.privacy.delta)
    console.print(f"Privacy: {stated}. {model.privacy.description}")
    for line in limits_of(model):
        console.print(line)


def plot(settings: _settings.PlotSettings) -> None:
    """Runs `dpjax plot`: writes a picture of each column's effect (PNG or SVG)."""
    output = settings.output
    _terminal.check_output(output, {"MODEL": Path(settings.model)})
    model = model_at(settings.model)
    rule = "a model of at least one column"
    _validate.require(len(model.columns) > 0, "MODEL", settings.model, rule)
    figure = figure_of(model, is_dark=settings.dark)
    _terminal.write_output(output, _pages.image_of(figure, output.suffix[1:]))


def figure_of(model: Model, *, is_dark: bool = False) -> Any:
    """Returns a matplotlib figure with a panel for each column of a model.

    A panel shows the column's contribution to the target or the log odds, or its factor
    of the mean, by the value of the column.
    """
    stated = claim(model.privacy.epsilon, model.privacy.delta)
    label, effect, _ = _words_of(model)
    shapes = {}
    for name, shape in model.shapes().items():
        kind = model.columns[name]
        if kind.categories:
            shapes[name] = shape._replace(grid=np.array(labels_of(kind)))
        else:
            shapes[kind.names(name)[0]] = shape
    return _pages.plot(
        shapes,
        [*_classes_of(model)],
        label,
        title=[f"{model.method} of {model.data}: {stated}", f"What a column {effect}"],
        is_factor=model.link == "log",
        is_dark=is_dark,
    )


def _words_of(model: Model) -> tuple[str, str, str]:
    """Returns a plot's axis label, a column's effect and a model's use, in words.

    For example "added price", "adds to price" and "Predicts price. A number is ...".
    """
    name = target = model.target_name
    number = "number" if model.curves.knots else "coefficient"
    if classes := _classes_of(model):
        text = f"Predicts the probabilities of {name} = {', '.join(classes)}, which "
        text += f"are in proportion to e^score. A {number} is what is added to a score."
        return "added score", f"adds to the score of each {name}", text
    if model.positive is not None:
        target += f" = {model.positive} ({model.target_unit})"
        text = f"Predicts the probability of {target}. A {number} is what is added to "
        text += "the logarithm of its odds."
        return "added log odds", f"adds to the log odds of {target}", text
    target += f" in {model.target_unit}" if name == "target" else ""
    if model.exposure is not None:
        target += f", in proportion to {model.exposure.column}"
    if model.link == "identity":
        text = f"Predicts {target}. A {number} is what is added to it."
        return f"added {name}", f"adds to {target}", text
    text = f"Predicts the mean of {target}. A factor is what it is multiplied by."
    return "factor of the mean", f"multiplies the mean of {target} by", text


def meaning(model: Model) -> str:
    """Returns sentences on the predictions of a model, and what its numbers mean."""
    text = _words_of(model)[2]
    if model.curves.knots:
        none = "factor of 1" if model.link == "log" else "value of 0"
        text += f" A column has a {none} at its center, or {_baseline(model)}."
    return text


def weights_of(model: Model) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and the rows of a model's table: coefficients, or curves."""
    # With standard errors, rows are those of `Model.summary`, with intervals.
    if model.standard_errors is not None:
        summary, first = model.summary(), f"larger by 1, or so{_at_one(model)}"
        return [first, *summary.header], summary.lines
    is_linear, lines = not model.curves.knots, []
    title = "coefficient" if is_linear else "adds"
    title = "factor" if model.link == "log" else title
    for key, where, numbers in _coefficients(model) if is_linear else _points(model):
        numbers = np.reshape(numbers, (len(numbers), -1))  # a column for each class
        if model.link == "log":
            numbers = np.exp(np.minimum(numbers, 700.0))
        lines.append([key, where, *(" to ".join(map(digits, x)) for x in numbers.T)])
    return ["column", _WHERE, *(_classes_of(model) or [title])], lines


def _classes_of(model: Model) -> tuple[str, ...]:
    """Returns the names of several classes that the model predicts, else ()."""
    return model.target.categories if model.link == "softmax" else ()


def _coefficients(model: Model) -> Iterator[tuple[str, str, list[Any]]]:
    """Yields (column, category or "larger by 1", [coefficient]), for `weights_of`."""
    weights = model.coefficients()
    for key, kind in model.columns.items():
        if not kind.categories:
            (key,) = kind.names(key)
            yield key, "larger by 1", [weights[key]]
        for name, where in zip(kind.categories, labels_of(kind), strict=True):
            nothing = np.zeros_like(weights["intercept"])  # of the reference
            yield key, where, [weights.get(f"{key}={name}", nothing)]
    where = f"all at 0 or {_baseline(model)}{_at_one(model)}"
    yield "intercept", where, [weights["intercept"]]


def _points(model: Model) -> Iterator[tuple[str, str, list[Any]]]:
    """Yields (column, value of the column, [contribution]), for `weights_of`.

    A column of numbers begins with the range [low, high] of its contributions.
    """
    curves = model.curves
    bent = {model.feature_names[index] for index in curves.smooth}
    for key, (grid, values) in model.shapes().items():
        kind = model.columns[key]
        if kind.categories:
            points = zip(labels_of(kind), values, strict=True)
        else:
            (key,) = kind.names(key)
            how = f"{len(curves.knots)} knots" if key in bent else "a line"
            where = f"{how}, {digits(grid[0])} to {digits(grid[-1])}"
            yield key, where, [values.min(axis=0), values.max(axis=0)]
            at = [kind.center + kind.scale * x for x in _SHOWN if abs(x) <= kind.limit]
            points = zip(map(digits, at), interpolated(at, grid, values), strict=True)
        for where, value in points:
            yield key, where, [value]
    where = f"all at their centers or {_baseline(model)}{_at_one(model)}"
    yield "constant", where, [model.constant]


def _baseline(model: Model) -> str:
    """Returns in words where columns of categories add nothing."""
    has_reference = any(kind.reference for kind in model.columns.values())
    return "at the reference" if has_reference else "in no category"


def _at_one(model: Model) -> str:
    return f", {model.exposure.column} at 1" if model.exposure is not None else ""


def limits_of(model: Model) -> Iterator[str]:
    """Yields sentences on a model's clipping, its references, and missing cells."""
    if model.mean_range is not None:
        low, high = model.mean_range
        of = ""
        if (exposure := model.exposure) is not None:
            of = f" where {exposure.column} is {exposure.max:g}, and no more counts"
        yield f"Means lie between {low:.4g} and {high:.4g}{of}."
    by_range: dict[str, list[str]] = {}
    for name, kind in model.columns.items():
        if not kind.categories and kind.limit < math.inf:
            low, high = (kind.center + s * kind.limit * kind.scale for s in (-1, 1))
            ends = f"{low:.4g} and {high:.4g}"
            by_range.setdefault(ends, []).append(*kind.names(name))
    for ends, names in by_range.items():
        verb = "is" if len(names) == 1 else "are each"
        yield f"{', '.join(names)} {verb} held within {ends}."
    if not all(kind.categories for kind in model.columns.values()):
        yield "A cell that holds no number lies at the center of its column."
    columns = model.columns.items()
    pairs = [f"{name} with {x.reference!r}" for name, x in columns if x.reference]
    if pairs:
        yield f"Categories are compared with a reference: {', '.join(pairs)}."
        yield "A cell in none of the categories counts as the reference."


def predict(settings: _settings.PredictSettings) -> None:
    """Runs `dpjax predict`: writes the predicted target of every record as CSV.

    No guarantee covers the records of this file: neither their predictions, nor the
    messages on standard error about their cells, which are for the curator alone.
    """
    source = Path(settings.source)
    _terminal.check_output(settings.output, {"DATA": source}, ".csv")
    model = model_at(settings.model)
    names = column_names(source, settings.text_format)
    copied = names if settings.keep else []
    if settings.id is not None:
        rule = f"a column of {names}"
        _validate.require(settings.id in names, "--id", settings.id, rule)
        copied = [settings.id, *(name for name in copied if name != settings.id)]
    missing = [name for name in model.columns if name not in names]
    rule = f"a file with one of the columns that the model reads, {[*model.columns]}"
    is_known = len(missing) < len(model.columns) or not model.columns
    _validate.require(is_known, "DATA", names, rule)
    exposure = [] if model.exposure is None else [model.exposure.column]
    read = [name for name in (*model.columns, *exposure) if name in names]
    wanted = list(dict.fromkeys([*read, *copied])) or names[:1]
    form = dataclasses.replace(settings.text_format, dates=dates_of(model.columns))
    columns = read_columns(source, wanted, text_format=form)
    # The cells of a column that is not in the file count as missing.
    nothing = np.full(len(columns[wanted[0]]), np.nan)
    known = {name: columns[name] for name in read}
    given = known | dict.fromkeys(missing, nothing)
    predictions = model.predict_columns(given or {"": nothing})
    for name in missing:
        value = _value_of(model.columns[name])
        _terminal.warn(f"There is no column {name}: {value} is used for all records.")
    if (gone := [name for name in exposure if name not in names]) != []:
        _terminal.warn(f"There is no column {gone[0]}: predictions are for one of it.")
    about_means = _warnings_of_means(model, known, predictions)
    say_to_curator([*_warnings_of_cells(model, known), *about_means])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    titles, cells = [*copied], [_written(columns[name]) for name in copied]
    labels = _classes_of(model)
    if labels or model.positive is None:
        titles.append(f"predicted_{model.target_name}")
    if labels:
        cells.append(map(labels.__getitem__, predictions.argmax(axis=1).tolist()))
    for label in labels or filter(None, [model.positive]):
        titles.append(f"probability_{model.target_name}={label}")
    writer.writerow(map(harmless, titles))
    for column in np.reshape(predictions, (len(predictions), -1)).T:
        cells.append(f"{prediction:.9g}" for prediction in column.tolist())
    writer.writerows(zip(*cells, strict=True))
    _terminal.write_output(settings.output, text.getvalue().encode("utf-8", "replace"))


def _written(column: Column) -> Iterator[str]:
    """Yields a column's cells (n,) as texts for a CSV file; "" for a missing one."""
    blank = None if isinstance(column, Texts) else "nan"  # a missing number
    for text in map(text_of, column.tolist()):
        yield "" if text == blank else harmless(text)


def _warnings_of_cells(model: Model, columns: Mapping[str, Column]) -> Iterator[str]:
    """Yields messages for the file's owner on cells of `columns` that are not used."""
    kinds: dict[str, Any] = {k: v for k, v in model.columns.items() if k in columns}
    if (exposure := model.exposure) is not None and exposure.column in columns:
        kinds[exposure.column] = exposure
    for name, kind in kinds.items():
        cells, is_amount = count_cells(kind, columns[name]), kind is exposure
        if is_amount and cells.far:
            far = f"{cells.of_all(cells.far)} cells lie above {kind.max:g}"
            yield f"{name}: {far}: they count as this, as in training."
        if cells.undecoded:
            yield f"{name}: {undecoded(cells)}"
        count = cells.missing + cells.unread  # other texts are the reference
        problem = f"hold no {'date' if is_date(kind) else 'number'}"
        if kind.categories:
            problem = "hold no value"
            if cells.unread:
                problem = f"match no category, such as {cells.example!r}"
                if cells.missing:
                    problem += f", {cells.missing:,} of them without a value"
        elif is_amount:
            problem = "hold no number from zero on"
        if count:
            looks = f", most {cells.looks}" if cells.looks else ""
            text = f"{cells.of_all(count)} cells {problem}{looks}"
            value = "zero" if is_amount else _value_of(kind)
            yield f"{name}: {text}: they count as {value}, as in training."


def _value_of(kind: Any) -> str:
    """Returns in words the value that a missing cell of a column has in a model."""
    if not kind.categories:
        unit = getattr(kind, "unit", "")
        return f"the center {digits(kind.center)} {unit}".rstrip()
    is_open = kind.reference is None
    return "none of its categories" if is_open else f"the reference {kind.reference!r}"


def _warnings_of_means(
    model: Model, columns: Mapping[str, Column], means: np.ndarray
) -> Iterator[str]:
    """Yields a warning if predicted means (n,) are clipped to the model's range.

    A record's range is in proportion to its exposure, in `columns` (1 if not there).
    """
    if model.mean_range is None:
        return
    exposure, shares = model.exposure, 1.0
    if exposure is not None:
        cells = columns.get(exposure.column)
        shares = 1 / exposure.max if cells is None else exposure.shares(cells)
    low, high = model.mean_range
    is_end = (means <= low * shares * 1.000001) | (means >= high * shares / 1.000001)
    if count := np.count_nonzero(is_end & (means > 0)):
        yield (
            f"{count:,} of {len(means):,} means are at an end of the model's range of "
            "means: true ones may be far beyond."
        )
