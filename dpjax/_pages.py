"""Pages of text, tables and pictures: HTML or Markdown that needs no other file.

All text is escaped, since names and sentences may come from a stranger's file. Such a
page has no scripts, and its policy forbids a browser to load anything.
"""

import base64
import io
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

from dpjax._untrusted import printable

_STYLE = """
:root{color-scheme:light;--ink:#1f2328;--paper:#fff;--rule:#d0d7de;--mark:#fff3d6}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
margin:2rem auto;max-width:60rem;padding:0 1rem}
h1{line-height:1.2}
h2{margin:2.2rem 0 .6rem;border-bottom:1px solid var(--rule)}
p,ul{max-width:46rem}
table{border-collapse:collapse;display:block;overflow-x:auto;margin:1rem 0}
th,td{border-bottom:1px solid var(--rule);padding:.25rem .7rem;text-align:left;
vertical-align:top;overflow-wrap:break-word}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.warning{background:var(--mark);border-left:4px solid #c2410c;padding:.5rem .8rem}
img{max-width:100%}
@media print{body{margin:0;max-width:none;font-size:10pt}table{display:table}
h2{break-after:avoid}tr,img,.warning{break-inside:avoid}thead{display:table-header-group}}
"""
_DARK = """
@media screen and (prefers-color-scheme:dark){:root{color-scheme:dark;--ink:#e6edf3;
--paper:#0d1117;--rule:#3d444d;--mark:#3a2a12}}
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
# What begins a mark-up in Markdown; and what does so at the beginning of a line.
_MARKS = re.compile(r"([\\`*_\[\]<>&|~$#])")
_OPENINGS = re.compile(r"[-+](?=[\s-]|$)|\d+[.)](?=\s|$)")
_LINKS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)


class Heading(NamedTuple):
    """The title of a section."""

    text: str


class Text(NamedTuple):
    """A paragraph, which may be a warning."""

    text: str
    is_warning: bool = False


class Items(NamedTuple):
    """A list of sentences."""

    texts: Sequence[str]


class Rows(NamedTuple):
    """A table: of each column its title, and of each line its cells."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]

    @property
    def is_number(self) -> list[bool]:
        """Which columns, after the first one, hold numbers alone."""
        columns = zip(*self.lines, strict=True)
        found = [
            all(re.match(r"-?\d|-?inf\b|$|hidden by noise", cell) for cell in column)
            for column in columns
        ]
        return [False, *(found or [False] * len(self.head))[1:]]


class Picture(NamedTuple):
    """A figure of matplotlib, what it shows in words, and the same light on dark."""

    figure: Any
    said: str
    dark: Any = None


Block = Heading | Text | Items | Rows | Picture


def html_of(title: str, blocks: Sequence[Block]) -> str:
    """Returns a page of HTML, dark where a reader prefers that and all pictures are.

    Example:
        >>> page = html_of("a <b>", [Text("c & d", is_warning=True)])
        >>> "<h1>a &lt;b&gt;</h1>" in page, '<p class="warning">c &amp; d</p>' in page
        (True, True)
    """
    pictures = [block for block in blocks if isinstance(block, Picture)]
    is_dark = bool(pictures) and all(block.dark is not None for block in pictures)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{_html(title)}</title><style>{_STYLE}{_DARK * is_dark}</style>",
            f"</head><body><h1>{_html(title)}</h1>",
            *map(_html_block, blocks),
            "</body></html>\n",
        ]
    )


def _html_block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{_html(text)}</h2>"
        case Text(text, is_warning):
            mark = ' class="warning"' if is_warning else ""
            return f"<p{mark}>{_html(text)}</p>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{_html(text)}</li>' for text in texts)}</ul>"
        case Rows(head, lines):
            return html_table(head, lines, block.is_number)
        case Picture(figure, said, dark):
            image = f'<img src="{_svg_url(figure)}" alt="{_html(said)}">'
            if dark is None:
                return f"<p>{image}</p>"
            media = "screen and (prefers-color-scheme:dark)"
            source = f'<source media="{media}" srcset="{_svg_url(dark)}">'
            return f"<picture>{source}{image}</picture>"


def html_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], is_number: Sequence[bool]
) -> str:
    """Returns a table of HTML, with numbers to the right."""
    marks = [' class="n"' if one else "" for one in is_number]

    def row(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(marks, cells, strict=True)
        shown = "".join(f"<{tag}{mark}>{_html(x)}</{tag}>" for mark, x in pairs)
        return f"<tr>{shown}</tr>"

    body = "".join(row("td", line) for line in lines)
    return f"<table><thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"


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


def markdown_of(title: str, blocks: Sequence[Block]) -> str:
    r"""Returns a page of Markdown with tables; pictures lie at its end.

    Example:
        >>> print(markdown_of("a_b", [Rows(["x", "y"], [["<i>", "1"]])]))
        # a\_b
        <BLANKLINE>
        | x | y |
        | --- | ---: |
        | \<i\> | 1 |
        <BLANKLINE>
    """
    pictures: list[str] = []
    shown = ["\n".join(_markdown_lines(block, pictures)) for block in blocks]
    return "\n\n".join([f"# {_markdown(title)}", *shown, *pictures]) + "\n"


def _markdown_lines(block: Block, pictures: list[str]) -> Iterator[str]:
    match block:
        case Heading(text):
            yield f"## {_markdown(text)}"
        case Text(text, is_warning):
            yield f"> **{_markdown(text)}**" if is_warning else _markdown(text)
        case Items(texts):
            yield from (f"- {_markdown(text)}" for text in texts)
        case Rows(head, lines):
            rules = ["---:" if one else "---" for one in block.is_number]
            cells = [[*map(_markdown, line)] for line in (head, *lines)]
            yield from (f"| {' | '.join(x)} |" for x in (cells[0], rules, *cells[1:]))
        case Picture(figure, said):
            png, name = io.BytesIO(), f"picture-{len(pictures) + 1}"
            figure.savefig(png, format="png")
            data = base64.b64encode(png.getvalue()).decode()
            pictures.append(f"[{name}]: data:image/png;base64,{data}")
            yield f"![{_markdown(said)}][{name}]"


def _markdown(text: str) -> str:
    r"""Returns a text that stands for itself, on one line.

    Example:
        >>> print(_markdown("1. a*b http://c"))
        1\. a\*b http:\//c
    """
    marked = _LINKS.sub(r"\\", _MARKS.sub(r"\\\1", printable(text).strip()))
    if (start := _OPENINGS.match(marked)) is not None:
        marked = f"{marked[: start.end() - 1]}\\{marked[start.end() - 1 :]}"
    return marked
