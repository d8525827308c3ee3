"""The commands, as typer sees them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpjax.experiments import _audit, _command, _display, _guarantees, _parties
from dpjax.experiments._settings import (
    BatchingName,
    CalibrationName,
    EstimatorName,
    LossName,
    MethodName,
    Settings,
)
from dpjax.experiments._sources import PUBLIC_SETS, SchemaNeeded
from dpjax.experiments.figures import _command as _figures

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
        float | None,
        _number(
            _PRIVACY,
            "Privacy of the run; n^-1.1 by default. 0 for pure epsilon-DP, with "
            "frank-wolfe, lasso, sparse (but the squared loss) and l1, which is pure "
            "always.",
        ),
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
    private_ranges: Annotated[
        float | None,
        _number(
            _DATA,
            "Share of epsilon and delta, such as 0.1, that buys a center and a scale "
            "for each column of numbers whose section in the schema is empty.",
        ),
    ] = None,
    method: Annotated[
        MethodName,
        _option(
            _METHOD,
            "Gradient descent; Frank-Wolfe or LASSO in the l1 ball of --radius; sparse "
            "weights, --sparsity of them; for few features, l1 regression by a choice "
            "among --candidates; a centre of fits to --subsets of the records; or, for "
            "the logistic loss, the minimiser of a perturbed objective.",
        ),
    ] = MethodName.GRADIENT_DESCENT,
    loss: Annotated[
        LossName | None,
        _option(
            _METHOD,
            "Needed for a file; else what suits the data set's task. lasso has the "
            "squared loss only, l1 the absolute.",
        ),
    ] = None,
    radius: Annotated[
        float | None,
        _number(
            _METHOD,
            "1 by default. Of the l1 ball of frank-wolfe and lasso, the l2 ball of "
            "sparse with the squared loss and of sample-aggregate, the box (beyond 10 "
            "features the l1 ball) of l1.",
        ),
    ] = None,
    sparsity: Annotated[
        int | None, _number(_METHOD, "How many weights sparse has.", int)
    ] = None,
    candidates: Annotated[
        int | None,
        _number(_METHOD, "Among how many l1 chooses; 100,000 by default.", int),
    ] = None,
    subsets: Annotated[
        int | None,
        _number(_METHOD, "Of sample-aggregate: how many parts are fitted.", int),
    ] = None,
    estimator: Annotated[
        EstimatorName | None,
        _option(
            _METHOD, "The robust mean of gradients; by default smoothed-truncation."
        ),
    ] = None,
    scale: Annotated[
        float | None,
        _number(
            _METHOD,
            "Its scale, threshold or clip norm; by default the theory's for "
            "--moment-bound, and 1 for clipping. Without an estimator: where lasso and "
            "sparse cut numbers off, and l1 residuals.",
        ),
    ] = None,
    moment_bound: Annotated[
        float | None,
        _number(
            _METHOD,
            "Assumed second moment of a gradient's coordinate, 0.25 for the logistic "
            "loss, else 1; for lasso and sparse regression fourth moment of the "
            "numbers; for l1 second moment of the residuals. Affects utility, never "
            "privacy.",
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
        _number(
            _METHOD,
            "Gradient descent: 300 for a named data set, else ceil(10 log n); others: "
            "what their theory says.",
            int,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        _number(
            _METHOD,
            "Gradient descent: 1 for the logistic loss, else 0.1; others: their "
            "theory's.",
        ),
    ] = None,
    l2: Annotated[float, _number(_METHOD, "Strength of the l2 penalty.")] = 0.0,
    batching: Annotated[
        BatchingName | None,
        _option(_METHOD, "Which records a step sees; full by default."),
    ] = None,
    batch_size: Annotated[
        int | None,
        _number(_METHOD, "Of poisson (expected) and without-replacement.", int),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="10 steps, or 1,000 candidates, to try things out.",
            rich_help_panel=_METHOD,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        _option(_OUTPUT, "Folder to write to; dpjax-output/NAME by default."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        _option(
            _OUTPUT,
            "Folder that keeps the private run while it lasts, apart from --output: "
            "the same command takes a run that was stopped up from there. It holds the "
            "key, and so is as secret as the data; it is removed when the files are "
            "written. A run that was killed leaves it: take it up, or remove it.",
        ),
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
    """Trains a differentially private linear model.

    Example: dpjax train adult --epsilon 1
    """
    try:
        _command.train(
            data,
            Settings(
                epsilon=epsilon,
                delta=delta,
                method=method,
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
                radius=radius,
                sparsity=sparsity,
                candidates=candidates,
                subsets=subsets,
                calibration=calibration,
                private_ranges=private_ranges,
                quick=quick,
            ),
            schema=schema,
            target=target,
            seed=seed,
            output=output,
            checkpoint=checkpoint,
            show_unprotected=show_unprotected,
        )
    except (ValueError, OSError, ImportError) as error:
        # By the rules of the package none depends on a value in a private record.
        _display.show_error(_display.terminal(stderr=True), error)
        if isinstance(error, SchemaNeeded):
            print(error.template)
        raise typer.Exit(2) from None


@app.command()
def parties(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help=f"One of {', '.join(PUBLIC_SETS)}."),
    ],
    epsilon: Annotated[float, _number(_PRIVACY, "Privacy of the run.")],
    delta: Annotated[
        float | None, _number(_PRIVACY, "Privacy of the run; n^-1.1 by default.")
    ] = None,
    num_parties: Annotated[
        int, _number(_DATA, "How many parties the records are dealt out to.", int)
    ] = 4,
    max_colluding: Annotated[
        int,
        _number(_PRIVACY, "How many of them may put together what they know.", int),
    ] = 1,
    max_dropouts: Annotated[
        int, _number(_PRIVACY, "How many of them may drop out.", int)
    ] = 0,
    steps: Annotated[int, _number(_METHOD, "Rounds of the protocol.", int)] = 50,
    learning_rate: Annotated[
        float | None,
        _number(_METHOD, "1 for classification, else 0.1."),
    ] = None,
    clip_norm: Annotated[
        float, _number(_METHOD, "The l2 norm that gradients are clipped to.")
    ] = 1.0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="10 rounds, to try things out.", rich_help_panel=_METHOD
        ),
    ] = False,
    output: Annotated[
        Path | None,
        _option(_OUTPUT, "Folder to write to; dpjax-output/NAME-parties by default."),
    ] = None,
) -> None:
    """Trains a linear model among parties that show their records to nobody.

    Starts one process a party on this machine. Each holds a part of the records, noise
    and masks of its own; they exchange masked sums.

    Example: dpjax parties adult --num-parties 4 --epsilon 1
    """
    try:
        _parties.train_with_parties(
            _parties.PartySettings(
                source=data,
                num_parties=num_parties,
                epsilon=epsilon,
                delta=delta,
                clip_norm=clip_norm,
                steps=10 if quick else steps,
                learning_rate=learning_rate,
                max_colluding=max_colluding,
                max_dropouts=max_dropouts,
                output=None if output is None else str(output),
            )
        )
    except (ValueError, OSError, RuntimeError) as error:
        _display.show_error(_display.terminal(stderr=True), error)
        raise typer.Exit(2) from None


@app.command()
def audit(
    method: Annotated[
        str,
        typer.Argument(metavar="[METHOD]", help="What to attack; list prints names."),
    ] = "list",
    releases: Annotated[
        int | None,
        _number(_METHOD, "How many to draw; the more, the tighter the bound.", int),
    ] = None,
    seed: Annotated[int, _number(_METHOD, "Of the releases.", int)] = 0,
    output: Annotated[
        Path | None,
        _option(_OUTPUT, "PNG file; dpjax-output/METHOD-audit.png by default."),
    ] = None,
) -> None:
    """Attacks a method's claim: tells its releases of two neighbours apart.

    Prints a lower bound on epsilon, and draws the attack's error rates and those
    that the claim allows. The exit code is 1 where the bound is above the claim.

    Example: dpjax audit laplace
    """
    if method == "list":
        _audit.show_names()
        return
    try:
        stands = _audit.audit(method, num_releases=releases, seed=seed, output=output)
    except (ValueError, OSError) as error:
        _display.show_error(_display.terminal(stderr=True), error)
        raise typer.Exit(2) from None
    if not stands:
        raise typer.Exit(1)


app.command()(_guarantees.guarantees)
app.add_typer(_figures.app, name="figures")
