"""The command `python -m benchmarks figures`: lists the figures, runs and reports."""

import dataclasses
from pathlib import Path

from benchmarks.figures import page
from benchmarks.figures.catalogue import REPEATS, figures, panels
from benchmarks.figures.draw import draw, read
from benchmarks.figures.panel import Panel, Size
from benchmarks.figures.run import CELLS, run_panel
from benchmarks.plots import save_png
from dpjax import _files, _validate


def add_arguments(parser):
    """Adds the commands below `figures`."""
    commands = parser.add_subparsers(dest="part", required=True)
    commands.add_parser("list", help="list the figures and their panels")
    run_parser = commands.add_parser(
        "run", help="run a figure and draw it; finished cells are kept"
    )
    run_parser.add_argument("name", help="a figure such as 004-1, or a panel: 004-1b")
    run_parser.add_argument("--full", action="store_true", help="the papers' sizes")
    run_parser.add_argument(
        "--repeats", type=int, help="20 of a full run, 3 of a quick"
    )
    run_parser.add_argument("--seed", type=int, default=0, help="of data and noise")
    run_parser.add_argument("--out", type=Path, default=Path("dpjax-output", "figures"))
    report = commands.add_parser("report", help="write FIGURES.md from the kept tables")
    report.add_argument("folder", type=Path, nargs="?", help="tables to keep first")
    report.add_argument("--output", type=Path, help="folder of the page")


def main(part, **options):
    """Runs the command."""
    if part == "list":
        for name, chosen in figures().items():
            if name in REPEATS:
                print(f"{name}   repeats {REPEATS[name]}")
            for panel in chosen:
                print(f"{panel.name}  {panel.title} ({panel.metric})")
    else:
        for path in run(**options) if part == "run" else page.write(**options):
            print(path)


def run(name: str, full: bool, repeats: int | None, seed: int, out: Path) -> list[Path]:
    """Runs a figure and draws it; returns the tables and the plot."""
    _validate.require(0 <= seed < 2**32, "--seed", seed, "from 0 to 2^32 - 1")
    if repeats is not None:
        _validate.count(**{"--repeats": repeats})
    chosen = [panel.at(Size.FULL if full else Size.QUICK) for panel in find(name)]
    if repeats is not None:
        chosen = [dataclasses.replace(one, repetitions=repeats) for one in chosen]
    first = original(name)
    plot = out / f"{first}.png"
    names = [plot.name, *(f"{panel.name}.csv" for panel in chosen)]
    _files.check_folder("--out", out, names=names)
    _files.check_folder("--out", out / CELLS)
    if first != name:
        print(f"{name} repeats {first}, which is run")

    def on_cell(done: int, of: int) -> None:
        print(f"{done} of {of} cells", flush=True)

    tables = [run_panel(panel, out, seed=seed, on_cell=on_cell) for panel in chosen]
    save_png(draw(chosen, [read(table) for table in tables]), plot)
    return [*tables, plot]


def original(name: str) -> str:
    """Returns the figure or panel that a repeat stands for, else the name."""
    return REPEATS.get(name[:5], name[:5]) + name[5:]


def find(name: str) -> list[Panel]:
    """Returns the panels of a figure, or the one of that name, or those of a repeat."""
    first = original(name)
    found = [one for one in panels().values() if first in (one.name, one.figure)]
    _validate.require(bool(found), "NAME", name, "one that `figures list` shows")
    return found
