"""`dpjax predict`, `export`, `show` and `plot`: the commands on a saved model."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from dpjax import _files, _validate
from dpjax._rounding import claim, digits
from dpjax.tables import _pages
from dpjax.tables.cli._cells import count_cells, say_to_curator, undecoded
from dpjax.tables.cli._command_settings import (
    ExportSettings,
    PlotSettings,
    PredictSettings,
    ShowSettings,
)
from dpjax.tables.cli._terminal import show_paths, terminal
from dpjax.tables.columns._kinds import BoundedColumn, Categorical, Numeric
from dpjax.tables.io._tables import Column, column_names, read_columns
from dpjax.tables.io._texts import Texts, text_of
from dpjax.tables.io._untrusted import harmless
from dpjax.tables.models._file import load_model
from dpjax.tables.models._model import Model

_SUFFIXES = {"onnx": ".onnx", "sql": ".sql"}
_WHERE = "where it is"
_SHOWN = (-2.0, -1.0, 0.0, 1.0, 2.0)  # where values of curves are shown, in scales


def predict(settings: PredictSettings) -> None:
    """Predicts the target of every record of a file.

    No guarantee covers the records of this file: neither their predictions, nor the
    messages on standard error about their cells, which are for the curator alone.
    """
    model_path, source = Path(settings.model), Path(settings.source)
    _files.check_file("--output", settings.output, suffix=".csv")
    _files.check_spared("--output", [settings.output], {"DATA": source})
    model = _model_at(model_path)
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
    columns = read_columns(source, wanted, text_format=settings.text_format)
    nothing = np.full(len(columns[wanted[0]]), np.nan)
    known = {name: columns[name] for name in read}
    predictions = model.predict_columns(
        known | dict.fromkeys(missing, nothing) or {"": nothing}
    )
    messages = terminal(stderr=True)
    for name in missing:
        kind = model.columns[name]
        center = f"the center {digits(kind.center)}"
        value = "none of its categories" if kind.categories else center
        line = f"There is no column {name}: {value} is used for all records."
        messages.print(line, style="yellow", soft_wrap=True)
    for name in exposure:
        if name not in names:
            line = f"There is no column {name}: predictions are for one of it."
            messages.print(line, soft_wrap=True)
    about_means = _said_of_means(model, known, predictions)
    say_to_curator(messages, [*_said_of_cells(model, known), *about_means])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, [*copied, _title(model)]))
    cells = [map(harmless, _as_written(columns[name])) for name in copied]
    shown = [f"{prediction:.9g}" for prediction in predictions.tolist()]
    writer.writerows(zip(*cells, shown, strict=True))
    content = text.getvalue().encode("utf-8", "replace")
    _files.write_whole(settings.output, content, name="--output")
    show_paths(terminal(), [settings.output])


def _as_written(column: Column) -> list[str]:
    """Returns cells as text; a missing cell is blank."""
    texts = map(text_of, column.tolist())
    if isinstance(column, Texts):
        return [*texts]
    return ["" if text == "nan" else text for text in texts]


def _said_of_cells(model: Model, columns: Mapping[str, Column]) -> Iterator[str]:
    """Yields messages on cells that cannot be used as they are, by column."""
    kinds: dict[str, Numeric | Categorical | BoundedColumn]
    kinds = {k: v for k, v in model.columns.items() if k in columns}
    if (exposure := model.exposure) is not None and exposure.column in columns:
        kinds[exposure.column] = exposure
    for name, kind in kinds.items():
        cells = count_cells(kind, columns[name])
        if isinstance(kind, BoundedColumn) and cells.far:
            yield (
                f"{name}: {cells.of_all(cells.far)} cells lie above {kind.max:g}: they "
                "count as this, as in training."
            )
        if cells.undecoded:
            yield f"{name}: {undecoded(cells)}"
        count = cells.total - cells.used
        problem, value = "hold no number", "the center of the column"
        if kind.categories:
            problem, value = "match no category", "none of them"
            if 0 < cells.missing < count:
                problem += f", {cells.missing:,} of them without a value"
            if len(kind.categories) == 1:  # "no" is expected next to "yes"
                problem, count = "hold no value", cells.missing
        elif isinstance(kind, BoundedColumn):
            problem, value = "hold no number from zero on", "zero"
        if not count:
            continue
        yield (
            f"{name}: {cells.of_all(count)} cells {problem}"
            f"{f', most {cells.looks}' if cells.looks else ''}: they count as {value}, "
            "as in training."
        )


def _said_of_means(
    model: Model, columns: Mapping[str, Column], means: np.ndarray
) -> Iterator[str]:
    """Yields a message on means at an end of the range that the model has."""
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


def _title(model: Model) -> str:
    """Returns the name of the column of predictions."""
    if model.positive is None:
        return f"predicted_{model.target_name}"
    return f"probability_{model.target_name}={model.positive}"


def export(settings: ExportSettings) -> None:
    """Writes a model in another language, whole or not at all."""
    suffix = _SUFFIXES[settings.format]
    output = settings.output or Path(f"model{suffix}")
    _files.check_file("--output", output, suffix=suffix)
    _files.check_spared("--output", [output], {"MODEL": Path(settings.model)})
    content = _model_at(Path(settings.model)).export(settings.format)
    _files.write_whole(output, content, name="--output")
    show_paths(terminal(), [output])


def _model_at(path: Path) -> Model:
    rule = "a file that dpjax train has written, or its folder"
    _validate.require(path.exists(), "MODEL", str(path), rule)
    return load_model(path)


def show(settings: ShowSettings) -> None:
    """Prints a model in the units of its table, and its guarantee."""
    model = _model_at(Path(settings.model))
    console = terminal()
    versions = ", ".join(f"{k} {v}" for k, v in (model.versions or {}).items())
    console.print(f"{model.method} of {model.data} ({versions})")
    console.print(meaning(model))
    console.print(_table(*numbers_of(model)))
    if model.standard_errors is not None:
        for note in model.summary().sentences:
            console.print(note)
    privacy = model.privacy
    stated = claim(privacy.epsilon, privacy.delta)
    console.print(f"Privacy: {stated}. {privacy.description}")
    for line in limits_of(model):
        console.print(line)


def plot(settings: PlotSettings) -> None:
    """Draws each column's effect as PNG or SVG, written whole or not at all."""
    output = settings.output
    _files.check_file("--output", output)
    _files.check_spared("--output", [output], {"MODEL": Path(settings.model)})
    model = _model_at(Path(settings.model))
    rule = "a model that reads a column"
    _validate.require(len(model.columns) > 0, "MODEL", settings.model, rule)
    figure = figure_of(model, is_dark=settings.dark)
    content = io.BytesIO()
    figure.savefig(content, format=output.suffix[1:])
    _files.write_whole(output, content.getvalue(), name="--output")
    show_paths(terminal(), [output])


