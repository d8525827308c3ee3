"""`dpjax figures`: lists, runs and plots them."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from dpjax import _files, _validate
from dpjax.cli._options import check_seed
from dpjax.cli._terminal import progress_bars, refusals, show_paths, terminal
from dpjax.figures import (
    CELLS,
    REPEATS,
    Panel,
    Size,
    draw,
    figures,
    panels,
    read,
    run_panel,
)

app = typer.Typer(no_args_is_help=True, help="The papers' figures, measured again.")


@app.command("list")
def list_figures() -> None:
    """Lists the figures and their panels."""
    console = terminal()
    for name, chosen in figures().items():
        if name in REPEATS:
            console.print(f"{name}   repeats {REPEATS[name]}")
        for panel in chosen:
            text = f"{panel.name}  {panel.title} ({panel.metric})"
            console.print(text, soft_wrap=True)


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
    folder = out or Path("dpjax-output", "figures")
    with refusals():
        check_seed(**{"--seed": seed})
        if repeats is not None:
            _validate.count(**{"--repeats": repeats})
        size = Size.FULL if full else Size.QUICK
        chosen = [panel.at(size) for panel in find(name)]
        if repeats is not None:
            chosen = [dataclasses.replace(one, repetitions=repeats) for one in chosen]
        first = original(name)
        plot = folder / f"{first}.png"
        names = [plot.name, *(f"{panel.name}.csv" for panel in chosen)]
        _files.check_folder("--out", folder, names=names)
        _files.check_folder("--out", folder / CELLS)
        if first != name:
            terminal().print(f"{name} repeats {first}, which is run")
        with progress_bars(terminal(stderr=True)) as on_step:
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
        _files.write_whole(plot, content, name="--out")
    show_paths(terminal(), [*tables, plot])


@app.command("plot")
def plot_figures(
    folder: Annotated[Path, typer.Argument(help="Where `run` wrote to.")],
) -> None:
    """Draws the figures of a folder again."""
    with refusals():
        tables = {path.stem: path for path in folder.glob("*.csv")}
        known = [panel for panel in panels().values() if panel.name in tables]
        _validate.require(
            bool(known), "DIR", str(folder), "a folder that `figures run` wrote to"
        )
        names, plots = dict.fromkeys(panel.figure for panel in known), []
        _files.check_folder("DIR", folder, names=[f"{name}.png" for name in names])
        for name in names:
            chosen = [panel for panel in known if panel.figure == name]
            plots.append(folder / f"{name}.png")
            content = draw(chosen, [read(tables[panel.name]) for panel in chosen])
            _files.write_whole(plots[-1], content, name="DIR")
    show_paths(terminal(), plots)


def original(name: str) -> str:
    """Returns the figure or panel that a repeat stands for, else the name.

    Example:
        >>> original("001-6b"), original("004-3a")
        ('001-2b', '004-3a')
    """
    return REPEATS.get(name[:5], name[:5]) + name[5:]


def find(name: str) -> list[Panel]:
    """Returns the panels of a figure, or the one of that name, or those of a repeat.

    Raises:
        ValueError: if there is none.

    Example:
        >>> [panel.name for panel in find("004-3")]
        ['004-3a', '004-3b', '004-3c', '004-3d']
    """
    first = original(name)
    found = [one for one in panels().values() if first in (one.name, one.figure)]
    _validate.require(
        bool(found), "NAME", name, "a figure or panel that `dpjax figures list` shows"
    )
    return found
