"""`dpjax predict` and `dpjax show`: what a saved model is good for."""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from dpjax import _files
from dpjax._rounding import claim
from dpjax.cli._cells import count_cells, say_to_curator
from dpjax.cli._command_settings import PredictSettings, ShowSettings
from dpjax.cli._sources import Kind
from dpjax.cli._terminal import digits, show_paths, terminal
from dpjax.datasets import Categorical, Numeric
from dpjax.models import Model, load_model
from dpjax.models._shared import BoundedColumn


def predict(settings: PredictSettings) -> None:
    """Predicts the target of every record of a file.

    No guarantee covers the records of this file: neither their predictions, nor what
    standard error says of their cells, for the curator alone.

    Raises:
        ValueError: if the model, the file or the output is wrong; nothing is written.
        OSError: if a file cannot be read or written.
    """
    model_path, source = Path(settings.model), Path(settings.source)
    _files.check_file("--output", settings.output, suffix=".csv")
    _files.check_spared("--output", [settings.output], {"DATA": source})
    model = load_model(model_path)
    columns = model.read(source)
    predictions = model.predict_columns(columns)
    messages = terminal(stderr=True)
    exposure = model.exposure
    if exposure is not None and exposure.column not in columns:
        said = f"There is no column {exposure.column}: predictions are for one of it."
        messages.print(said, soft_wrap=True)
    say_to_curator(messages, _said_of_cells(model, columns))
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_title(model)])
    writer.writerows([f"{prediction:.9g}"] for prediction in predictions.tolist())
    _files.write_whole(settings.output, text.getvalue().encode(), name="--output")
    show_paths(terminal(), [settings.output])


def _said_of_cells(model: Model, columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields what cells that cannot be used as they are count as."""
    kinds: dict[str, Kind] = dict(model.columns)
    if (exposure := model.exposure) is not None and exposure.column in columns:
        kinds[exposure.column] = exposure
    for name, kind in kinds.items():
        cells = count_cells(kind, columns[name])
        if isinstance(kind, BoundedColumn) and cells.far:
            yield (
                f"{name}: {cells.said(cells.far)} cells lie above {kind.max:g}: they "
                "count as this, as in training."
            )
        count = cells.total - cells.used
        what, taken = "hold no number", "the center of the column"
        if isinstance(kind, Categorical):
            what, taken = "match no category", "none of them"
            if len(kind.categories) == 1:  # where "no" beside "yes" is a plain answer
                what, count = "hold no value", cells.missing
        elif isinstance(kind, BoundedColumn):
            what, taken = "hold no number from zero on", "zero"
        if not count:
            continue
        yield (
            f"{name}: {cells.said(count)} cells {what}"
            f"{f', most {cells.looks}' if cells.looks else ''}: they count as {taken}, "
            "as in training."
        )


def _title(model: Model) -> str:
    """Returns the name of the column of predictions."""
    if model.positive is None:
        return f"predicted_{model.target_name}"
    return f"probability_{model.target_name}={model.positive}"


def show(settings: ShowSettings) -> None:
    """Prints a model in the units of its table, and what its privacy means.

    Raises:
        ValueError: if it is not a model.
        OSError: if it cannot be read.
    """
    model = load_model(Path(settings.model))
    console = terminal()
    versions = ", ".join(f"{k} {v}" for k, v in (model.versions or {}).items())
    console.print(f"{model.method} of {model.data} ({versions})")
    console.print(_meaning(model))
    console.print(_coefficients(model))
    privacy = model.privacy
    said = claim(privacy.epsilon, privacy.delta)
    console.print(f"Privacy: {said}. {privacy.description}")
    _say_limits(console, model)


def _meaning(model: Model) -> str:
    if model.positive is not None:
        return (
            f"Predicts the probability of {model.target_name} = {model.positive} "
            f"({model.target_unit}). A coefficient is what is added to the logarithm "
            "of its odds."
        )
    what = model.target_name
    if what == "target":
        what += f" in {model.target_unit}"
    if model.link == "identity":
        return f"Predicts {what}. A coefficient is what is added to it."
    if model.exposure is not None:
        what += f", in proportion to {model.exposure.column}"
    return f"Predicts the mean of {what}. A factor is what it is multiplied by."


def _coefficients(model: Model) -> Table:
    table = Table()
    is_factor = model.link == "log"
    table.add_column("column", overflow="fold")
    table.add_column("where it is", overflow="fold")
    title = "factor" if is_factor else "coefficient"
    table.add_column(title, justify="right", no_wrap=True)
    found = model.coefficients()
    if is_factor:
        found = {name: math.exp(min(number, 700.0)) for name, number in found.items()}
    for key, kind in model.columns.items():
        for place, name in enumerate(kind.names(key)):
            where = "larger by 1"
            if isinstance(kind, Categorical):
                where = kind.categories[place]
            table.add_row(key, where, digits(found[name]))
    where = "all at 0 or in no category"
    if model.exposure is not None:
        where += f", {model.exposure.column} at 1"
    table.add_row("intercept", where, digits(found["intercept"]))
    return table


def _say_limits(console: Console, model: Model) -> None:
    if model.mean_range is not None:
        low, high = model.mean_range
        of = ""
        if (exposure := model.exposure) is not None:
            of = f" where {exposure.column} is {exposure.max:g}, and no more counts"
        console.print(f"Means lie between {low:.4g} and {high:.4g}{of}.")
    for name, kind in model.columns.items():
        if isinstance(kind, Numeric) and kind.limit < math.inf:
            low, high = (kind.center + s * kind.limit * kind.scale for s in (-1, 1))
            console.print(f"{name} is held within {low:.4g} and {high:.4g}.")
    if any(isinstance(kind, Numeric) for kind in model.columns.values()):
        console.print("A cell that holds no number lies at the center of its column.")
