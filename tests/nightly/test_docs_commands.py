"""Commands of the pages: each runs as it is written, and prints what the page shows.

A block of text behind a block of `sh` is its output; `...` in a line of its own stands
for lines that are left out. A fraction may differ by one in its last place, and beyond
four digits by 1e-4 of itself, since processors round sums differently.

`python -m tests.nightly.test_docs_commands` writes the pictures and the report anew.
"""

import os
import re
import subprocess
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from tests.nightly.test_docs import DOCS, PAGES, ROOT
from tests.unit.cli.command import done, invoke

WALK = DOCS / "guides" / "walk.md"
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
MASKED = {
    r"dpjax\s+[\w.+-]+,\s+jax\s+[\w.]+,\s+numpy\s+[\w.]+\)?\s": "versions\n",
    r"\b\d{4}-\d\d-\d\d\b": "a day",
    r"\b[0-9a-f]{16}\b": "a name",  # of a run, at random
}
# What does not run here, by the words that it begins with, and why.
UNRUN = {
    "python -m pip install": "it makes the environment that the tests run in",
    "git ": "it tags and clones",
    "mkdir dist": "publish.yml runs it of a tag",
    "(cd dist": "publish.yml runs it of a tag",
    "PYTHON=": "publish.yml runs it of a tag",
    "dpjax plan": "it takes minutes; tests/unit/cli/test_forecast.py has it small",
    "dpjax train adult --epsilon 1.0": "it takes half a minute; .ci/run has it",
}
FRACTION = re.compile(r"(?<![\w.])-?\d[\d,]*\.\d+(?:e[-+]?\d+)?")
# Commands on made tables, whose `schema.toml` is what a reader would make of a guess.
MADE = re.compile(r"my\.csv|records/|plan schema")
COLUMNS = """[columns]
rooms = {center = 4, scale = 2}
area = {center = 80, scale = 30}
region = {categories = ["south", "north"]}
[target]
"""
TARGETS = {
    "squared": 'column = "price"\ncenter = 300\nscale = 100\n',
    "logistic": 'column = "sold"\npositive = "yes"\n',
}
WITH_COMMANDS = [path for path in PAGES if "```sh\n" in path.read_text()]
KEEP = "run `python -m tests.nightly.test_docs_commands`"
# Kept of the walk, what made them, and their places among the figures that are saved.
KEPT = {"walk.svg": "curves.svg", "walk-dark.svg": "curves-dark.svg"}
KEPT |= {"described.svg": "described/description.svg", "classes.svg": "classes.svg"}
KEPT, FIGURES = {**KEPT, "visits.svg": "visits.svg"}, (0, 1, -3, -2, -1)
REPORT = DOCS / "static" / "walk.html", Path("out/report.html")


def write_tables(folder, num_records=2_000):
    rng = np.random.default_rng(0)
    rooms, area = rng.integers(1, 8, num_records), rng.uniform(20, 200, num_records)
    frame = pl.DataFrame(
        {
            "person_id": np.arange(num_records) // 2,
            "rooms": rooms,
            "area": area,
            "region": rng.choice(["north", "south"], num_records),
            "price": 50 * rooms + area + 30 * rng.standard_t(2.5, num_records),
            "sold": np.where(rooms > 4, "yes", "no"),
            "claims": rng.poisson(0.1, num_records),
            "years": rng.uniform(0, 1, num_records),
            "num_policies": rng.integers(1, 4, num_records),
        }
    )
    (folder / "records").mkdir()
    for name in ("my.csv", "new.csv", "policies.csv", "records/1.csv", "records/2.csv"):
        frame.write_csv(folder / name)


def blocks(path):
    code_blocks = list(BLOCK.finditer(path.read_text()))
    for one, behind in zip(code_blocks, [*code_blocks[1:], None], strict=True):
        between = one.string[one.end() : behind.start()] if behind else "end"
        code = one[1], textwrap.dedent(one[2])  # that of a list is indented
        yield code, None if between.strip() else behind.groups()


def run(path, folder):
    write_tables(folder)
    schema = folder / "schema.toml"
    for (language, code), behind in blocks(path):
        if language == "toml" and code.startswith("# schema.toml\n"):
            schema.write_text(code)
        if language != "sh":
            continue
        printed, open_lines = "", ""
        for line in code.replace("\\\n", " ").splitlines():
            open_lines += line + "\n"
            if open_lines.count("(") != open_lines.count(")"):
                continue
            command = re.sub(r"\s+# .*", "", open_lines).strip()
            open_lines = ""
            if command.startswith(tuple(UNRUN)):
                continue
            if "schema.toml" in command and MADE.search(command):
                schema.unlink(missing_ok=True)
                if not command.startswith("dpjax schema"):
                    loss = "logistic" if "--loss logistic" in command else "squared"
                    schema.write_text(COLUMNS + TARGETS[loss])
            printed += printed_by(command)
        if behind and behind[0] == "text":
            yield behind[1], printed


