"""The page of a description: HTML that needs no other file."""

import base64
import io
from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from dpjax._rounding import rounded_up
from dpjax._untrusted import printable

if TYPE_CHECKING:
    from dpjax._describe._description import Description

_STYLE = """
:root{color-scheme:light dark;--ink:#1f2328;--paper:#fff;--rule:#d0d7de}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--rule:#3d444d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto;margin:1rem 0}
th,td{border-bottom:1px solid var(--rule);padding:.25rem .7rem;text-align:left;
white-space:nowrap;font-variant-numeric:tabular-nums}
img{max-width:100%}
"""


def html_of(description: "Description", title: str) -> str:
    """Returns the page, with the picture in light and dark where matplotlib is."""
    tables = [_table(head, lines) for head, lines in description.tables()]
    costs = [
        [cost.column, cost.what, rounded_up(cost.share, 3), rounded_up(cost.epsilon, 3)]
        for cost in description.costs
    ]
    head = ["column", "what", "share of the budget", "epsilon by itself"]
    level = f"{100 * description.level:g}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_text(title)}</h1><p>{_text(str(description.privacy))}</p>",
            f"<p>In brackets: {level} % intervals, of sampling and noise. Counts are "
            "integers with noise, which may leave them below zero. The outer bins of a "
            "histogram hold all that lies beyond.</p>",
            *tables,
            *_picture(description),
            "<h2>What each part cost</h2>",
            _table(head, costs),
            "</body></html>\n",
        ]
    )


def svg_of(figure: Any) -> bytes:
    """Returns a figure as SVG, the same bytes whenever it is drawn."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpjax"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _picture(description: "Description") -> Iterator[str]:
    try:
        both = [svg_of(description.plot(is_dark=dark)) for dark in (True, False)]
    except ImportError:
        return
    dark, light = (
        f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for svg in both
    )
    media = "(prefers-color-scheme:dark)"
    yield f'<picture><source media="{media}" srcset="{dark}">'
    yield f'<img src="{light}" alt="Histograms, and the numbers above"></picture>'


def _table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{_text(x)}</{tag}>" for x in cells) + "</tr>"

    return f"<table>{row('th', head)}{''.join(row('td', x) for x in lines)}</table>"


def _text(text: str) -> str:
    return escape(printable(text))
