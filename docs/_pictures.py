"""Pictures of the guides, drawn from the numbers that their code prints.

The tests compare these numbers with what the code of the page prints.
"""

import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.plots import STYLE, THEMES

NETWORK = Path(__file__).parent / "guides" / "network.md"
_ROW = re.compile(r"^(constant|not private|epsilon [\d.]+) +([\d.]+) +([\d.]+)%", re.M)


def write(folder: Path) -> None:
    """Draws every picture, light and dark, into a folder."""
    folder.mkdir(exist_ok=True)
    rows = {name: (float(x), float(y)) for name, x, y in numbers(NETWORK.read_text())}
    for theme in THEMES:
        inks = ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")
        with matplotlib.rc_context(STYLE | {f"{one}color": theme.ink for one in inks}):
            figure = _network(rows, theme)
            path = folder / f"network-{theme.name}.svg"
            figure.savefig(path, metadata={"Date": None})


def numbers(text: str) -> list[tuple[str, str, str]]:
    """Returns the rows of the guide's table: a name, a loss, per cent right."""
    return _ROW.findall(text)


def _network(rows, theme) -> Figure:
    """Loss and correct answers against epsilon, between a constant and no privacy."""
    epsilons = [name for name in rows if name.startswith("epsilon")]
    x = [float(name.split()[1]) for name in epsilons]
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    figure.patch.set_alpha(0)
    lines = (("not private", "--"), ("constant", ":"))
    for column, axes in enumerate(figure.subplots(1, 2)):
        axes.patch.set_alpha(0)
        y = [rows[name][column] for name in epsilons]
        look = {"color": theme.colors[0], "marker": "o", "markersize": 6}
        axes.plot(x, y, label="private network", **look)
        for name, dashes in lines:
            level = rows[name][column]
            axes.axhline(level, color=theme.ink, lw=1, linestyle=dashes, label=name)
        axes.set_xscale("log")
        axes.set_xticks(x, [f"{one:g}" for one in x])
        axes.minorticks_off()
        axes.set_xlabel("epsilon: more private to the left")
        title = ("log loss: lower is better", "per cent right: higher is better")
        axes.set_title(title[column], fontsize="small", loc="left")
        if column == 0:
            handles, _ = axes.get_legend_handles_labels()
            axes.set_ylim(bottom=0)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, fontsize="small"
    )
    return figure
