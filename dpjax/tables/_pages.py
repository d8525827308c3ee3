"""Pages of text, tables and pictures: HTML that needs no other file.

All text is escaped, because names and sentences may come from a stranger's file. A page
of HTML has no scripts, and forbids the browser to load anything.
"""

import base64
import importlib.resources
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from dpjax.tables.io._untrusted import harmless, printable

_NUMBER = re.compile(r"-?\d|-?inf\b|hidden by noise|$")


class Text(NamedTuple):
    """A paragraph, which may be a warning."""

    text: str
    is_warning: bool = False


class Rows(NamedTuple):
    """A table: the titles of its columns, and the cells of its lines."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    @property
    def is_number(self) -> list[bool]:
        """Which columns hold numbers alone."""
        columns = zip(self.head, *self.lines, strict=True)
        return [all(map(_NUMBER.match, cells)) for _, *cells in columns]


class Picture(NamedTuple):
    """A matplotlib figure, its description, and the same figure for dark pages."""

    figure: Any
    caption: str
    dark: Any = None


Block = str | Text | list[str] | Rows | Picture  # a title, and a list of sentences


def html_of(title: str, blocks: Iterable[Block]) -> str:
    """Returns a page of HTML; dark screens show the dark variants of pictures."""
    head = (
        importlib.resources.files("dpjax.tables")
        .joinpath("_page.html")
        .read_text("utf-8")
    )
    title = _html(title)
    first = f"{head}<title>{title}</title></head><body><h1>{title}</h1>"
    return "\n".join([first, html_blocks(blocks), "</body></html>\n"])


def html_blocks(blocks: Iterable[Block]) -> str:
    """Returns a part of a page of HTML."""
    return "\n".join(map(_html_block, blocks))


def _html_block(block: Block) -> str:
    match block:
        case Text(text, is_warning):
            mark = ' class="warning"' if is_warning else ""
            return f"<p{mark}>{_html(text)}</p>"
        case Rows(head, lines):
            rows, marks = (
                [("th", head), *(("td", line) for line in lines)],
                block.is_number,
            )
            return f"<table>{''.join(_html_row(*row, marks) for row in rows)}</table>"
        case Picture(figure, said, dark):
            image = f'<img src="{_svg_url(figure)}" alt="{_html(said)}">'
            if dark is not None:
                media = "screen and (prefers-color-scheme:dark)"
                image = f'<source media="{media}" srcset="{_svg_url(dark)}">{image}'
            return f"<picture>{image}</picture>"
        case str():
            return f"<h2>{_html(block)}</h2>"
    return f"<ul>{''.join(f'<li>{_html(text)}</li>' for text in block)}</ul>"


def _html_row(tag: str, cells: Sequence[str], is_number: Sequence[bool]) -> str:
    starts = [f'<{tag} class="n">' if x else f"<{tag}>" for x in is_number]
    pairs = zip(starts, map(harmless, cells), strict=True)
    return f"<tr>{''.join(f'{start}{_html(x)}</{tag}>' for start, x in pairs)}</tr>"


def _html(text: str) -> str:
    return escape(printable(text))


def _svg_url(figure: Any) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg_of(figure)).decode()}"


def svg_of(figure: Any) -> bytes:
    """Returns a figure as SVG, the same bytes whenever it is drawn."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpjax"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