def figure_of(model: Model, *, is_dark: bool = False) -> Any:
    """Draws what each column adds to a model's predictions, with matplotlib."""
    stated = claim(model.privacy.epsilon, model.privacy.delta)
    label, effect = _drawn(model)
    return _pages.plot(
        *(model.shapes(), [], label),
        title=[f"{model.method} of {model.data}: {stated}", f"What a column {effect}"],
        is_factor=model.link == "log",
        is_dark=is_dark,
    )


def _drawn(model: Model) -> tuple[str, str]:
    """Returns the axis label of the curves, and what a column does, in words."""
    if model.positive is not None:
        return "added log odds", f"adds to the log odds of {_target(model)}"
    if model.link == "identity":
        return f"added {model.target_name}", f"adds to {_target(model)}"
    return "factor of the mean", f"multiplies the mean of {_target(model)} by"


def _target(model: Model) -> str:
    if model.positive is not None:
        return f"{model.target_name} = {model.positive} ({model.target_unit})"
    target = model.target_name
    if target == "target":
        target += f" in {model.target_unit}"
    if model.exposure is not None:
        target += f", in proportion to {model.exposure.column}"
    return target


def meaning(model: Model) -> str:
    """Returns sentences on what a model predicts, and what its numbers mean."""
    target, is_linear = _target(model), not model.curves.knots
    number = "coefficient" if is_linear else "number"
    if model.positive is not None:
        text = f"the probability of {target}. A {number} is what is added to the "
        text += "logarithm of its odds."
    elif model.link == "identity":
        text = f"{target}. A {number} is what is added to it."
    else:
        text = f"the mean of {target}. A factor is what it is multiplied by."
    if not is_linear:
        none = "factor of 1" if model.link == "log" else "value of 0"
        text += f" A column has a {none} at its center, or in no category."
    return f"Predicts {text}"


