"""The options of `dpjax train`, and those that it shares with other commands.

Each is declared once, with the checks that need no data. Errors name the options.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpjax import _validate
from dpjax.datasets._dataset import PUBLIC_SETS
from dpjax.tables.cli._losses import LossName
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


def public_name(data: str) -> str | None:
    """Returns the name of a public data set, or None for a file.

    Example:
        >>> public_name("rand-hie"), public_name("prices.csv")
        ('rand_hie', None)
    """
    name = data.replace("-", "_")
    return name if name in PUBLIC_SETS else None


ModelName = Literal["additive", "linear"]


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

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.text_format  # checks the combination

    @property
    def text_format(self) -> TextFormat:
        """Tells how the file is read."""
        return TextFormat(
            quoted=self.quoted or _is_quoted(getattr(self, "schema", None)),
            skip_lines=self.skip_lines or 0,
            last_lines=self.last_lines or 0,
            row_names=self.row_names,
            encoding=self.encoding,
            decimal=self.decimal or ".",
            thousands=self.thousands,
            currency=self.currency,
        )


def _is_quoted(schema: Path | None) -> bool:
    """Returns whether a schema has `quoted = true`; `read_schema` checks the rest."""
    try:
        return schema is not None and toml_content(schema).get("quoted") is True
    except (OSError, ValueError):
        return False


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
    target: str | None = of_data(
        "The column to predict, if the schema's [target] has no column."
    )
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
        "random while a file larger than memory is read. The sample may spend more; "
        "epsilon and delta stay those of the whole file. By default as many as have "
        "10^8 cells in the columns in use.",
        _validate.count,
    )
    output: Path | None = of_output("Folder to write to; dpjax-output/NAME by default.")
    checkpoint: Path | None = of_output(
        "Folder that keeps the state of the run, apart from --output: the same "
        "command resumes a stopped run. It holds the key, so it is as secret as the "
        "data. The command removes it before the files appear. A killed run leaves "
        "it: resume the run, or remove the folder."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_secret, no_unit = self.seed is None, self.unit is None
        own = is_secret or self.generator == "threefry"
        self.require("generator", own, "left out with --seed")
        rule = "left out with --seed, whose noise protects nobody"
        self.require("ledger", is_secret, rule)
        self.require("records_per_unit", not no_unit, "left out without --unit")


@dataclass(frozen=True, kw_only=True)
class Settings(ReleaseOptions):
    """Trains a differentially private model of a table, with curves or lines.

    Example: dpjax train adult --epsilon 1
    """

    source: str = argument(
        "DATA",
        f"One of {', '.join(PUBLIC_SETS)}, or a CSV, Parquet or NPZ file, "
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
        "Needed for a file; by default what suits the data set's task: logistic for a "
        "class, squared or huber for a number, and with log link poisson for counts, "
        "gamma for amounts and tweedie for amounts that may be zero."
    )
    power: float | None = of_method(
        "For --loss tweedie: the variance is proportional to this power of the mean; "
        "1.5 by default.",
        required(lambda power: 1 < power < 2, "strictly between 1 and 2"),
    )
    model: ModelName | None = of_method(
        "additive, with a curve for each column of numbers, or "
        "linear. By default additive without --max-features. The number of knots of a "
        "curve follows from the numbers of records and features and the budget; if "
        "they are too small, the model is linear."
    )
    max_features: int | None = of_method(
        "The largest number of features with a weight, chosen "
        "privately. For many features, of which few matter; all by default.",
        _validate.count,
    )
    intervals: bool = of_method(
        "A linear model whose coefficients have standard errors and "
        "intervals, at a share of the budget. dpjax show prints them. Not with "
        "--unit, because their widths assume independent records.",
        default=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_combinations()

    @property
    def may_bend(self) -> bool:
        """Tells whether columns of numbers may have curves."""
        return self.model != "linear" and not self.max_features and not self.intervals

    def _check_combinations(self) -> None:
        one_record, is_plain = self.unit is None, not self.intervals
        is_tweedie = self.loss == "tweedie"
        # An option, whether it may be given, and when it must be left out.
        for name, is_fine, where in (
            ("private_ranges", one_record, "with --unit, for which it is not made"),
            ("intervals", one_record, "with --unit, whose records are dependent"),
            ("unit_names", not one_record, "without --unit"),
            ("power", is_tweedie, "without --loss tweedie"),
            ("max_features", self.model != "additive", "with --model additive"),
            ("max_features", is_plain, "with --intervals"),
            ("model", is_plain or self.model == "linear", "with --intervals"),
            ("loss", is_plain or not is_tweedie, "with --intervals"),
        ):
            self.require(name, is_fine, f"left out {where}")
