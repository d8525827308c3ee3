"""The page of all pictures, written from the pages that show them.

Each picture has a thumbnail, and links to the pages where it stands and to the code
that draws it, which becomes a page too.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import _copies
from _copies import ROOT

DOCS = ROOT / "docs"
# What draws the pictures of a folder, and the command that runs it.
CODE = {
    "docs/plots": ("benchmarks/plots.py", "python -m benchmarks report plots"),
    "benchmarks/plots": (
        "benchmarks/speed/plots.py",
        "python -m benchmarks report speed",
    ),
    "benchmarks/plots/figures": (
        "benchmarks/figures/draw.py",
        "python -m benchmarks report figures",
    ),
    "docs/static": ("dpjax/cli/_plot.py", "dpjax plot out/model.npz"),
    "docs/generated/images": ("docs/_pictures.py", "sphinx-build -b html docs site"),
}
# A heading, or a picture in one of two notations, with its words.
_PARTS = re.compile(
    r"^```(?!\{image\})[^\n]*\n.*?^```$"  # code, whose comments are no headings
    r"|^#{1,3} (?P<heading>[^\n]+)$"
    r"|!\[(?P<words>[^\]]*)\]\((?P<path>[^)\s]+)\)"
    r"|^```\{image\} (?P<image>\S+)\n(?::class:[^\n]*\n)?:alt: (?P<alt>[^\n]+)\n```$",
    re.MULTILINE | re.DOTALL,
)


class Picture(NamedTuple):
    """A picture where it stands.

    Attributes:
        file: the picture, or the notebook that holds it.
        page: what shows it, relative to docs.
        title: of the page.
        heading: the last one above it, and the one above that.
        words: its description.
        output: its place among a notebook's pictures; None of a file.
    """

    file: Path
    page: str
    title: str
    heading: str
    words: str
    output: int | None = None

    @property
    def key(self) -> str:
        """The name of its file, light and dark being one."""
        name = self.file.relative_to(ROOT).as_posix()
        if self.output is not None:
            return f"{name}#{self.output}"
        return re.sub(r"-(light|dark)\.svg$", ".svg", name)

    @property
    def name(self) -> str:
        """Its words where they are one, or else the heading above it."""
        is_one = " " not in self.words and self.words not in self.heading
        return self.words.replace("-", " ").capitalize() if is_one else self.heading

    @property
    def section(self) -> str:
        """Pages of measurements have a section each, others share one."""
        if self.output is not None:
            return "Notebooks"
        return self.title if self.page.startswith("generated/") else "Guides"


def pictures() -> list[Picture]:
    """Returns every picture of every page, in the order of the pages."""
    sources = {
        path: path.relative_to(DOCS).as_posix()
        for path in sorted(DOCS.rglob("*.md"))
        if not {"_build", "generated"} & set(path.relative_to(DOCS).parts)
    }
    sources |= {
        ROOT / name: f"generated/{page}" for name, page in _copies.PAGES.items()
    }
    found = [one for path, page in sources.items() for one in _of_page(path, page)]
    for path in _copies.notebooks():
        found += _of_notebook(path)
    return found


def _of_page(path: Path, page: str) -> Iterator[Picture]:
    title = heading = ""
    for part in _PARTS.finditer(path.read_text()):
        if part["heading"]:
            heading = part["heading"]
            title = title or heading
        elif name := part["path"] or part["image"]:
            file = (path.parent / name).resolve()
            yield Picture(file, page, title, heading, part["words"] or part["alt"])


def _of_notebook(path: Path) -> Iterator[Picture]:
    page, title, heading, count = f"generated/notebooks/{path.name}", "", "", 0
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "markdown":
            for part in _PARTS.finditer("".join(cell["source"])):
                heading = part["heading"] or heading
                title = title or heading
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                count += 1
                yield Picture(path, page, title, heading, heading, count)


def write_page(folder: Path) -> None:
    """Writes thumbnails, a section a page, and the pages of the code behind them.

    Raises:
        KeyError: if nothing is known to draw a picture.
    """
    (folder / "code").mkdir(exist_ok=True)
    for code, command in CODE.values():
        text = f"---\norphan: true\n---\n# {code}\n\nRun by `{command}`.\n\n"
        text += f"```{{literalinclude}} ../../../{code}\n:language: python\n```\n"
        (folder / "code" / f"{name_of(code)}.md").write_text(text)
    (folder / "tables" / "gallery.md").write_text(table(folder))


def name_of(code: str) -> str:
    """Returns the name of the page of a file of code."""
    return code.replace("/", "-").removesuffix(".py")


def table(folder: Path) -> str:
    """Returns the thumbnails, and writes those of notebooks into the folder."""
    places: dict[str, list[Picture]] = {}
    for one in pictures():
        places.setdefault(one.key, []).append(one)
    sections: dict[str, list[str]] = {}
    for shown in places.values():
        first = min(shown, key=lambda one: one.page == "index.md")
        pages = {one.page: f"[{one.title}]({one.page})" for one in shown}
        sections.setdefault(f"## {first.section}", []).append(
            f"::::{{grid-item-card}} {first.name}\n"
            f"[![{first.words}]({_thumbnail(first, folder)})]"
            f"({first.page}{_anchor(first)})\n"
            f":::{{card-footer}}\n{', '.join(pages.values())} ({_code(first)})\n"
            ":::\n::::"
        )
    grids = (
        "\n\n".join((title, ":::::{grid} 1 2 2 3\n:gutter: 3\n", *cards, ":::::"))
        for title, cards in sections.items()
    )
    return "\n\n".join(grids) + "\n"


def _anchor(picture: Picture) -> str:
    """Returns the anchor of a heading, or nothing for a page's first."""
    if picture.heading == picture.title:
        return ""
    words = re.sub(r"[^\w\- ]", "", picture.heading.lower())
    return "#" + words.replace(" ", "-")


def _outputs(notebook: Path) -> list[str]:
    """Returns the pictures of a notebook in base64."""
    cells = json.loads(notebook.read_text())["cells"]
    shown = (one.get("data", {}) for x in cells for one in x.get("outputs", ()))
    return ["".join(data["image/png"]) for data in shown if "image/png" in data]


def _thumbnail(picture: Picture, folder: Path) -> str:
    name = picture.file.relative_to(ROOT).as_posix()
    if picture.output is not None:
        shown = f"{name.replace('/', '-')}-{picture.output}.png"
        png = base64.b64decode(_outputs(picture.file)[picture.output - 1])
        (folder / "images" / shown).write_bytes(png)
        return f"generated/images/{shown}"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"generated/images/{name.replace('/', '-')}"


def _code(picture: Picture) -> str:
    if picture.output is not None:
        return f"[code]({picture.page}{_anchor(picture)})"
    folder = picture.file.parent.relative_to(ROOT).as_posix()
    code, _ = CODE[folder]
    return f"[code](generated/code/{name_of(code)}.md)"
