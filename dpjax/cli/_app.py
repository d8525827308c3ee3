"""The commands, as typer sees them.

A command is a class of settings, whose text is its help and whose fields are its
options, and a function that takes them. Its module is imported when the command runs:
help and wrong options do not wait for JAX.
"""

from typing import Annotated

import typer

import dpjax
from dpjax.cli._command_settings import (
    CheckSettings,
    DescribeSettings,
    ExportSettings,
    ForecastSettings,
    LedgerSettings,
    PartySettings,
    PlotSettings,
    PredictSettings,
    ReportSettings,
    SchemaSettings,
    ShowSettings,
)
from dpjax.cli._options import command
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


# Of each command its name, what it takes, and the module and function that run it.
for name, settings, place in (
    ("train", Settings, "_train.train"),
    ("tune", TuneSettings, "_tune.tune"),
    ("schema", SchemaSettings, "_proposal.propose"),
    ("plan", ForecastSettings, "_forecast.forecast"),
    ("check", CheckSettings, "_check.check"),
    ("describe", DescribeSettings, "_describe.describe"),
    ("predict", PredictSettings, "_saved.predict"),
    ("export", ExportSettings, "_saved.export"),
    ("show", ShowSettings, "_saved.show"),
    ("report", ReportSettings, "_report_page.report"),
    ("plot", PlotSettings, "_saved.plot"),
    ("ledger", LedgerSettings, "_ledger.ledger"),
    ("parties", PartySettings, "_parties.train_with_parties"),
):
    app.command(name)(command(settings, place))
