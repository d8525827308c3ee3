"""The options of `dpjax train`, and those that it shares with other commands.

Each is declared once, with the checks that need no data. Errors name the options. The
options that a method reads are the parameters of its function: see `_methods`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dpjax import _validate
from dpjax._public_sets import PUBLIC_SETS
from dpjax._texts import TextFormat
from dpjax._untrusted import toml_content
from dpjax.cli._losses import LossName
from dpjax.cli._options import (
    METHOD,
    REQUIRED,
    Generator,
    Options,
    argument,
    check_seed,
    declared,
    of_data,
    of_method,
    of_output,
    of_privacy,
    required,
)


def public_name(data: str) -> str | None:
    """Returns the name of a public data set, or None for a file.

    Example:
        >>> public_name("rand-hie"), public_name("prices.csv")
        ('rand_hie', None)
    """
    name = data.replace("-", "_")
    return name if name in PUBLIC_SETS else None


# Private methods; `_methods` declares each of them.
MethodName = Literal[
    "linear-model",
    "gradient-descent",
    "frank-wolfe",
    "lasso",
    "sparse",
    "l1",
    "sample-aggregate",
    "objective-perturbation",
]
EstimatorName = Literal[
    "smoothed-truncation", "truncation", "winsorization", "clipping", "median-of-means"
]
ModelName = Literal["additive", "linear"]
CalibrationName = Literal["tight", "paper"]
BatchingName = Literal["full", "disjoint", "poisson", "without-replacement"]


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
        """How the file is read."""
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
    delta: float | None = of_privacy(
        "Privacy of the run; n^-1.1 by default. 0 for pure epsilon-DP with "
        "frank-wolfe, lasso, sparse (except with the squared loss) and l1, which is "
        "always pure.",
        required(lambda delta: 0 <= delta < 1, "strictly between 0 and 1"),
    )
    calibration: CalibrationName = of_privacy(
        "The exact noise, or that of the papers with the privacy that it really gives.",
        default="tight",
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
    method: MethodName = of_method(
        "linear-model, which has no hyperparameters. From the papers: gradient "
        "descent; Frank-Wolfe or LASSO in the l1 ball of --radius; regression with "
        "--sparsity nonzero weights; for few features, l1 regression by a choice "
        "among --candidates; a center of fits to --subsets of the records; or, for "
        "the logistic loss, the minimizer of a perturbed objective.",
        default="linear-model",
    )
    loss: LossName | None = of_method(
        "Needed for a file; by default what suits the data set's task. linear-model "
        "has logistic, squared and huber, and with log link poisson for counts, gamma "
        "for amounts and tweedie for amounts that may be zero; lasso has only the "
        "squared loss, l1 only the absolute."
    )
    power: float | None = of_method(
        "For --loss tweedie: the variance is proportional to this power of the mean; "
        "1.5 by default.",
        required(lambda power: 1 < power < 2, "strictly between 1 and 2"),
    )
    model: ModelName | None = of_method(
        "For linear-model: additive, with a curve for each column of numbers, or "
        "linear. By default additive without --max-features. The number of knots of a "
        "curve follows from the numbers of records and features and the budget; if "
        "they are too small, the model is linear."
    )
    max_features: int | None = of_method(
        "For linear-model: the largest number of features with a weight, chosen "
        "privately. For many features, of which few matter; all by default.",
        _validate.count,
    )
    intervals: bool = of_method(
        "For linear-model: a linear model whose coefficients have standard errors and "
        "intervals, at a share of the budget. dpjax show prints them. Not with "
        "--unit, because their widths assume independent records.",
        default=False,
    )
    radius: float | None = of_method(
        "Radius, 1 by default, of the l1 ball of frank-wolfe and lasso, the l2 ball "
        "of sparse with the squared loss and of sample-aggregate, and the box (beyond "
        "10 features the l1 ball) of l1.",
        partial(_validate.within, 1e-12, 1e12),
    )
    sparsity: int | None = of_method(
        "For sparse: the number of nonzero weights.", _validate.count
    )
    candidates: int | None = of_method(
        "For l1: the number of candidates; 100,000 by default.", _validate.count
    )
    subsets: int | None = of_method(
        "For sample-aggregate: the number of subsets.", _validate.count
    )
    estimator: EstimatorName | None = of_method(
        "The robust mean of gradients; by default smoothed-truncation."
    )
    scale: float | None = of_method(
        "Its scale, threshold or clip norm; by default from theory for "
        "--moment-bound, and 1 for clipping. Without an estimator: where lasso and "
        "sparse clip numbers, and l1 truncates residuals.",
        partial(_validate.within, 1e-18, 1e30),
    )
    moment_bound: float | None = of_method(
        "Assumed second moment of a gradient's coordinate: 0.25 for the logistic "
        "loss, otherwise 1. For lasso and sparse regression the fourth moment of the "
        "numbers, for l1 the second moment of the residuals. Affects accuracy, never "
        "privacy.",
        partial(_validate.within, 1e-30, 1e30),
    )
    num_groups: int | None = of_method(
        "For median-of-means; by default enough for one failure in 100 runs.",
        _validate.count,
    )
    steps: int | None = of_method(
        "Number of steps. Gradient descent: 300 for a named data set, otherwise "
        "ceil(10 log n); other methods: from theory.",
        _validate.count,
    )
    learning_rate: float | None = of_method(
        "Step size. Gradient descent: 1 for the logistic loss, otherwise 0.1; other "
        "methods: from theory.",
        _validate.positive,
    )
    l2: float = of_method(
        "Strength of the l2 penalty.", _validate.non_negative, default=0.0
    )
    batching: BatchingName | None = of_method(
        "Which records a step uses; full by default."
    )
    batch_size: int | None = of_method(
        "For poisson (expected size) and without-replacement.", _validate.count
    )
    quick: bool = of_method(
        "A trial run, with 10 steps or 1,000 candidates.",
        default=False,
    )
    show_unprotected: bool = of_output(
        "On a file: hold out every fifth record, and show test risks, comparisons and "
        "a plot, which NO guarantee covers.",
        default=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_combinations()

    @property
    def may_bend(self) -> bool:
        """Whether columns of numbers may have curves."""
        is_linear = self.model == "linear" or self.max_features or self.intervals
        return self.method == "linear-model" and not is_linear

    def given_to_method(self) -> dict[str, Any]:
        """Returns the options for single methods that differ from their defaults."""
        return {
            name: getattr(self, name)
            for name, (_, said) in declared(Settings).items()
            if said.panel == METHOD and name not in ("method", "loss", "quick")
            if getattr(self, name) != getattr(Settings, name)
        }

    def _check_combinations(self) -> None:
        protected, one_record = not self.show_unprotected, self.unit is None
        is_plain, is_tweedie = not self.intervals, self.loss == "tweedie"
        batching = self.batching or "full"
        estimator = self.estimator or "smoothed-truncation"
        samples = batching in ("poisson", "without-replacement")
        has_groups = estimator == "median-of-means"
        has_moment = self.scale is None and estimator != "clipping"
        # An option, whether it may be given, and when it must be left out.
        for name, is_fine, where in (
            ("holdout", protected, "with --show-unprotected, which holds others"),
            ("ledger", protected, "with --show-unprotected, which it is not of"),
            ("private_ranges", one_record, "with --unit, for which it is not made"),
            ("show_unprotected", one_record, "with --unit, for which it is not made"),
            ("max_records", protected, "with --show-unprotected, made for all"),
            ("intervals", one_record, "with --unit, whose records are dependent"),
            ("unit_names", not one_record, "without --unit"),
            ("power", is_tweedie, "without --loss tweedie"),
            ("max_features", self.model != "additive", "with --model additive"),
            ("max_features", is_plain, "with --intervals"),
            ("model", is_plain or self.model == "linear", "with --intervals"),
            ("loss", is_plain or not is_tweedie, "with --intervals"),
            ("batch_size", samples, f"with --batching {batching}"),
            ("num_groups", has_groups, f"with --estimator {estimator}"),
            ("moment_bound", has_moment, "with --scale and with --estimator clipping"),
        ):
            self.require(name, is_fine, f"left out {where}")
        suits_groups = not (samples and has_groups)
        rule = "full or disjoint with --estimator median-of-means"
        self.require("batching", suits_groups, rule)
        is_tight = not samples or self.calibration == "tight"
        self.require("calibration", is_tight, f"tight with --batching {batching}")
        is_given = not samples or self.batch_size is not None
        rule = f"given with --batching {batching}"
        _validate.require(is_given, "--batch-size", self.batch_size, rule)
