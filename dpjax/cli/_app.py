"""The commands, as typer sees them.

Each imports what it needs when it runs: help and wrong options do not wait for JAX.
"""

from typing import Annotated

import typer

import dpjax
from dpjax.cli._command_settings import (
    CheckSettings,
    DescribeSettings,
    ExportSettings,
    LedgerSettings,
    PartySettings,
    PlotSettings,
    PredictSettings,
    ReportSettings,
    SchemaSettings,
    ShowSettings,
)
from dpjax.cli._forecast_settings import ForecastSettings
from dpjax.cli._options import taking
from dpjax.cli._settings import Settings
from dpjax.cli._tune_settings import TuneSettings

# Local variables hold private records: no traceback may show them.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"dpjax {dpjax.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Shows it."
        ),
    ] = False,
) -> None:
    """Differentially private optimization for heavy-tailed data."""
    del version  # it has been printed


@app.command()
@taking(Settings)
def train(settings: Settings) -> None:
    """Trains a differentially private model of a table: curves, or lines.

    Example: dpjax train adult --epsilon 1
    """
    from dpjax.cli import _train

    _train.train(settings)


@app.command()
@taking(TuneSettings)
def tune(settings: TuneSettings) -> None:
    """Chooses options of a method by private runs, priced together, for the best model.

    Each option has values to try; a random number of runs is made and scored privately.

    Example: dpjax tune adult --epsilon 1 --over learning_rate=0.1,1,10 --trials 20
    """
    from dpjax.cli import _tune

    _tune.tune(settings)


@app.command()
@taking(SchemaSettings)
def schema(settings: SchemaSettings) -> None:
    """Proposes the schema of a file, guessed from the columns' names, to correct.

    Example: dpjax schema my.csv --target price --output schema.toml
    """
    from dpjax.cli import _proposal

    _proposal.propose(settings)


@app.command("plan")
@taking(ForecastSettings)
def forecast(settings: ForecastSettings) -> None:
    """Tells what privacy would cost, before any record is used, from made records.

    Loss and intervals at each epsilon, beside no privacy, and what an attacker could
    do.

    Example: dpjax plan schema.toml --rows 16000 --epsilon 0.5,1,3
    """
    from dpjax.cli import _forecast

    _forecast.forecast(settings)


@app.command()
@taking(CheckSettings)
def check(settings: CheckSettings) -> None:
    """Tells the data's owner which cells of a file can be used. NOT PRIVATE.

    For each column the shares of cells that are missing, do not parse, match no
    category or lie far out. Nothing is written.

    Example: dpjax check my.csv --schema schema.toml
    """
    from dpjax.cli import _check

    _check.check(settings)


@app.command()
@taking(DescribeSettings)
def describe(settings: DescribeSettings) -> None:
    """Releases counts, means, quantiles and histograms of a file's columns.

    Each with its interval, in every group of --by: as a table, JSON, CSV, a page and a
    picture.

    Example: dpjax describe my.csv --schema schema.toml --epsilon 0.5 --by region
    """
    from dpjax.cli import _describe

    _describe.describe(settings)


@app.command()
@taking(PredictSettings)
def predict(settings: PredictSettings) -> None:
    """Predicts the target of every record of a file, in its own units.

    Example: dpjax predict out/model.npz new.csv --output predictions.csv
    """
    from dpjax.cli import _saved

    _saved.predict(settings)


@app.command()
@taking(ExportSettings)
def export(settings: ExportSettings) -> None:
    """Writes a model as ONNX, SQL or Python that predicts without dpjax.

    Example: dpjax export out/model.npz --format sql --output model.sql
    """
    from dpjax.cli import _saved

    _saved.export(settings)


@app.command()
@taking(ShowSettings)
def show(settings: ShowSettings) -> None:
    """Shows a model: curves or coefficients in the table's units, and its guarantee.

    Example: dpjax show out/model.npz
    """
    from dpjax.cli import _saved

    _saved.show(settings)


@app.command()
@taking(ReportSettings)
def report(settings: ReportSettings) -> None:
    """Writes one file about a run, to hand on: guarantee, quality, model, and how.

    Reads what the run has released, never the table.

    Example: dpjax report out --ledger table.toml
    """
    from dpjax.cli import _report_command

    _report_command.report(settings)


@app.command()
@taking(PlotSettings)
def plot(settings: PlotSettings) -> None:
    """Draws what each column adds to a model's predictions, in the table's units.

    Example: dpjax plot out/model.npz --output curves.svg
    """
    from dpjax.cli import _saved

    _saved.plot(settings)


@app.command()
@taking(LedgerSettings)
def ledger(settings: LedgerSettings) -> None:
    """Opens the ledger of a table, or shows what is spent and what is left.

    Example: dpjax ledger table.toml --epsilon 4 --delta 1e-6
    """
    from dpjax.cli import _ledger_command

    _ledger_command.ledger(settings)


@app.command()
@taking(PartySettings)
def parties(settings: PartySettings) -> None:
    """Trains a linear model among parties that show their records to nobody.

    Starts one process a party on this machine. Each holds a part of the records, noise
    and masks of its own; they exchange masked sums.

    Example: dpjax parties adult --num-parties 4 --epsilon 1
    """
    from dpjax.cli import _parties

    _parties.train_with_parties(settings)
