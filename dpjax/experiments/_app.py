"""The commands, as typer sees them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpjax.experiments import _command, _display
from dpjax.experiments._settings import (
    BatchingName,
    CalibrationName,
    EstimatorName,
    LossName,
    Settings,
)
from dpjax.experiments._sources import PUBLIC_SETS, SchemaNeeded

# Local variables hold private records: no traceback may show them.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False
)


@app.callback()
def dpjax() -> None:
    """Differentially private optimization for heavy-tailed data."""


def _option(panel: str, help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=panel)


def _number(panel: str, help: str, kind: type = float) -> Any:
    """An option whose error, unlike typer's own, repeats what could not be read."""

    def parse(text: Any) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"must be {names[kind]}, got {text!r}.") from None

    names = {float: "a number", int: "a whole number"}
    return typer.Option(
        help=help, rich_help_panel=panel, parser=parse, metavar=f"<{kind.__name__}>"
    )


_PRIVACY, _DATA, _METHOD, _OUTPUT = "Privacy", "Data of a file", "Method", "Output"


@app.command()
def train(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help=f"One of {', '.join(PUBLIC_SETS)}, or a CSV, Parquet or NPZ file. In "
            "a CSV file every line is a record.",
        ),
    ],
    epsilon: Annotated[float, _number(_PRIVACY, "Privacy of the run.")],
    delta: Annotated[
        float | None, _number(_PRIVACY, "Privacy of the run; n^-1.1 by default.")
    ] = None,
    calibration: Annotated[
        CalibrationName,
        _option(
            _PRIVACY,
            "The exact noise, or that of the papers, reported at what it gives.",
        ),
    ] = CalibrationName.TIGHT,
    seed: Annotated[
        int | None,
        _number(
            _PRIVACY,
            "Makes the noise reproducible, for public data only. By default it comes "
            "from the operating system.",
            int,
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        _option(
            _DATA,
            "TOML file that declares what is public about each column; without it a "
            "template is printed.",
        ),
    ] = None,
    target: Annotated[str | None, _option(_DATA, "The column to predict.")] = None,
    loss: Annotated[
        LossName | None,
        _option(_METHOD, "Needed for a file; else what suits the data set's task."),
    ] = None,
    estimator: Annotated[
        EstimatorName, _option(_METHOD, "The robust mean of gradients.")
    ] = EstimatorName.SMOOTHED_TRUNCATION,
    scale: Annotated[
        float | None,
        _number(
            _METHOD,
            "Its scale, threshold or clip norm; by default the theory's for "
            "--moment-bound, and 1 for clipping.",
        ),
    ] = None,
    moment_bound: Annotated[
        float | None,
        _number(
            _METHOD,
            "Assumed second moment of a gradient's coordinate, 0.25 for the logistic "
            "loss, else 1; affects utility, never privacy.",
        ),
    ] = None,
    num_groups: Annotated[
        int | None,
        _number(
            _METHOD, "Of median-of-means; by default for a failure in 100 runs.", int
        ),
    ] = None,
    steps: Annotated[
        int | None,
        _number(_METHOD, "300 for a named data set, else ceil(10 log n).", int),
    ] = None,
    learning_rate: Annotated[
        float | None, _number(_METHOD, "1 for the logistic loss, else 0.1.")
    ] = None,
    l2: Annotated[float, _number(_METHOD, "Strength of the l2 penalty.")] = 0.0,
    batching: Annotated[
        BatchingName, _option(_METHOD, "Which records a step sees.")
    ] = BatchingName.FULL,
    batch_size: Annotated[
        int | None,
        _number(_METHOD, "Of poisson (expected) and without-replacement.", int),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="10 steps, to try things out.", rich_help_panel=_METHOD
        ),
    ] = False,
    output: Annotated[
        Path | None,
        _option(_OUTPUT, "Folder to write to; dpjax-output/NAME by default."),
    ] = None,
    show_unprotected: Annotated[
        bool,
        typer.Option(
            "--show-unprotected",
            help="On a file: hold every fifth record out, and show test risks, "
            "comparisons and a plot, which NO guarantee covers.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
) -> None:
    """Trains a linear model by differentially private gradient descent.

    Example: dpjax train adult --epsilon 1
    """
    try:
        _command.train(
            data,
            Settings(
                epsilon=epsilon,
                delta=delta,
                loss=loss,
                estimator=estimator,
                scale=scale,
                moment_bound=moment_bound,
                num_groups=num_groups,
                steps=steps,
                learning_rate=learning_rate,
                l2=l2,
                batching=batching,
                batch_size=batch_size,
                calibration=calibration,
                quick=quick,
            ),
            schema=schema,
            target=target,
            seed=seed,
            output=output,
            show_unprotected=show_unprotected,
        )
    except (ValueError, OSError) as error:
        # By the rules of the package none depends on a value in a private record.
        _display.show_error(_display.terminal(stderr=True), error)
        if isinstance(error, SchemaNeeded):
            print(error.template)
        raise typer.Exit(2) from None
