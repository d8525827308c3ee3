"""The proved statements of the site: read from its pages, and as one table."""

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "privacy" / "proofs"
_HEAD = re.compile(r"^\((proof-[\w-]+)\)=\n## (\d+\.\d+) (.+)$", re.MULTILINE)
_FACT = re.compile(r"^\* (Code|Test|Audit|Source): (.+(?:\n  .+)*)$", re.MULTILINE)


class Statement(NamedTuple):
    """A statement, and the four lines at the end of its proof."""

    anchor: str
    number: str
    title: str
    facts: dict[str, str]


def statements() -> list[Statement]:
    """Returns the statements of all pages, in the order of their numbers."""
    found = []
    for page in FOLDER.glob("*.md"):
        _, *parts = _HEAD.split(page.read_text())
        for anchor, number, title, text in zip(*[iter(parts)] * 4, strict=True):
            facts = {name: " ".join(x.split()) for name, x in _FACT.findall(text)}
            found.append(Statement(anchor, number, title, facts))
    return sorted(found, key=lambda x: [int(part) for part in x.number.split(".")])


def table() -> str:
    """Returns the table of all statements, which the index includes."""
    lines = [
        "| no. | statement | code | test | audit | source |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for anchor, number, title, facts in statements():
        cells = (facts[name] for name in ("Code", "Test", "Audit", "Source"))
        lines.append(f"| [{number}](#{anchor}) | {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
