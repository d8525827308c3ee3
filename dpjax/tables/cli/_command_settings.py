"""The options of the commands other than `train`.

Nothing here imports JAX: help, versions and wrong options wait for no command.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpjax import _validate
from dpjax.tables.cli._losses import LossName
from dpjax.tables.cli._options import (
    REQUIRED,
    Options,
    argument,
    check_seed,
    of_data,
    of_method,
    of_output,
    of_privacy,
    required,
)
from dpjax.tables.cli._settings import ModelName, ReleaseOptions, TextOptions

_LARGEST_EPSILON, _MOST_EPSILONS = 1e4, 6


@dataclass(frozen=True, kw_only=True)
class SchemaSettings(TextOptions):
    """Guesses the schema of a file from the columns' names, for you to correct.

    Example: dpjax schema my.csv --target price --output schema.toml
    """

    source: str = argument("DATA", "A file, as dpjax train takes it.")
    target: str | None = of_data("The column to predict.")
    loss: LossName | None = of_data(
        "The loss for training, which decides what [target] holds. Otherwise a guess."
    )
    from_data: bool = of_data(
        "Guess from the records, which NO guarantee covers: for public data, or for "
        "what is known anyway.",
        default=False,
    )
    output: Path | None = of_output("New TOML file to write; printed by default.")


@dataclass(frozen=True, kw_only=True)
class ForecastSettings(Options):
    """Estimates what privacy would cost from simulated records, before any real one.

    Shows loss and intervals at each epsilon and without privacy, and what an attacker
    could do.

    Example: dpjax plan schema.toml --rows 16000 --epsilon 0.5,1,3
    """

    schema: Path = argument("SCHEMA", "The TOML file, as for dpjax train.")
    rows: int = of_data(
        "How many records the table will have.",
        required(lambda count: count >= 2, "2 or more"),
        default=REQUIRED,
    )
    epsilon: str = of_privacy(
        "Values to compare, with commas: 0.5,1,3.", default=REQUIRED
    )
    delta: float | None = of_privacy(
        "The delta of each; n^-1.1 by default.", _validate.probability
    )
    loss: LossName | None = of_method(
        "The loss; by default logistic for a class, squared for a number."
    )
    model: ModelName | None = of_method(
        "As for dpjax train: additive by default, or linear."
    )
    width: float | None = of_method(
        "Desired width of a coefficient's interval: shows the smallest number of "
        "records for it.",
        _validate.positive,
    )
    tail: float = of_data(
        "Degrees of freedom of Student's t-distribution for the simulated records: 3 "
        "has heavy tails, 30 is nearly normal.",
        required(lambda x: 2 < x <= 1000, "above 2, and at most 1000"),
        default=3.0,
    )
    signal: float = of_data(
        "Share of the target's variance that the columns explain in simulated records "
        "(for classes and amounts, on the scale of the link).",
        _validate.probability,
        default=0.5,
    )
    base_rate: float | None = of_data(
        "Share of simulated records with a positive label, or with --loss tweedie with "
        "an amount above zero; 0.5 by default.",
        _validate.probability,
    )
    seed: int | None = of_data("Simulates the same records again.", check_seed)
    output: Path | None = of_output("Folder for plan.json, plan.md and plan.png.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.epsilons  # checks them
        rule = "left out with --loss tweedie, which has no intervals"
        self.require("width", self.loss != "tweedie", rule)

    @property
    def epsilons(self) -> list[float]:
        """The values of epsilon, in ascending order."""
        try:
            values = sorted({float(x) for x in self.epsilon.split(",")})
        except ValueError:
            values = [math.nan]
        is_fine = all(0 < x <= _LARGEST_EPSILON for x in values)
        rule = f"1 to {_MOST_EPSILONS} numbers above 0, with commas between them"
        is_fine &= len(values) <= _MOST_EPSILONS
        _validate.require(is_fine, "--epsilon", self.epsilon, rule)
        return values


@dataclass(frozen=True, kw_only=True)
class CheckSettings(TextOptions):
    """Shows the data's owner which cells of a file can be used. NOT PRIVATE.

    Prints for each column the shares of cells that are missing, do not parse, match no
    category or are far from the center. Writes nothing.

    Example: dpjax check my.csv --schema schema.toml
    """

    source: str = argument("DATA", "A file, as dpjax train takes it.")
    schema: Path = of_data("The TOML file that declares its columns.", default=REQUIRED)
    target: str | None = of_data(
        "The column to predict, if the schema's [target] has no column."
    )


@dataclass(frozen=True, kw_only=True)
class DescribeSettings(ReleaseOptions):
    """Releases counts, means, quantiles and histograms of a file's columns.

    Each has an interval, in every group of --by: as a table, JSON, CSV, a page and a
    picture. Intervals assume that the records of one --unit are independent.

    Example: dpjax describe my.csv --schema schema.toml --epsilon 0.5 --by region
    """

    schema: Path = of_data("The TOML file that declares its columns.", default=REQUIRED)
    by: str | None = of_data(
        "A column of the schema with categories: its groups are described."
    )
    level: float = of_method(
        "The probability of each interval.", _validate.probability, default=0.95
    )
    dark: bool = of_output("Draw the picture light on dark.", default=False)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The options of every command on a model."""

    model: str = argument("MODEL", "A model.npz of dpjax train, or its folder.")


