"""`dpjax predict`: the predictions of a saved model for the records of a file."""

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dpjax import _validate
from dpjax._rounding import digits
from dpjax.tables.cli._check import count_cells, say_to_curator, undecoded
from dpjax.tables.cli._report import model_at
from dpjax.tables.cli._settings import PredictSettings
from dpjax.tables.cli._terminal import check_output, warn, write_output
from dpjax.tables.columns._bounded_column import BoundedColumn
from dpjax.tables.columns._encoding import Categorical, Numeric
from dpjax.tables.io._tables import Column, column_names, read_columns
from dpjax.tables.io._texts import Texts, text_of
from dpjax.tables.io._untrusted import harmless
from dpjax.tables.models._model import Model


def predict(settings: PredictSettings) -> None:
    """Predicts the target of every record of a file.

    No guarantee covers the records of this file: neither their predictions, nor the
    messages on standard error about their cells, which are for the curator alone.
    """
    source = Path(settings.source)
    check_output(settings.output, {"DATA": source}, ".csv")
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
    columns = read_columns(source, wanted, text_format=settings.text_format)
    nothing = np.full(len(columns[wanted[0]]), np.nan)
    known = {name: columns[name] for name in read}
    given = known | dict.fromkeys(missing, nothing)
    predictions = model.predict_columns(given or {"": nothing})
    for name in missing:
        kind = model.columns[name]
        center = f"the center {digits(kind.center)}"
        value = "none of its categories" if kind.categories else center
        warn(f"There is no column {name}: {value} is used for all records.")
    if (gone := [name for name in exposure if name not in names]) != []:
        warn(f"There is no column {gone[0]}: predictions are for one of it.")
    about_means = _said_of_means(model, known, predictions)
    say_to_curator([*_said_of_cells(model, known), *about_means])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    title = f"predicted_{model.target_name}"
    if model.positive is not None:
        title = f"probability_{model.target_name}={model.positive}"
    writer.writerow(map(harmless, [*copied, title]))
    cells = []
    for column in (columns[name] for name in copied):
        blank = None if isinstance(column, Texts) else "nan"  # what is missing
        texts = map(text_of, column.tolist())
        cells.append(harmless("" if x == blank else x) for x in texts)
    shown = [f"{prediction:.9g}" for prediction in predictions.tolist()]
    writer.writerows(zip(*cells, shown, strict=True))
    write_output(settings.output, text.getvalue().encode("utf-8", "replace"))


def _said_of_cells(model: Model, columns: Mapping[str, Column]) -> Iterator[str]:
    """Yields messages on cells that cannot be used as they are, by column."""
    kinds: dict[str, Numeric | Categorical | BoundedColumn]
    kinds = {k: v for k, v in model.columns.items() if k in columns}
    if (exposure := model.exposure) is not None and exposure.column in columns:
        kinds[exposure.column] = exposure
    for name, kind in kinds.items():
        cells = count_cells(kind, columns[name])
        if isinstance(kind, BoundedColumn) and cells.far:
            far = f"{cells.of_all(cells.far)} cells lie above {kind.max:g}"
            yield f"{name}: {far}: they count as this, as in training."
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
        if count:
            looks = f", most {cells.looks}" if cells.looks else ""
            what = f"{cells.of_all(count)} cells {problem}{looks}"
            yield f"{name}: {what}: they count as {value}, as in training."


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