def printed_by(command):
    if not command.startswith("dpjax "):
        words = ["bash", "-euo", "pipefail", "-c", command]
        env = {**os.environ, "REPOSITORY": str(ROOT), "PYTHONPATH": str(ROOT)}
        run = subprocess.run(words, env=env, capture_output=True, text=True)
        assert run.returncode == 0, (command, run.stderr)
        return run.stdout
    return done(invoke(*command.split()[1:])).stdout


def is_shown(shown, printed):
    """Whether a page shows what was said, but for what it leaves out."""
    for pattern, word in MASKED.items():
        shown, printed = (re.sub(pattern, word, text) for text in (shown, printed))
    parts, lines = re.split(r"^\.\.\.\n", shown, flags=re.M), printed.splitlines()
    start = 0
    for i, part in enumerate(parts):
        wanted = part.splitlines()
        last = len(lines) - len(wanted)
        places = range(start, last + 1) if i else [0]
        if i == len(parts) - 1:
            places = {last} & set(places)
        pairs = ((place, zip(wanted, lines[place:], strict=False)) for place in places)
        fits = (place for place, pair in pairs if all(same(*both) for both in pair))
        if (place := next(fits, None)) is None or last < 0:
            return False
        start = place + len(wanted)
    return True


def same(a, b):
    """Whether two lines have the same words, and numbers that differ by rounding."""
    words = (re.sub(r"[ ─━]+", " ", FRACTION.sub("#", line)).strip() for line in (a, b))
    pairs = zip(FRACTION.findall(a), FRACTION.findall(b), strict=False)
    values = (zip(*map(number, pair), strict=True) for pair in pairs)
    return len(set(words)) == 1 and all(
        abs(x - y) <= 1.001 * max(min(ends), 1e-4 * abs(x)) for (x, y), ends in values
    )


def number(text):
    """Returns a printed number, and what one in its last place is."""
    digits, _, power = text.replace(",", "").partition("e")
    last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return float(text.replace(",", "")), last


def points_of(figure):
    lines = []
    for axes in figure.axes:
        points = np.concatenate([[], *(x.get_xydata().ravel() for x in axes.lines)])
        lines.append(" ".join([axes.get_title(), *(f"{x:.4g}" for x in points)]))
    return "\n".join(lines)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, in order."""
    figures, save = [], Figure.savefig

    def keep(figure, *args, **options):
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize(
    "path", [path for path in WITH_COMMANDS if path != WALK], ids=lambda path: path.name
)
def test_commands_of_a_page_run_and_print_what_it_shows(path, folder):
    for shown, said in run(path, folder):
        assert is_shown(shown, said), said


def test_the_walk_is_as_it_is_shown(folder, drawn):
    for shown, said in run(WALK, folder):
        assert is_shown(shown, said), said
    page = WALK.read_text()
    powers = re.findall(r"e\^(-?[\d.]+) = ([\d.]+)", page)
    assert powers
    for power, value in powers:
        digits = len(value.partition(".")[2])
        assert f"{np.exp(float(power)):.{digits}f}" == value
    reports = []  # without styles, pictures and tags
    for path in REPORT:
        html = re.sub(r"(?s)<style.*?</style>|data:[^\"]*", "", path.read_text())
        html = re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", "\n", html))
        reports.append(html.strip())
    assert is_shown(*reports), KEEP
    for name, place in zip(KEPT, FIGURES, strict=True):
        picture = (DOCS / "static" / name).read_text()
        points = re.search("<!--\n(.*?)\n-->", picture, re.S)[1]
        assert is_shown(points, points_of(drawn[place])), KEEP
        assert f"static/{name}\n" in page


def test_what_does_not_run_is_on_a_page():
    text = "".join(code for path in WITH_COMMANDS for (_, code), _ in blocks(path))
    assert [one for one in UNRUN if one not in text] == []


def test_a_page_that_says_something_else_is_found():
    text = "a table of 3\n│ x │ 1.234 │\non 2026-11-27\nend\n"
    for shown in (text, "a table of 3\n...\nend\n", "...\non 2020-01-01\n...\n"):
        assert is_shown(shown, text)
    assert is_shown(text.replace("1.234", "1.235").replace(" │\n", "  │\n"), text)
    for other in (
        *(text.replace("1.234", "1.236"), text.replace("3", "4"), text + "more\n"),
        *(text.replace("end", "End"), "...\nan end\n", "a table of 3\n...\non\n"),
        *("end\n...\na table of 3\n", "a table of 3\n", ""),
    ):
        assert not is_shown(other, text)


def keep():
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.chdir(name)
        patch.setenv("COLUMNS", "80")
        figures = drawn.__wrapped__(patch)
        for shown, said in run(WALK, Path(name)):
            if not is_shown(shown, said):
                print(f"{shown}\nis now\n\n{said}")
        REPORT[0].write_text(re.sub(r"\.dev\d+\+\w+", "", REPORT[1].read_text()))
        for (picture, made), place in zip(KEPT.items(), FIGURES, strict=True):
            text = re.sub(r"(?s)\s*<metadata.*?</metadata>", "", Path(made).read_text())
            text = re.sub(r"\b([1-9]\d*\.\d\d)\d+", r"\1", text)
            text += f"<!--\n{points_of(figures[place])}\n-->\n"
            (DOCS / "static" / picture).write_text(text)


if __name__ == "__main__":
    keep()
