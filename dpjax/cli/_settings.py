"""The options of `dpjax train`, each declared once, and the checks that need no data.

Errors name the options. Which method reads which, and what it makes of them, is said by
the parameters of its function: see `_methods`.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from dpjax import _validate
from dpjax.cli._options import (
    DATA,
    METHOD,
    OUTPUT,
    PRIVACY,
    Argument,
    Option,
    check_each,
    check_seed,
    declared,
)
from dpjax.cli._sources import PUBLIC_SETS


class MethodName(StrEnum):
    """Private methods; `_methods` declares each of them."""

    GRADIENT_DESCENT = "gradient-descent"
    FRANK_WOLFE = "frank-wolfe"
    LASSO = "lasso"
    SPARSE = "sparse"
    L1 = "l1"
    SAMPLE_AGGREGATE = "sample-aggregate"
    OBJECTIVE_PERTURBATION = "objective-perturbation"


class LossName(StrEnum):
    """Losses of a linear predictor."""

    LOGISTIC = "logistic"
    SQUARED = "squared"
    ABSOLUTE = "absolute"
    HUBER = "huber"
    BIWEIGHT = "biweight"


class EstimatorName(StrEnum):
    """Robust means."""

    SMOOTHED_TRUNCATION = "smoothed-truncation"
    TRUNCATION = "truncation"
    WINSORIZATION = "winsorization"
    CLIPPING = "clipping"
    MEDIAN_OF_MEANS = "median-of-means"


class BatchingName(StrEnum):
    """How a step chooses its records."""

    FULL = "full"
    DISJOINT = "disjoint"
    POISSON = "poisson"
    WITHOUT_REPLACEMENT = "without-replacement"


class CalibrationName(StrEnum):
    """Exact noise, or the noise that the papers print."""

    TIGHT = "tight"
    PAPER = "paper"


def _check_delta(**deltas: float) -> None:
    _validate.probability(**{name: x for name, x in deltas.items() if x != 0})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is asked for; None leaves it to the method."""

    source: Annotated[
        str,
        Argument(
            "DATA",
            f"One of {', '.join(PUBLIC_SETS)}, or a CSV, Parquet or NPZ file. In a CSV "
            "file every line is a record.",
        ),
    ]
    epsilon: Annotated[
        float, Option(PRIVACY, "Privacy of the run.", check=_validate.positive)
    ]
    delta: Annotated[
        float | None,
        Option(
            PRIVACY,
            "Privacy of the run; n^-1.1 by default. 0 for pure epsilon-DP, with "
            "frank-wolfe, lasso, sparse (but the squared loss) and l1, which is pure "
            "always.",
            check=_check_delta,
        ),
    ] = None
    calibration: Annotated[
        CalibrationName,
        Option(
            PRIVACY,
            "The exact noise, or that of the papers, reported at what it gives.",
        ),
    ] = CalibrationName.TIGHT
    seed: Annotated[
        int | None,
        Option(
            PRIVACY,
            "Makes the noise reproducible, for public data only. By default it comes "
            "from the operating system.",
            check=check_seed,
        ),
    ] = None
    schema: Annotated[
        Path | None,
        Option(
            DATA,
            "TOML file that declares what is public about each column; without it a "
            "template is printed.",
        ),
    ] = None
    target: Annotated[str | None, Option(DATA, "The column to predict.")] = None
    private_ranges: Annotated[
        float | None,
        Option(
            DATA,
            "Share of epsilon and delta, such as 0.1, that buys a center and a scale "
            "for each column of numbers whose section in the schema is empty.",
            check=_validate.probability,
        ),
    ] = None
    method: Annotated[
        MethodName,
        Option(
            METHOD,
            "Gradient descent; Frank-Wolfe or LASSO in the l1 ball of --radius; sparse "
            "weights, --sparsity of them; for few features, l1 regression by a choice "
            "among --candidates; a centre of fits to --subsets of the records; or, for "
            "the logistic loss, the minimiser of a perturbed objective.",
        ),
    ] = MethodName.GRADIENT_DESCENT
    loss: Annotated[
        LossName | None,
        Option(
            METHOD,
            "Needed for a file; else what suits the data set's task. lasso has the "
            "squared loss only, l1 the absolute.",
        ),
    ] = None
    radius: Annotated[
        float | None,
        Option(
            METHOD,
            "1 by default. Of the l1 ball of frank-wolfe and lasso, the l2 ball of "
            "sparse with the squared loss and of sample-aggregate, the box (beyond 10 "
            "features the l1 ball) of l1.",
            check=partial(_validate.within, 1e-12, 1e12),
        ),
    ] = None
    sparsity: Annotated[
        int | None,
        Option(METHOD, "How many weights sparse has.", check=_validate.count),
    ] = None
    candidates: Annotated[
        int | None,
        Option(
            METHOD,
            "Among how many l1 chooses; 100,000 by default.",
            check=_validate.count,
        ),
    ] = None
    subsets: Annotated[
        int | None,
        Option(
            METHOD,
            "Of sample-aggregate: how many parts are fitted.",
            check=_validate.count,
        ),
    ] = None
    estimator: Annotated[
        EstimatorName | None,
        Option(METHOD, "The robust mean of gradients; by default smoothed-truncation."),
    ] = None
    scale: Annotated[
        float | None,
        Option(
            METHOD,
            "Its scale, threshold or clip norm; by default the theory's for "
            "--moment-bound, and 1 for clipping. Without an estimator: where lasso and "
            "sparse cut numbers off, and l1 residuals.",
            check=partial(_validate.within, 1e-18, 1e30),
        ),
    ] = None
    moment_bound: Annotated[
        float | None,
        Option(
            METHOD,
            "Assumed second moment of a gradient's coordinate, 0.25 for the logistic "
            "loss, else 1; for lasso and sparse regression fourth moment of the "
            "numbers; for l1 second moment of the residuals. Affects utility, never "
            "privacy.",
            check=partial(_validate.within, 1e-30, 1e30),
        ),
    ] = None
    num_groups: Annotated[
        int | None,
        Option(
            METHOD,
            "Of median-of-means; by default for a failure in 100 runs.",
            check=_validate.count,
        ),
    ] = None
    steps: Annotated[
        int | None,
        Option(
            METHOD,
            "Gradient descent: 300 for a named data set, else ceil(10 log n); others: "
            "what their theory says.",
            check=_validate.count,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        Option(
            METHOD,
            "Gradient descent: 1 for the logistic loss, else 0.1; others: their "
            "theory's.",
            check=_validate.positive,
        ),
    ] = None
    l2: Annotated[
        float,
        Option(METHOD, "Strength of the l2 penalty.", check=_validate.non_negative),
    ] = 0.0
    batching: Annotated[
        BatchingName | None,
        Option(METHOD, "Which records a step sees; full by default."),
    ] = None
    batch_size: Annotated[
        int | None,
        Option(
            METHOD,
            "Of poisson (expected) and without-replacement.",
            check=_validate.count,
        ),
    ] = None
    quick: Annotated[
        bool, Option(METHOD, "10 steps, or 1,000 candidates, to try things out.")
    ] = False
    output: Annotated[
        Path | None, Option(OUTPUT, "Folder to write to; dpjax-output/NAME by default.")
    ] = None
    checkpoint: Annotated[
        Path | None,
        Option(
            OUTPUT,
            "Folder that keeps the private run while it lasts, apart from --output: "
            "the same command takes a run that was stopped up from there. It holds the "
            "key, and so is as secret as the data; it is removed when the files are "
            "written. A run that was killed leaves it: take it up, or remove it.",
        ),
    ] = None
    show_unprotected: Annotated[
        bool,
        Option(
            OUTPUT,
            "On a file: hold every fifth record out, and show test risks, comparisons "
            "and a plot, which NO guarantee covers.",
        ),
    ] = False

    def __post_init__(self):
        check_each(self)
        self._check_combinations()

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
        batching = self.batching or BatchingName.FULL
        estimator = self.estimator or EstimatorName.SMOOTHED_TRUNCATION
        samples = batching in (BatchingName.POISSON, BatchingName.WITHOUT_REPLACEMENT)
        _validate.require(
            samples == (self.batch_size is not None),
            "--batch-size",
            self.batch_size,
            f"{'given' if samples else 'left out'} with --batching {batching}",
        )
        _validate.require(
            not samples or estimator != EstimatorName.MEDIAN_OF_MEANS,
            "--batching",
            str(batching),
            "full or disjoint with --estimator median-of-means, whose groups are fixed",
        )
        _validate.require(
            not samples or self.calibration == CalibrationName.TIGHT,
            "--calibration",
            str(self.calibration),
            f"tight with --batching {batching}",
        )
        _validate.require(
            self.num_groups is None or estimator == EstimatorName.MEDIAN_OF_MEANS,
            "--num-groups",
            self.num_groups,
            f"left out with --estimator {estimator}",
        )
        _validate.require(
            self.moment_bound is None
            or (self.scale is None and estimator != EstimatorName.CLIPPING),
            "--moment-bound",
            self.moment_bound,
            "left out with --scale and with --estimator clipping",
        )
