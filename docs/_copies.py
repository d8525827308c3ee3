"""Pages and notebooks of the repository as pages of the site, their links rewritten."""

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Files of the repository, and the pages that they become.
_NAMES = ("UTILITY", "DEEP", "FIGURES", "EXPERIMENTS", "SCALING", "COVERAGE")
PAGES = {"dpjax/GUARANTEES.md": "guarantees.md", "benchmarks/README.md": "speed.md"}
PAGES |= {f"benchmarks/{name}.md": f"{name.lower()}.md" for name in _NAMES}
PAGES |= {
    f"{x}.md": f"{x.lower()}.md" for x in ("CHANGELOG", "CONTRIBUTING", "SECURITY")
}
# An inline link of Markdown; titles and spaces in targets do not occur.
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
IMAGES = {".png", ".svg"}


def write_pages(folder: Path) -> None:
    """Writes every page and notebook into a folder, with the pictures they show."""
    for name in ("notebooks", "images"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for source, target in PAGES.items():
        text = (ROOT / source).read_text()
        (folder / target).write_text(rewritten(text, ROOT / source, folder))
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copyfile(notebook, folder / "notebooks" / notebook.name)


def rewritten(text: str, source: Path, folder: Path) -> str:
    """Returns a page's text with its links as they are from the folder.

    A link to a file that becomes a page leads there, one to another file offers it for
    download, and of one to a folder only the words stay.

    Raises:
        FileNotFoundError: where a link leads nowhere.
    """

    def link(match: re.Match) -> str:
        bang, words, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        file = (source.parent / path).resolve()
        if not file.exists():
            raise FileNotFoundError(f"{source.name} links to {path}")
        if file.is_dir():
            return words
        name = file.relative_to(ROOT).as_posix()
        if file.suffix in IMAGES:
            shown = name.replace("/", "-")
            shutil.copyfile(file, folder / "images" / shown)
            return f"{bang}[{words}](images/{shown})"
        if name in PAGES:
            return f"{bang}[{words}]({PAGES[name]}{hash_}{anchor})"
        return f"{bang}[{words}]({os.path.relpath(file, folder)})"

    return LINK.sub(link, text)
