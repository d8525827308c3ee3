"""The functions of an additive model, in the user's units, and a plot of them."""

from typing import Any, NamedTuple

import numpy as np

_FARTHEST = 5.0  # a grid ends so many scales from the centre, or at the range's end


class Shape(NamedTuple):
    """What a column adds to the score, up to a constant.

    Attributes:
        grid: shape (m,): numbers of the column, between which the function is linear,
            or categories.
        values: shape (m,), or (m, K) of K classes. Zero at the column's centre, and
            for a category that is none of the grid.
    """

    grid: np.ndarray
    values: np.ndarray


def grid_of(knots: tuple[float, ...], low: float, high: float) -> np.ndarray:
    """Returns knots between two ends, and these, in scales from the centre."""
    ends = max(low, -_FARTHEST), min(high, _FARTHEST)
    inside = [knot for knot in knots if ends[0] < knot < ends[1]]
    return np.sort([*ends, *inside])


def plot(shapes: dict[Any, Shape], outputs: list[str], axis_label: str) -> Any:
    """Draws each shape in a panel of its own, by matplotlib.

    Returns:
        The `matplotlib.figure.Figure`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = 'plot_shapes needs matplotlib: pip install "dpjax[experiments]"'
        raise ImportError(message) from error
    num_columns = min(len(shapes), 4)
    num_rows = -(-len(shapes) // num_columns)
    figure = Figure(figsize=(3 * num_columns, 2.4 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True)
    for panel in panels.flat[len(shapes) :]:
        panel.remove()
    for panel, (name, shape) in zip(panels.flat, shapes.items(), strict=False):
        panel.axhline(0.0, color="0.8", linewidth=0.8)
        is_number = shape.grid.dtype.kind == "f"
        places = shape.grid if is_number else np.arange(len(shape.grid))
        lines = panel.plot(places, shape.values, "-" if is_number else "o")
        panel.set_title(str(name), fontsize=10)
        if is_number:
            panel.locator_params(axis="x", nbins=4)
        else:
            panel.set_xticks(places, [str(x) for x in shape.grid], rotation=90)
        if panel is panels[0, 0] and len(lines) > 1:
            panel.legend(lines, outputs, fontsize=8)
    for panel in panels[:, 0]:
        panel.set_ylabel(axis_label)
    return figure
