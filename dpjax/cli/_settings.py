"""The options of `dpjax train`, each declared once, and the checks that need no data.

Errors name the options. Which method reads which, and what it makes of them, is said by
the parameters of its function: see `_methods`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from dpjax import _validate
from dpjax._public_sets import PUBLIC_SETS
from dpjax.cli._losses import LossName
from dpjax.cli._options import (
    METHOD,
    Argument,
    Generator,
    Option,
    check_seed,
    declared,
    flag,
    of_data,
    of_method,
    of_output,
    of_privacy,
    required,
)
from dpjax.cli._text_options import TextOptions

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
class Settings(TextOptions):
    """What a run is asked for; None leaves it to the method."""

    source: Annotated[
        str,
        Argument(
            "DATA",
            f"One of {', '.join(PUBLIC_SETS)}, or a CSV, Parquet or NPZ file, "
            "or a folder of such.",
        ),
    ]
    epsilon: Annotated[float, of_privacy("Privacy of the run.", _validate.positive)]
    delta: Annotated[
        float | None,
        of_privacy(
            "Privacy of the run; n^-1.1 by default. 0 for pure epsilon-DP, with "
            "frank-wolfe, lasso, sparse (but the squared loss) and l1, which is pure "
            "always.",
            required(lambda delta: 0 <= delta < 1, "strictly between 0 and 1"),
        ),
    ] = None
    calibration: Annotated[
        CalibrationName,
        of_privacy(
            "The exact noise, or that of the papers, reported at what it gives."
        ),
    ] = "tight"
    seed: Annotated[
        int | None,
        of_privacy(
            "Makes the noise reproducible, for public data only. By default it comes "
            "from the operating system.",
            check_seed,
        ),
    ] = None
    generator: Annotated[
        Generator,
        of_privacy(
            "What makes numbers of the key: JAX's own generator, or a cipher with a "
            "key of 256 bits, which takes about a second more."
        ),
    ] = "threefry"
    ledger: Annotated[
        Path | None,
        of_privacy(
            "The table's ledger, which dpjax ledger opens: the run is refused where it "
            "has no room for it, and else adds what it spends, before it starts."
        ),
    ] = None
    schema: Annotated[
        Path | None,
        of_data(
            "TOML file that declares what is public about each column; without it a "
            "template is printed."
        ),
    ] = None
    target: Annotated[
        str | None,
        of_data("The column to predict, if the schema's [target] has no column."),
    ] = None
    strict: Annotated[
        bool,
        of_data(
            "Stop before training where nearly no cell of a column can be used, which "
            "tells of the records' values."
        ),
    ] = False
    private_ranges: Annotated[
        float | None,
        of_data(
            "Share of epsilon and delta, such as 0.1, for a private center and scale "
            "of each column of numbers whose section in the schema is empty.",
            _validate.probability,
        ),
    ] = None
    holdout: Annotated[
        float | None,
        of_data(
            "Share of the records, such as 0.2, that training does not see: how good "
            "the model is on them is released by a budget of their own, as large.",
            _validate.probability,
        ),
    ] = None
    unit: Annotated[
        str | None,
        of_data(
            "The column that says whose a record is, such as a person: neighbours then "
            "differ in all records with one of its values, under the same value. Which "
            "values have a record is public, how many records is not."
        ),
    ] = None
    unit_names: Annotated[
        Path | None,
        of_data(
            "With --unit: a public text file of all its values, one a line. Whether "
            "one has a record is then private too: its places hold zeros if not. "
            "Records of other values are left out."
        ),
    ] = None
    records_per_unit: Annotated[
        int | None,
        of_data(
            "With --unit: how many records of each count, the first ones; 4 by "
            "default. Places that stay empty add noise, records left out are lost.",
            _validate.count,
        ),
    ] = None
    max_records: Annotated[
        int | None,
        of_data(
            "On a file: train on so many records, or values of --unit, at most, drawn "
            "at random while a file larger than memory is read. The sample may spend "
            "more; epsilon and delta stay those of the whole file.",
            _validate.count,
        ),
    ] = None
    method: Annotated[
        MethodName,
        of_method(
            "linear-model, which has no hyperparameters. Of the papers: gradient "
            "descent; Frank-Wolfe or LASSO in the l1 ball of --radius; sparse weights, "
            "--sparsity of them; for few features, l1 regression by a choice among "
            "--candidates; a centre of fits to --subsets of the records; or, for the "
            "logistic loss, the minimiser of a perturbed objective."
        ),
    ] = "linear-model"
    loss: Annotated[
        LossName | None,
        of_method(
            "Needed for a file; else what suits the data set's task. linear-model has "
            "logistic, squared and huber, and with log link poisson for counts, gamma "
            "for amounts and tweedie for amounts that may be zero; lasso has the "
            "squared loss only, l1 the absolute."
        ),
    ] = None
    power: Annotated[
        float | None,
        of_method(
            "Of --loss tweedie: the variance is in proportion to this power of the "
            "mean; 1.5 by default.",
            required(lambda power: 1 < power < 2, "strictly between 1 and 2"),
        ),
    ] = None
    model: Annotated[
        ModelName | None,
        of_method(
            "Of linear-model: additive, where each column of numbers has a curve, or "
            "linear. By default additive without --max-features. Of how many records, "
            "features and budget there are follows how many knots curves have; where "
            "they are too few, the model is linear."
        ),
    ] = None
    max_features: Annotated[
        int | None,
        of_method(
            "Of linear-model: the most features that may have a weight, chosen "
            "privately. For many features, of which few matter; all by default.",
            _validate.count,
        ),
    ] = None
    intervals: Annotated[
        bool,
        of_method(
            "Of linear-model: a linear model whose coefficients have standard errors "
            "and intervals, at a part of the budget. dpjax show prints them. Not with "
            "--unit, because their widths count records as independent."
        ),
    ] = False
    radius: Annotated[
        float | None,
        of_method(
            "1 by default. Of the l1 ball of frank-wolfe and lasso, the l2 ball of "
            "sparse with the squared loss and of sample-aggregate, the box (beyond 10 "
            "features the l1 ball) of l1.",
            partial(_validate.within, 1e-12, 1e12),
        ),
    ] = None
    sparsity: Annotated[
        int | None, of_method("How many weights sparse has.", _validate.count)
    ] = None
    candidates: Annotated[
        int | None,
        of_method("Among how many l1 chooses; 100,000 by default.", _validate.count),
    ] = None
    subsets: Annotated[
        int | None,
        of_method("Of sample-aggregate: how many parts are fitted.", _validate.count),
    ] = None
    estimator: Annotated[
        EstimatorName | None,
        of_method("The robust mean of gradients; by default smoothed-truncation."),
    ] = None
    scale: Annotated[
        float | None,
        of_method(
            "Its scale, threshold or clip norm; by default the theory's for "
            "--moment-bound, and 1 for clipping. Without an estimator: where lasso and "
            "sparse cut numbers off, and l1 residuals.",
            partial(_validate.within, 1e-18, 1e30),
        ),
    ] = None
    moment_bound: Annotated[
        float | None,
        of_method(
            "Assumed second moment of a gradient's coordinate, 0.25 for the logistic "
            "loss, else 1; for lasso and sparse regression fourth moment of the "
            "numbers; for l1 second moment of the residuals. Affects utility, never "
            "privacy.",
            partial(_validate.within, 1e-30, 1e30),
        ),
    ] = None
    num_groups: Annotated[
        int | None,
        of_method(
            "Of median-of-means; by default for a failure in 100 runs.", _validate.count
        ),
    ] = None
    steps: Annotated[
        int | None,
        of_method(
            "Gradient descent: 300 for a named data set, else ceil(10 log n); others: "
            "what their theory says.",
            _validate.count,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        of_method(
            "Gradient descent: 1 for the logistic loss, else 0.1; others: their "
            "theory's.",
            _validate.positive,
        ),
    ] = None
    l2: Annotated[
        float, of_method("Strength of the l2 penalty.", _validate.non_negative)
    ] = 0.0
    batching: Annotated[
        BatchingName | None, of_method("Which records a step sees; full by default.")
    ] = None
    batch_size: Annotated[
        int | None,
        of_method("Of poisson (expected) and without-replacement.", _validate.count),
    ] = None
    quick: Annotated[
        bool,
        of_method("10 steps where --steps is read, or 1,000 candidates, as a trial."),
    ] = False
    output: Annotated[
        Path | None, of_output("Folder to write to; dpjax-output/NAME by default.")
    ] = None
    checkpoint: Annotated[
        Path | None,
        of_output(
            "Folder that keeps the private run while it lasts, apart from --output: "
            "the same command takes a run that was stopped up from there. It holds the "
            "key, and so is as secret as the data; it is removed before the files "
            "appear. A run that was killed leaves it: take it up, or remove it."
        ),
    ] = None
    show_unprotected: Annotated[
        bool,
        of_output(
            "On a file: hold every fifth record out, and show test risks, comparisons "
            "and a plot, which NO guarantee covers."
        ),
    ] = False

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
            if isinstance(said, Option) and said.panel == METHOD
            if name not in ("method", "loss", "quick")
            if getattr(self, name) != getattr(Settings, name)
        }

    def _check_combinations(self) -> None:
        unprotected, seeded = self.show_unprotected, self.seed is not None
        one_record, is_plain = self.unit is None, not self.intervals
        batching = self.batching or "full"
        estimator = self.estimator or "smoothed-truncation"
        samples = batching in ("poisson", "without-replacement")
        has_groups = estimator == "median-of-means"
        has_moment = self.scale is None and estimator != "clipping"
        # An option, whether it may be given, and where it must be left out.
        for name, is_fine, where in (
            ("holdout", not unprotected, "with --show-unprotected, which holds others"),
            ("ledger", not unprotected, "with --show-unprotected, which it is not of"),
            ("generator", not seeded or self.generator == "threefry", "with --seed"),
            ("ledger", not seeded, "with --seed, whose noise protects nobody"),
            ("private_ranges", one_record, "with --unit, for which it is not made"),
            ("show_unprotected", one_record, "with --unit, for which it is not made"),
            ("max_records", not unprotected, "with --show-unprotected, made for all"),
            ("intervals", one_record, "with --unit, whose records are dependent"),
            ("records_per_unit", not one_record, "without --unit"),
            ("unit_names", not one_record, "without --unit"),
            ("power", self.loss == "tweedie", "without --loss tweedie"),
            ("max_features", self.model != "additive", "with --model additive"),
            ("max_features", is_plain, "with --intervals"),
            ("model", is_plain or self.model == "linear", "with --intervals"),
            ("loss", is_plain or self.loss != "tweedie", "with --intervals"),
            ("batch_size", samples, f"with --batching {batching}"),
            ("num_groups", has_groups, f"with --estimator {estimator}"),
            ("moment_bound", has_moment, "with --scale and with --estimator clipping"),
        ):
            value = getattr(self, name)
            is_fine |= value is None or value is False
            shown = str(value) if isinstance(value, Path) else value
            _validate.require(is_fine, flag(name), shown, f"left out {where}")
        for name, is_fine, rule in (
            ("batch_size", not samples or self.batch_size is not None, "given"),
            (
                "batching",
                not (samples and has_groups),
                "full or disjoint with --estimator median-of-means",
            ),
            ("calibration", not samples or self.calibration == "tight", "tight"),
        ):
            rule += f" with --batching {batching}" * (name != "batching")
            _validate.require(is_fine, flag(name), getattr(self, name), rule)