@dataclass(frozen=True, kw_only=True)
class PredictSettings(ModelOptions, TextOptions):
    """Predicts the target of every record of a file, in its own units.

    Example: dpjax predict out/model.npz new.csv --output predictions.csv
    """

    source: str = argument(
        "DATA", "A file with the columns of the training except the target."
    )
    id: str | None = of_data("A column to write unchanged before the predictions.")
    keep: bool = of_data(
        "Write all columns of the file before the predictions.", default=False
    )
    output: Path = of_output(
        "CSV file to write: one line per record, in their order.",
        default=Path("predictions.csv"),
    )


@dataclass(frozen=True, kw_only=True)
class ExportSettings(ModelOptions):
    """Writes a model as ONNX or SQL that predicts without dpjax.

    Example: dpjax export out/model.npz --format sql --output model.sql
    """

    format: Literal["onnx", "sql"] = of_output(
        "The language of the exported model.", default=REQUIRED
    )
    output: Path | None = of_output("File to write; model.onnx or .sql by default.")


@dataclass(frozen=True, kw_only=True)
class ShowSettings(ModelOptions):
    """Shows a model: curves or coefficients in the table's units, and its guarantee.

    Example: dpjax show out/model.npz
    """


@dataclass(frozen=True, kw_only=True)
class ReportSettings(Options):
    """Writes a report of a run for others: guarantee, quality, model and settings.

    Reads what the run released, never the table.

    Example: dpjax report out --ledger table.toml
    """

    run: str = argument("RUN", "A folder that dpjax train or describe wrote.")
    ledger: Path | None = of_privacy(
        "The table's ledger: what all runs on it have spent."
    )
    output: Path | None = of_output(
        "HTML file to write; report.html in the folder by default."
    )


@dataclass(frozen=True, kw_only=True)
class PlotSettings(ModelOptions):
    """Draws what each column adds to a model's predictions, in the table's units.

    Example: dpjax plot out/model.npz --output curves.svg
    """

    output: Path = of_output("PNG or SVG file to write.", default=Path("curves.png"))
    dark: bool = of_output("Draw light on dark.", default=False)

    def __post_init__(self) -> None:
        is_known = self.output.suffix in (".png", ".svg")
        self.require("output", is_known, "a file that ends in .png or .svg")


@dataclass(frozen=True, kw_only=True)
class ShowLedgerSettings(Options):
    """Shows what all runs on a table may spend, have spent, and have left.

    Example: dpjax ledger show table.toml
    """

    path: Path = argument("LEDGER", "The ledger, a TOML file.")


@dataclass(frozen=True, kw_only=True)
class OpenLedgerSettings(ShowLedgerSettings):
    """Opens a ledger: a limit for all runs on a table together.

    Example: dpjax ledger open table.toml --epsilon 4 --delta 1e-6
    """

    epsilon: float = of_privacy(
        "Privacy of all runs together.", _validate.positive, default=REQUIRED
    )
    delta: float = of_privacy(
        "Privacy of all runs, well below 1 / n. 0 is for runs of pure epsilon only.",
        lambda **given: _validate.delta(given["--delta"]),
        default=REQUIRED,
    )
    unit: str | None = of_privacy(
        "The column that names the owner of a record. Every run then needs this --unit."
    )
