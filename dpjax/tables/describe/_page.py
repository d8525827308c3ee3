"""The page of a description, as self-contained HTML."""

from typing import TYPE_CHECKING

from dpjax._rounding import rounded_up
from dpjax.tables._pages import Block, Picture, Rows, Text, html_of

if TYPE_CHECKING:
    from dpjax.tables.describe._description import Description


def page_of(description: "Description", title: str) -> str:
    """Returns the page, with light and dark pictures if matplotlib is installed."""
    return html_of(
        title,
        [
            Text(str(description.privacy)),
            *numbers_of(description),
            "What each part cost",
            costs_of(description),
        ],
    )


def numbers_of(description: "Description") -> list[Block]:
    """Returns the released numbers, how to read them, and their picture."""
    blocks: list[Block] = [
        Text(
            f"{description.reading} Counts have noise, and then are moved to the "
            "nearest possible ones that agree with each other. Numbers of a column "
            "with a limit are clipped to it. Without one, the outer bins of a "
            "histogram hold all that lies beyond."
        ),
        *(Rows(head, lines) for head, lines in description.tables()),
    ]
    try:
        dark, light = (description.plot(is_dark=dark) for dark in (True, False))
    except ImportError:
        return blocks
    return [*blocks, Picture(light, "Histograms, and the numbers above", dark)]


def costs_of(description: "Description") -> Rows:
    """Returns what each part cost."""
    head = ["column", "what", "share of the budget", "epsilon by itself"]
    costs = [
        [cost.column, cost.part, rounded_up(cost.share, 3), rounded_up(cost.epsilon, 3)]
        for cost in description.costs
    ]
    return Rows(head, costs)
