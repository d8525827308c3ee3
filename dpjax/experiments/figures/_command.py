"""`dpjax figures`: lists, runs and plots them."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from dpjax import _validate
from dpjax.experiments import _display, _outputs
from dpjax.experiments.figures._catalogue import panels
from dpjax.experiments.figures._draw import draw, read
from dpjax.experiments.figures._panel import Panel, Size
from dpjax.experiments.figures._run import CELLS, run_panel

app = typer.Typer(no_args_is_help=True, help="The papers' figures, measured again.")


@app.command("list")
def list_figures() -> None:
    """Lists the figures and their panels."""
    console = _display.terminal()
    for panel in panels().values():
        console.print(f"{panel.name}  {panel.title} ({panel.metric})", soft_wrap=True)


@app.command("run")
def run_figure(
    name: Annotated[
        str, typer.Argument(help="A figure such as 004-1, or a panel such as 004-1b.")
    ],
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            help="The papers' sizes, for a night; or smaller ones, for a minute.",
        ),
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(help="Repetitions; by default 20 of a full run, 3 of a quick."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of data and noise.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; dpjax-output/figures by default."),
    ] = None,
) -> None:
    """Runs a figure and draws it; what an earlier run has finished is kept.

    Example: dpjax figures run 004-1b --quick
    """
    console, messages = _display.terminal(), _display.terminal(stderr=True)
    folder = out or Path("dpjax-output", "figures")
    try:
        _validate.require(0 <= seed < 2**32, "--seed", seed, "from 0 to 2^32 - 1")
        if repeats is not None:
            _validate.count(**{"--repeats": repeats})
        size = Size.FULL if full else Size.QUICK
        chosen = [panel.at(size) for panel in find(name)]
        if repeats is not None:
            chosen = [dataclasses.replace(one, repetitions=repeats) for one in chosen]
        plot = folder / f"{name}.png"
        names = [plot.name, *(f"{panel.name}.csv" for panel in chosen)]
        _outputs.check_folder("--out", folder, names=names)
        _outputs.check_folder("--out", folder / CELLS)
        with _display.progress_bars(messages) as on_step:
            tables = [
                run_panel(
                    panel,
                    folder,
                    seed=seed,
                    on_cell=lambda i, n, name=panel.name: on_step(name, i, n),
                )
                for panel in chosen
            ]
        content = draw(chosen, [read(table) for table in tables])
        _outputs.write_whole(plot, content, name="--out")
    except (ValueError, OSError, ImportError) as error:
        _display.show_error(messages, error)
        raise typer.Exit(2) from None
    _display.show_paths(console, [*tables, plot])


@app.command("plot")
def plot_figures(
    folder: Annotated[Path, typer.Argument(help="Where `run` wrote to.")],
) -> None:
    """Draws the figures of a folder again."""
    console = _display.terminal()
    try:
        tables = {path.stem: path for path in folder.glob("*.csv")}
        known = [panel for panel in panels().values() if panel.name in tables]
        _validate.require(
            bool(known), "DIR", str(folder), "a folder that `figures run` wrote to"
        )
        names, plots = dict.fromkeys(panel.figure for panel in known), []
        _outputs.check_folder("DIR", folder, names=[f"{name}.png" for name in names])
        for name in names:
            chosen = [panel for panel in known if panel.figure == name]
            plots.append(folder / f"{name}.png")
            content = draw(chosen, [read(tables[panel.name]) for panel in chosen])
            _outputs.write_whole(plots[-1], content, name="DIR")
    except (ValueError, OSError) as error:
        _display.show_error(_display.terminal(stderr=True), error)
        raise typer.Exit(2) from None
    _display.show_paths(console, plots)


def find(name: str) -> list[Panel]:
    """Returns the panels of a figure, or the one of that name.

    Raises:
        ValueError: if there is none.

    Example:
        >>> [panel.name for panel in find("004-3")]
        ['004-3a', '004-3b', '004-3c', '004-3d']
    """
    found = [one for one in panels().values() if name in (one.name, one.figure)]
    _validate.require(
        bool(found), "NAME", name, "a figure or panel that `dpjax figures list` shows"
    )
    return found
