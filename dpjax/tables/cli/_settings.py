"""The options of all commands, each with the checks that need no data.

Nothing here imports JAX, so that help and errors about options appear at once.
"""

import contextlib
import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpjax import _validate
from dpjax.datasets._dataset import PUBLIC_SETS
from dpjax.tables.cli._options import (
    REQUIRED,
    Generator,
    Options,
    argument,
    check_seed,
    of_data,
    of_method,
    of_output,
    of_privacy,
    required,
)
from dpjax.tables.io._texts import TextFormat
from dpjax.tables.io._untrusted import toml_content

if TYPE_CHECKING:
    from dpjax.tables.models._terms import Link

LossName = Literal[
    "logistic", "softmax", "squared", "huber", "poisson", "gamma", "tweedie"
]
ModelName = Literal["additive", "linear"]
FOR_AMOUNTS: tuple[LossName, ...] = ("poisson", "gamma", "tweedie")
AMOUNTS = "poisson, gamma or tweedie"
_LARGEST_EPSILON = 1e4
_TARGET = "The column to predict, if the schema's [target] has no column."
_RECORDS_PER_UNIT = 4  # the default; it must not depend on the records


def link_of(name: LossName | None) -> "Link":
    """Returns the link function of a loss."""
    if name in FOR_AMOUNTS:
        return "log"
    own: dict[str | None, Link] = {"logistic": "logit", "softmax": "softmax"}
    return own.get(name, "identity")