def _table(head: list[str], lines: list[list[str]]) -> Table:
    table = Table()
    for place, title in enumerate(head):
        if place == 0 or title == _WHERE:
            table.add_column(title, overflow="fold")
        else:
            table.add_column(title, justify="right", no_wrap="interval" not in title)
    for line in lines:
        table.add_row(*line)
    return table


def numbers_of(model: Model) -> tuple[list[str], list[list[str]]]:
    """Returns coefficients, with intervals if the model has them, or curve values.

    Returns:
        The titles of a table's columns, and its lines.
    """
    if model.standard_errors is not None:
        summary = model.summary()
        pairs = zip(summary.names, summary.rows, strict=True)
        first = f"larger by 1, or so{_at_one(model)}"
        return [first, *summary.header], [[name, *row] for name, row in pairs]
    is_linear, lines = not model.curves.knots, []
    title = "coefficient" if is_linear else "adds"
    title = "factor" if model.link == "log" else title
    for key, where, numbers in _lines(model) if is_linear else _points(model):
        if model.link == "log":
            numbers = [math.exp(min(number, 700.0)) for number in numbers]
        lines.append([key, where, " to ".join(map(digits, numbers))])
    return ["column", _WHERE, title], lines


def _lines(model: Model) -> Iterator[tuple[str, str, list[float]]]:
    """Yields columns, where they are, and coefficients."""
    weights = model.coefficients()
    for key, kind in model.columns.items():
        for place, name in enumerate(kind.names(key)):
            where = kind.categories[place] if kind.categories else "larger by 1"
            yield key, where, [weights[name]]
    where = f"all at 0 or in no category{_at_one(model)}"
    yield "intercept", where, [weights["intercept"]]


def _points(model: Model) -> Iterator[tuple[str, str, list[float]]]:
    """Yields columns, where they are, and values; for a curve first its range."""
    curves = model.curves
    bent = {model.feature_names[index] for index in curves.smooth}
    for key, (grid, values) in model.shapes().items():
        kind = model.columns[key]
        if kind.categories:
            points = zip(grid, values, strict=True)
        else:
            how = f"{len(curves.knots)} knots" if key in bent else "a line"
            where = f"{how}, {digits(grid[0])} to {digits(grid[-1])}"
            yield key, where, [values.min(), values.max()]
            at = [kind.center + kind.scale * x for x in _SHOWN if abs(x) <= kind.limit]
            at_points = np.interp(at, grid, values)
            points = zip(map(digits, at), at_points, strict=True)
        for where, value in points:
            yield key, where, [value]
    where = f"all at their centers or in no category{_at_one(model)}"
    yield "constant", where, [model.constant]


def _at_one(model: Model) -> str:
    return f", {model.exposure.column} at 1" if model.exposure is not None else ""


def limits_of(model: Model) -> Iterator[str]:
    """Yields the bounds on means and columns, and the value of missing cells."""
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
            by_range.setdefault(f"{low:.4g} and {high:.4g}", []).append(name)
    for ends, names in by_range.items():
        verb = "is" if len(names) == 1 else "are each"
        yield f"{', '.join(names)} {verb} held within {ends}."
    if not all(kind.categories for kind in model.columns.values()):
        yield "A cell that holds no number lies at the center of its column."
