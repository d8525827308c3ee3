"""The commands, as typer sees them.

A command is a class of settings and a function that takes them. The docstring of the
class is the command's help, and its fields are the options. The function's module is
imported when the command runs, so help and errors about options do not wait for JAX.
"""

import os
from typing import Annotated

import platformdirs
import typer

import dpjax
from dpjax.tables.cli import _settings
from dpjax.tables.cli._options import command

# Local variables hold private records: no traceback may show them.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"dpjax {dpjax.__version__}")
        raise typer.Exit


@app.callback()
def main(  # the docstring is the title of the help of `dpjax`
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Shows it."
        ),
    ] = False,
    cache: Annotated[
        bool,
        typer.Option(
            help="Keeps compiled programs in a folder of your own, which makes the "
            "next run faster. They depend on sizes and options, never on records."
        ),
    ] = True,
) -> None:
    """Differentially private optimization for heavy-tailed data."""
    del version  # `_print_version` has printed it
    if cache:
        # JAX reads the environment when a command imports it.
        folder = platformdirs.user_cache_dir("dpjax", appauthor=False)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


# For each command: its name, its settings, and the module and function that run it.
for name, settings, place in (
    ("train", _settings.Settings, "_train.train"),
    ("schema", _settings.SchemaSettings, "_curator.propose"),
    ("plan", _settings.ForecastSettings, "_forecast.forecast"),
    ("check", _settings.CheckSettings, "_curator.check"),
    ("describe", _settings.DescribeSettings, "_describe.describe"),
    ("predict", _settings.PredictSettings, "_saved.predict"),
    ("export", _settings.ExportSettings, "_saved.export"),
    ("show", _settings.ShowSettings, "_saved.show"),
    ("report", _settings.ReportSettings, "_report.report"),
    ("plot", _settings.PlotSettings, "_saved.plot"),
):
    app.command(name)(command(settings, place))
ledger = typer.Typer(no_args_is_help=True, help="What all runs on a table may spend.")
ledger.command("open")(command(_settings.OpenLedgerSettings, "_ledger.open_new"))
ledger.command("show")(command(_settings.ShowLedgerSettings, "_ledger.show"))
app.add_typer(ledger, name="ledger")