def public_name(data: str) -> str | None:
    """Returns the name of a public data set, such as rand_hie, or None for a file."""
    name = data.replace("-", "_")
    return name if name in PUBLIC_SETS else None


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    """The format of text and numbers in a file, for all commands that read one."""

    quoted: bool = of_data(
        "Cells in quotes may have line breaks, as a CSV writer writes them (RFC 4180); "
        "by default a line is a record. The schema may say it: quoted = true.",
        default=False,
    )
    skip_lines: int | None = of_data(
        "The number of lines above the header, such as titles.", _validate.count
    )
    last_lines: int | None = of_data(
        "The number of lines at the end that are no records, such as sums.",
        _validate.count,
    )
    row_names: bool = of_data(
        "Lines begin with a cell that has no name in the header, as R writes them.",
        default=False,
    )
    encoding: str | None = of_data(
        "The text encoding, such as latin-1 or cp1252; by default UTF-8, or UTF-16 if "
        "the file begins with its byte order mark."
    )
    decimal: str | None = of_data(
        "The decimal mark of numbers in text: . by default, or ,"
    )
    thousands: str | None = of_data(
        "The mark between groups of three digits: one of . , ' or ' '."
    )
    currency: str | None = of_data("A currency before or after numbers: EUR, or $.")
    percent: bool = of_data(
        "Numbers may have a percent sign after them: 12 % is 0.12.", default=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.text_format  # checks the combination

    @property
    def text_format(self) -> TextFormat:
        """The format of the file, from the options and `quoted` in the schema."""
        is_quoted, schema = self.quoted, getattr(self, "schema", None)
        if schema is not None and not is_quoted:
            # `read_schema` checks the rest of the file.
            with contextlib.suppress(OSError, ValueError):
                is_quoted = toml_content(schema).get("quoted") is True
        names = [field.name for field in dataclasses.fields(TextFormat)]
        given: Any = {name: getattr(self, name, None) for name in names}
        given = {name: x for name, x in given.items() if x is not None}
        return TextFormat(**given | {"quoted": is_quoted})


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(TextOptions):
    """The options of every private release of a table."""

    source: str = argument("DATA", "A file, as dpjax train takes it.")
    epsilon: float = of_privacy(
        "Privacy of the run.", _validate.positive, default=REQUIRED
    )
    delta: float | None = of_privacy(
        "Privacy of the run; n^-1.1 by default.", _validate.probability
    )
    seed: int | None = of_privacy(
        "Makes the noise reproducible, for public data only. By default it comes from "
        "the operating system.",
        check_seed,
    )
    generator: Generator = of_privacy(
        "The random number generator: JAX's default, or a cipher with a key of 256 "
        "bits, which takes about a second more.",
        default="threefry",
    )
    ledger: Path | None = of_privacy(
        "The table's ledger, from dpjax ledger open: it refuses a run beyond its "
        "limit, and otherwise records what the run spends, before it starts."
    )
    schema: Path | None = of_data(
        "TOML file that declares what is public about each column; without it the "
        "command prints a template."
    )
    target: str | None = of_data(_TARGET)
    unit: str | None = of_data(
        "The column that names the owner of a record, such as a person: neighbors "
        "then differ in all records of one owner, under the same name. Which names "
        "have a record is public, how many records is not."
    )
    records_per_unit: int | None = of_data(
        "With --unit: how many records of each count, the first ones; 4 by default. "
        "A larger number adds noise; records beyond it are lost.",
        _validate.count,
    )
    max_records: int | None = of_data(
        "On a file: use at most this many records, or values of --unit, drawn at "
        "random; epsilon and delta stay those of the whole file. By default as many as "
        "have 10^8 cells in the columns in use.",
        _validate.count,
    )
    output: Path | None = of_output("Folder to write to; dpjax-output/NAME by default.")
    checkpoint: Path | None = of_output(
        "Folder that keeps the state of the run, apart from --output: the same command "
        "resumes a stopped run. It holds the key, so it is as secret as the data. A "
        "killed run leaves it: resume the run, or remove the folder."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_secret, has_unit = self.seed is None, self.unit is not None
        is_fine = is_secret or self.generator == "threefry"
        self.require("generator", is_fine, "left out with --seed")
        rule = "left out with --seed, because noise of a known seed protects nobody"
        self.require("ledger", is_secret, rule)
        self.require("records_per_unit", has_unit, "left out without --unit")

    @property
    def each(self) -> int:
        """The number of records of each unit that count; 1 without units."""
        return 1 if self.unit is None else self.records_per_unit or _RECORDS_PER_UNIT


@dataclass(frozen=True, kw_only=True)
class Settings(ReleaseOptions):
    """Trains a differentially private model of a table, with curves or lines.

    Example: dpjax train adult --epsilon 1
    """

    source: str = argument(
        "DATA",
        f"One of {', '.join(PUBLIC_SETS)}, or a CSV, Excel, Parquet or NPZ file, "
        "or a folder of such.",
    )
    strict: bool = of_data(
        "Stop before training if nearly no cell of a column can be used. Stopping "
        "reveals something about the records' values.",
        default=False,
    )
    private_ranges: float | None = of_data(
        "Share of epsilon and delta, such as 0.1, to release a center and a scale of "
        "each column of numbers whose section in the schema is empty.",
        _validate.probability,
    )
    holdout: float | None = of_data(
        "Share of the records, such as 0.2, that training does not use: scores on "
        "them are released with a separate budget of the same size.",
        _validate.probability,
    )
    unit_names: Path | None = of_data(
        "With --unit: a public text file of all its values, one per line. Whether a "
        "value has a record is then private too: without records it counts as zeros. "
        "Records of other values are left out."
    )
    loss: LossName | None = of_method(
        "By default what suits the target: logistic for a label, softmax for several "
        "classes, squared for a number (huber is robust). With log link, and a target "
        "with a scale alone: poisson for counts, gamma for amounts, tweedie for "
        "amounts that may be zero."
    )
    power: float | None = of_method(
        "For --loss tweedie: the variance is proportional to this power of the mean; "
        "1.5 by default.",
        required(lambda power: 1 < power < 2, "strictly between 1 and 2"),
    )
    model: ModelName | None = of_method(
        "additive, with a curve for each column of numbers if the records and the "
        "budget suffice, or linear. By default additive without --max-features."
    )
    max_features: int | None = of_method(
        "The largest number of features with a weight, chosen "
        "privately. For many features, of which few matter; all by default.",
        _validate.count,
    )
    intervals: bool = of_method(
        "A linear model whose coefficients have standard errors and intervals, at a "
        "share of the budget; dpjax show prints them.",
        default=False,
    )

    def __post_init__(self) -> None:
        """Checks that no option is given together with one that excludes it."""
        super().__post_init__()
        one_record, is_plain = self.unit is None, not self.intervals
        is_tweedie, is_linear = self.loss == "tweedie", self.model == "linear"
        # An option, whether it may be given, and when it must be left out.
        for name, is_fine, where in (
            ("unit_names", not one_record, "without --unit"),
            ("power", is_tweedie, "without --loss tweedie"),
            ("max_features", self.model != "additive", "with --model additive"),
            ("max_features", is_plain, "with --intervals"),
            ("model", is_plain or is_linear, "with --intervals, or linear"),
            ("loss", is_plain or not is_tweedie, "with --intervals, or not tweedie"),
        ):
            self.require(name, is_fine, f"left out {where}")

    @property
    def may_bend(self) -> bool:
        """True if columns of numbers may have curves."""
        return self.model != "linear" and not self.max_features and not self.intervals


def chosen_loss(settings: "Settings | ForecastSettings", link: "Link") -> LossName:
    """Returns the chosen loss, or the default for the link of the target."""
    rule = f"given for a target with a scale alone: {AMOUNTS}"
    _validate.require(settings.loss is not None or link != "log", "--loss", None, rule)
    defaults: dict[str, LossName] = {"logit": "logistic", "softmax": "softmax"}
    return settings.loss or defaults.get(link, "squared")


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
    """Estimates the cost of privacy from simulated records, before a real one is used.

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
        "The loss; by default what suits the target, as for dpjax train."
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
        """The 1 to 6 numbers in --epsilon, ascending; raises if they are malformed."""
        try:
            values = sorted({float(x) for x in self.epsilon.split(",")})
        except ValueError:
            values = [math.nan]
        is_fine = len(values) <= 6 and all(0 < x <= _LARGEST_EPSILON for x in values)
        rule = "1 to 6 numbers above 0, at most 10,000, with commas between them"
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
    target: str | None = of_data(_TARGET)


@dataclass(frozen=True, kw_only=True)
class DescribeSettings(ReleaseOptions):
    """Releases counts, means, quantiles and histograms of a file's columns.

    Each statistic has an interval, in every group of --by. Writes JSON, CSV, a page and
    pictures. Intervals assume that the records of one --unit are independent.

    Example: dpjax describe my.csv --schema schema.toml --epsilon 0.5 --by region
    """

    schema: Path = of_data("The TOML file that declares its columns.", default=REQUIRED)
    by: str | None = of_data(
        "A column of the schema with categories: its groups are described. Or several, "
        "such as region,sex: their combinations are."
    )
    weights: str | None = of_data(
        "A column of the schema with a limit, or of its [weight]: how much a record "
        "counts. Counts, shares and means are weighted, and quantiles left out. All "
        "columns of numbers then need a limit."
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
    """Predicts the target of every record of a file, in the units of the target.

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
