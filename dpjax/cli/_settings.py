"""The options of `dpjax train`, and those that it shares with other commands.

Each is declared once, with the checks that need no data. Errors name the options. Which
method reads which, and what it makes of them, is said by the parameters of its
function: see `_methods`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dpjax import _validate
from dpjax._public_sets import PUBLIC_SETS
from dpjax._texts import TextFormat
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
    """Returns the name of the public data set that is meant, or None for a file.

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
    """How a file writes text and numbers: the same for all commands that read one."""

    encoding: str | None = of_data(
        "How text is encoded, such as latin-1 or cp1252; UTF-8 by default, or UTF-16 "
        "where the file begins as that does."
    )
    decimal: str | None = of_data(
        "What numbers in text have before a fraction: . by default, or ,"
    )
    thousands: str | None = of_data(
        "What may stand between groups of three digits: one of . , ' or ' '."
    )
    currency: str | None = of_data(
        "What numbers may have before or after them: EUR, or $."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.text_format  # checks what they are together

    @property
    def text_format(self) -> TextFormat:
        """How the file is read."""
        return TextFormat(
            encoding=self.encoding,
            decimal=self.decimal or ".",
            thousands=self.thousands,
            currency=self.currency,
        )


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions(TextOptions):
    """What every private release of a table is asked for."""

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
        "What makes numbers of the key: JAX's own generator, or a cipher with a key of "
        "256 bits, which takes about a second more.",
        default="threefry",
    )
    ledger: Path | None = of_privacy(
        "The table's ledger, which dpjax ledger opens: the run is refused where it has "
        "no room for it, and else adds what it spends, before it starts."
    )
    schema: Path | None = of_data(
        "TOML file that declares what is public about each column; without it a "
        "template is printed."
    )
    target: str | None = of_data(
        "The column to predict, if the schema's [target] has no column."
    )
    unit: str | None = of_data(
        "The column that says whose a record is, such as a person: neighbours then "
        "differ in all records with one of its values, under the same value. Which "
        "values have a record is public, how many records is not."
    )
    records_per_unit: int | None = of_data(
        "With --unit: how many records of each count, the first ones; 4 by default. "
        "Places that stay empty add noise, records left out are lost.",
        _validate.count,
    )
    output: Path | None = of_output("Folder to write to; dpjax-output/NAME by default.")
    checkpoint: Path | None = of_output(
        "Folder that keeps the private run while it lasts, apart from --output: the "
        "same command takes a run that was stopped up from there. It holds the key, "
        "and so is as secret as the data; it is removed before the files appear. A run "
        "that was killed leaves it: take it up, or remove it."
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
    """Trains a differentially private model of a table: curves, or lines.

    Example: dpjax train adult --epsilon 1
    """

    source: str = argument(
        "DATA",
        f"One of {', '.join(PUBLIC_SETS)}, or a CSV, Parquet or NPZ file, "
        "or a folder of such.",
    )
    delta: float | None = of_privacy(
        "Privacy of the run; n^-1.1 by default. 0 for pure epsilon-DP, with "
        "frank-wolfe, lasso, sparse (but the squared loss) and l1, which is pure "
        "always.",
        required(lambda delta: 0 <= delta < 1, "strictly between 0 and 1"),
    )
    calibration: CalibrationName = of_privacy(
        "The exact noise, or that of the papers, reported at what it gives.",
        default="tight",
    )
    strict: bool = of_data(
        "Stop before training where nearly no cell of a column can be used, which "
        "tells of the records' values.",
        default=False,
    )
    private_ranges: float | None = of_data(
        "Share of epsilon and delta, such as 0.1, for a private center and scale of "
        "each column of numbers whose section in the schema is empty.",
        _validate.probability,
    )
    holdout: float | None = of_data(
        "Share of the records, such as 0.2, that training does not see: how good the "
        "model is on them is released by a budget of their own, as large.",
        _validate.probability,
    )
    unit_names: Path | None = of_data(
        "With --unit: a public text file of all its values, one a line. Whether one "
        "has a record is then private too: its places hold zeros if not. Records of "
        "other values are left out."
    )
    max_records: int | None = of_data(
        "On a file: train on so many records, or values of --unit, at most, drawn at "
        "random while a file larger than memory is read. The sample may spend more; "
        "epsilon and delta stay those of the whole file. By default as many as have "
        "10^8 cells in the columns that are used.",
        _validate.count,
    )
    method: MethodName = of_method(
        "linear-model, which has no hyperparameters. Of the papers: gradient descent; "
        "Frank-Wolfe or LASSO in the l1 ball of --radius; sparse weights, --sparsity "
        "of them; for few features, l1 regression by a choice among --candidates; a "
        "centre of fits to --subsets of the records; or, for the logistic loss, the "
        "minimiser of a perturbed objective.",
        default="linear-model",
    )
    loss: LossName | None = of_method(
        "Needed for a file; else what suits the data set's task. linear-model has "
        "logistic, squared and huber, and with log link poisson for counts, gamma for "
        "amounts and tweedie for amounts that may be zero; lasso has the squared loss "
        "only, l1 the absolute."
    )
    power: float | None = of_method(
        "Of --loss tweedie: the variance is in proportion to this power of the mean; "
        "1.5 by default.",
        required(lambda power: 1 < power < 2, "strictly between 1 and 2"),
    )
    model: ModelName | None = of_method(
        "Of linear-model: additive, where each column of numbers has a curve, or "
        "linear. By default additive without --max-features. Of how many records, "
        "features and budget there are follows how many knots curves have; where they "
        "are too few, the model is linear."
    )
    max_features: int | None = of_method(
        "Of linear-model: the most features that may have a weight, chosen privately. "
        "For many features, of which few matter; all by default.",
        _validate.count,
    )
    intervals: bool = of_method(
        "Of linear-model: a linear model whose coefficients have standard errors and "
        "intervals, at a part of the budget. dpjax show prints them. Not with --unit, "
        "because their widths count records as independent.",
        default=False,
    )
    radius: float | None = of_method(
        "1 by default. Of the l1 ball of frank-wolfe and lasso, the l2 ball of sparse "
        "with the squared loss and of sample-aggregate, the box (beyond 10 features "
        "the l1 ball) of l1.",
        partial(_validate.within, 1e-12, 1e12),
    )
    sparsity: int | None = of_method("How many weights sparse has.", _validate.count)
    candidates: int | None = of_method(
        "Among how many l1 chooses; 100,000 by default.", _validate.count
    )
    subsets: int | None = of_method(
        "Of sample-aggregate: how many parts are fitted.", _validate.count
    )
    estimator: EstimatorName | None = of_method(
        "The robust mean of gradients; by default smoothed-truncation."
    )
    scale: float | None = of_method(
        "Its scale, threshold or clip norm; by default the theory's for "
        "--moment-bound, and 1 for clipping. Without an estimator: where lasso and "
        "sparse cut numbers off, and l1 residuals.",
        partial(_validate.within, 1e-18, 1e30),
    )
    moment_bound: float | None = of_method(
        "Assumed second moment of a gradient's coordinate, 0.25 for the logistic loss, "
        "else 1; for lasso and sparse regression fourth moment of the numbers; for l1 "
        "second moment of the residuals. Affects utility, never privacy.",
        partial(_validate.within, 1e-30, 1e30),
    )
    num_groups: int | None = of_method(
        "Of median-of-means; by default for a failure in 100 runs.", _validate.count
    )
    steps: int | None = of_method(
        "Gradient descent: 300 for a named data set, else ceil(10 log n); others: what "
        "their theory says.",
        _validate.count,
    )
    learning_rate: float | None = of_method(
        "Gradient descent: 1 for the logistic loss, else 0.1; others: their theory's.",
        _validate.positive,
    )
    l2: float = of_method(
        "Strength of the l2 penalty.", _validate.non_negative, default=0.0
    )
    batching: BatchingName | None = of_method(
        "Which records a step sees; full by default."
    )
    batch_size: int | None = of_method(
        "Of poisson (expected) and without-replacement.", _validate.count
    )
    quick: bool = of_method(
        "10 steps where --steps is read, or 1,000 candidates, as a trial.",
        default=False,
    )
    show_unprotected: bool = of_output(
        "On a file: hold every fifth record out, and show test risks, comparisons and "
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
        """Returns the options of single methods that differ from their defaults."""
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
        # An option, whether it may be given, and where it must be left out.
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
