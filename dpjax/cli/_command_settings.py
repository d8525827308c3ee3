"""The options of the commands other than `train` and `tune`.

Nothing here imports JAX: help, versions and wrong options wait for no command.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from dpjax import _validate
from dpjax._public_sets import PUBLIC_SETS
from dpjax.cli._losses import LossName
from dpjax.cli._options import (
    Argument,
    Generator,
    check_each,
    check_seed,
    of_data,
    of_method,
    of_output,
    of_privacy,
    required,
)
from dpjax.cli._public_sets import public_name
from dpjax.cli._text_options import TextOptions

_MODEL = Argument("MODEL", "A model.npz that dpjax train has written, or its folder.")


@dataclass(frozen=True, kw_only=True)
class SchemaSettings(TextOptions):
    """The options of `dpjax schema`."""

    source: Annotated[str, Argument("DATA", "A file, as dpjax train takes it.")]
    target: Annotated[str | None, of_data("The column to predict.")] = None
    loss: Annotated[
        LossName | None,
        of_data("The loss to be trained: what [target] is to hold. Else a guess."),
    ] = None
    from_data: Annotated[
        bool,
        of_data(
            "Guess from the records, which NO guarantee covers: for public data, or "
            "what is known anyway."
        ),
    ] = False
    output: Annotated[
        Path | None, of_output("TOML file to write, a new one; printed by default.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckSettings(TextOptions):
    """The options of `dpjax check`."""

    source: Annotated[str, Argument("DATA", "A file, as dpjax train takes it.")]
    schema: Annotated[Path, of_data("The TOML file that declares its columns.")]
    target: Annotated[
        str | None,
        of_data("The column to predict, if the schema's [target] has no column."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PredictSettings(TextOptions):
    """The options of `dpjax predict`."""

    model: Annotated[str, _MODEL]
    source: Annotated[
        str,
        Argument("DATA", "A file with the columns of the training, but the target."),
    ]
    id: Annotated[
        str | None,
        of_data("A column that is written before the predictions, as it is."),
    ] = None
    keep: Annotated[
        bool, of_data("Write all columns of the file before the predictions.")
    ] = False
    output: Annotated[
        Path, of_output("CSV file to write: one line for each record, in their order.")
    ] = Path("predictions.csv")


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """The options of `dpjax export`."""

    model: Annotated[str, _MODEL]
    format: Annotated[
        Literal["onnx", "sql", "python"], of_output("What predicts: its language.")
    ]
    output: Annotated[
        Path | None, of_output("File to write; model.onnx, .sql or .py by default.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ShowSettings:
    """The options of `dpjax show`."""

    model: Annotated[str, _MODEL]


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """The options of `dpjax report`."""

    run: Annotated[
        str, Argument("RUN", "A folder that dpjax train, tune or describe has written.")
    ]
    ledger: Annotated[
        Path | None, of_privacy("The table's ledger: what all runs on it have spent.")
    ] = None
    format: Annotated[
        Literal["html", "md"], of_output("A page of HTML, or of Markdown.")
    ] = "html"
    output: Annotated[
        Path | None,
        of_output("File to write; report.html or report.md in the folder by default."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PlotSettings:
    """The options of `dpjax plot`."""

    model: Annotated[str, _MODEL]
    output: Annotated[Path, of_output("PNG or SVG file to write.")] = Path("curves.png")
    dark: Annotated[bool, of_output("Draw light on dark.")] = False

    def __post_init__(self):
        is_known = self.output.suffix in (".png", ".svg")
        rule = "a file that ends in .png or .svg"
        _validate.require(is_known, "--output", str(self.output), rule)


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """The options of `dpjax ledger`."""

    path: Annotated[Path, Argument("LEDGER", "The ledger, a TOML file.")]
    epsilon: Annotated[
        float | None,
        of_privacy("Opens a new ledger: privacy of all runs.", _validate.positive),
    ] = None
    delta: Annotated[
        float | None,
        of_privacy(
            "Of a new ledger, well below 1 / n. 0 is for runs of pure epsilon alone.",
            lambda **given: _validate.delta(given["--delta"]),
        ),
    ] = None

    unit: Annotated[
        str | None,
        of_privacy(
            "Of a new ledger: the column that says whose a record is. Every run then "
            "needs the same --unit."
        ),
    ] = None

    def __post_init__(self):
        check_each(self)
        _validate.require(
            self.unit is None or self.epsilon is not None,
            "--unit",
            self.unit,
            "left out without --epsilon",
        )
        _validate.require(
            (self.delta is None) == (self.epsilon is None),
            "--delta",
            self.delta,
            "given with --epsilon, and left out without",
        )


@dataclass(frozen=True, kw_only=True)
class DescribeSettings(TextOptions):
    """The options of `dpjax describe`."""

    source: Annotated[str, Argument("DATA", "A file, as dpjax train takes it.")]
    schema: Annotated[Path, of_data("The TOML file that declares its columns.")]
    epsilon: Annotated[float, of_privacy("Privacy of all of it.", _validate.positive)]
    delta: Annotated[
        float | None,
        of_privacy("Privacy of all of it; n^-1.1 by default.", _validate.probability),
    ] = None
    seed: Annotated[
        int | None,
        of_privacy("Makes the noise reproducible, for public data only.", check_seed),
    ] = None
    generator: Annotated[
        Generator, of_privacy("What makes numbers of the key, as of dpjax train.")
    ] = "threefry"
    ledger: Annotated[
        Path | None, of_privacy("The table's ledger, as of dpjax train.")
    ] = None
    by: Annotated[
        str | None,
        of_data("A column of the schema with categories: its groups are described."),
    ] = None
    target: Annotated[
        str | None,
        of_data("The column of the schema's [target], if that has no column."),
    ] = None
    unit: Annotated[
        str | None,
        of_data(
            "The column that says whose a record is, as of dpjax train. Intervals take "
            "the records of one unit for independent."
        ),
    ] = None
    records_per_unit: Annotated[
        int | None,
        of_data(
            "With --unit: how many records of each count, the first ones; 4 by "
            "default.",
            _validate.count,
        ),
    ] = None
    level: Annotated[
        float, of_method("The probability of each interval.", _validate.probability)
    ] = 0.95
    dark: Annotated[bool, of_output("Draw the picture light on dark.")] = False
    output: Annotated[
        Path | None, of_output("Folder to write to; dpjax-output/NAME by default.")
    ] = None
    checkpoint: Annotated[
        Path | None,
        of_output(
            "Folder that keeps the key while it lasts, as of dpjax train: the same "
            "command goes on from there, and pays once."
        ),
    ] = None

    def __post_init__(self):
        super().__post_init__()
        _validate.require(
            self.generator == "threefry" or self.seed is None,
            "--generator",
            self.generator,
            "left out with --seed",
        )
        _validate.require(
            self.ledger is None or self.seed is None,
            "--ledger",
            str(self.ledger),
            "left out with --seed, whose noise protects nobody",
        )
        _validate.require(
            self.records_per_unit is None or self.unit is not None,
            "--records-per-unit",
            self.records_per_unit,
            "left out without --unit",
        )


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """What is asked of all parties alike; every entry is public."""

    source: Annotated[str, Argument("DATA", f"One of {', '.join(PUBLIC_SETS)}.")]
    epsilon: Annotated[float, of_privacy("Privacy of the run.", _validate.positive)]
    delta: Annotated[
        float | None,
        of_privacy("Privacy of the run; n^-1.1 by default.", _validate.probability),
    ] = None
    num_parties: Annotated[
        int,
        of_data(
            "How many parties the records are dealt out to.",
            required(lambda count: count >= 2, "2 or more"),
        ),
    ] = 4
    max_colluding: Annotated[
        int, of_privacy("How many of them may put together what they know.")
    ] = 1
    max_dropouts: Annotated[int, of_privacy("How many of them may drop out.")] = 0
    steps: Annotated[int, of_method("Rounds of the protocol.", _validate.count)] = 50
    learning_rate: Annotated[
        float | None, of_method("1 for classification, else 0.1.", _validate.positive)
    ] = None
    clip_norm: Annotated[
        float,
        of_method("The l2 norm that gradients are clipped to.", _validate.positive),
    ] = 1.0
    quick: Annotated[bool, of_method("10 rounds, to try things out.")] = False
    output: Annotated[
        Path | None,
        of_output("Folder to write to; dpjax-output/NAME-parties by default."),
    ] = None

    def __post_init__(self) -> None:
        _validate.require(
            public_name(self.source) is not None,
            "DATA",
            self.source,
            f"one of {', '.join(PUBLIC_SETS)}",
        )
        check_each(self)
        from dpjax.parties import SecureSum

        SecureSum.count_secret_shares(
            self.num_parties, self.max_colluding, self.max_dropouts
        )

    @property
    def num_steps(self) -> int:
        """How many rounds there are."""
        return 10 if self.quick else self.steps

    @property
    def folder(self) -> Path:
        """Where the files go."""
        return Path(self.output or f"dpjax-output/{public_name(self.source)}-parties")
