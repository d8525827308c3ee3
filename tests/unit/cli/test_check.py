"""What the curator is told of cells: by `dpjax check`, and by `dpjax train` itself."""

import shlex
from unittest import mock

import numpy as np
import pytest
from rich.console import Console

import dpjax
from dpjax.datasets import Categorical
from dpjax.tables.cli import _terminal
from dpjax.tables.cli._curator import count_cells
from tests.unit.cli.command import outputs_of as invoke
from tests.unit.cli.command import read_report, write_table

COLUMNS = {
    "age": [str(20 + i % 60) for i in range(200)],
    "income": ["n/a"] * 200,
    "town": ["Ghent", "Lier"] * 100,
    "flag": ["1.0", "0.0"] * 100,
    "smoker": ["1", "0"] * 100,
    "price": ["$1200"] * 200,
}
GOOD = {
    "age": "{center = 50, scale = 20}",
    "income": "{center = 0, scale = 1}",
    "town": '{categories = ["Ghent", "Lier"], reference = "Lier"}',
    "flag": '{categories = ["1"], others = "reference"}',
}
CHECK = "check", "data.csv", "--schema", "schema.toml"
PRICE = '{column = "price", center = 1000, scale = 500}'


def schema(target=PRICE, **columns):
    lines = [f"columns.{name} = {section}\n" for name, section in columns.items()]
    return "".join(lines) + f"target = {target}\n"


@pytest.fixture
def folder(here):
    """A working directory with a table of which little can be used."""
    write_table(COLUMNS)
    return here


def train(*options, loss="squared"):
    what = ["--schema", "schema.toml", "--loss", loss, "--epsilon", 1]
    return invoke("train", "data.csv", *what, "--output", "out", *options)


NO_NUMBER = "column 'income': 0 of 200 cells hold a number."
TEMPLATE = "{center = 0.0, scale = 1.0}"
WRONG = {
    "template": schema(TEMPLATE.replace("{", '{column = "price", '), age=TEMPLATE),
    "no value": schema(income=GOOD["income"]),
    "currency": schema(age=GOOD["age"]),
    "labels": schema('{column = "smoker", positive = "yes"}', age=GOOD["age"]),
    "categories": schema(town='{categories = ["Mons", "Gand"]}'),
}
MESSAGES = {
    "template": "column 'age': 200 of 200 cells lie beyond five scales of the center: "
    "the schema says center 0 and scale 1, as in the template. Say a usual value",
    "no value": NO_NUMBER,
    "currency": "target 'price': 0 of 200 cells hold a number; most are like $1200 "
    "(try --currency '$').",
    "labels": "target 'smoker': 0 of 200 cells are the schema's positive, 'yes'; it "
    "must be written as in the file.",
    "categories": "column 'town': 0 of 200 cells match one of the schema's categories "
    "('Mons', 'Gand'), others are such as 'Ghent'; categories must be written as",
}


@pytest.mark.parametrize("name", WRONG)
def test_cells_of_which_none_can_be_used_are_named_and_strict_stops(
    folder, name, monkeypatch
):
    loss = "logistic" if name == "labels" else "squared"
    (folder / "schema.toml").write_text(WRONG[name])
    before = sorted(folder.rglob("*"))
    code, shown, warning = train("--strict", loss=loss)
    assert (code, shown) == (2, "")
    assert "For the curator's eyes only, outside the guarantee" in warning
    assert MESSAGES[name] in warning
    assert "--strict stopped the run before training: nothing was spent" in warning
    assert sorted(folder.rglob("*")) == before
    # Without it the run goes on: a refusal would depend on private values.
    begins = mock.Mock(side_effect=ValueError("it began."))
    monkeypatch.setattr("dpjax.tables.cli._train.train_private", begins)
    _, _, warning = train(loss=loss)
    assert MESSAGES[name] in warning
    assert warning.endswith("Error: it began.")


def test_good_columns_are_not_named(folder):
    good = {name: GOOD[name] for name in ("age", "town", "flag")}
    target = '{column = "smoker", positive = true}'
    (folder / "schema.toml").write_text(schema(target, **good))
    code, shown, warning = invoke(*CHECK)
    assert (code, warning) == (0, "")
    assert "NOT PRIVATE: for the eyes of the data's owner." in shown
    assert "Nearly every column can be used." in shown
    assert "Labels of smoker: '1' 50.0%, '0' 50.0%. 'true' counts as +1." in shown


def test_records_of_missing_targets_have_no_weight_and_are_reported(folder):
    rng = np.random.default_rng(0)
    prices = np.where(rng.random(3_000) < 0.4, "", rng.normal(2_730, 9, 3_000))
    write_table({"age": [f"{50 + i % 9}" for i in range(3_000)], "price": prices})
    target = '{column = "price", center = 0, scale = 1000}'
    (folder / "schema.toml").write_text(schema(target, age=GOOD["age"]))
    _, shown, _ = invoke(*CHECK)
    code, trained, _ = train("--seed", 0, "--model", "linear")
    assert code == 0
    assert "their records have no weight" in shown
    assert "have no target that can be read" in trained
    stats = read_report(folder / "out")["stats"]
    assert stats["constant"] == pytest.approx(2.73, rel=0.02)


def test_check_counts_and_writes_nothing(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (folder / "schema.toml").write_text(schema(**GOOD))
    before = sorted(folder.rglob("*"))
    code, shown, _ = invoke(*CHECK)
    assert code == 0
    for text in (
        "age 50 by 20 0% 0% 0%",
        "income 0 by 1 100.0% 0% 0%",
        "town Ghent, Lier (reference) 0% 0% -",
        "flag 1 0% 0% - reference (50.0%), such as '0.0'",
        "price 1000 by 500 0% 100.0% 0% like $1200 (try --currency '$')",
        NO_NUMBER,
    ):
        assert text in shown
    for words, message in (
        ("--target age", "--target must be left out, or 'price', as column in"),
        ("--target cost", "--target must be a column of ['age',"),
    ):
        code, _, errors = invoke(*CHECK, *words.split())
        assert (code, message in errors) == (2, True)
    assert sorted(folder.rglob("*")) == before
    # A schema that names no target's column, and one whose range is to be bought.
    (folder / "schema.toml").write_text(schema("{}", age="{}"))
    code, shown, _ = invoke(*CHECK)
    assert code == 0
    assert "No target was checked: --target names it." in shown


def test_no_count_takes_the_reference_for_missing():
    cells = np.array(["a"] * 150 + ["b"] * 100 + ["A", "", "nan", "\ufffd"], object)
    for kind, *expected in (
        (Categorical(("a", "b"), "b"), 250, 1, 0, "A"),
        (Categorical(("a",)), 150, 0, 101, "b"),  # what is not listed is the reference
        (Categorical(("c",)), 0, 251, 0, "a"),  # unless nothing is listed
    ):
        counts = count_cells(kind, cells)
        assert (counts.missing, counts.undecoded) == (3, 1)
        numbers = [counts.used, counts.unread, counts.reference, counts.example]
        assert numbers == expected


def test_a_level_that_the_schema_forgets_is_told(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    section = '{categories = ["Mons", "Ghent"]}'
    (folder / "schema.toml").write_text(schema(age=GOOD["age"], town=section))
    shown = invoke(*CHECK)[1]
    assert "town Mons (reference), Ghent 0% 50.0% - such as 'Lier'" in shown
    text = "column 'town': 100 of 200 cells, such as 'Lier', match none of the schema's"
    assert f"{text} categories: they count as its reference, 'Mons'." in shown


def test_what_a_command_is_at_shows_until_something_is_printed(monkeypatch, capsys):
    _terminal.stage("nowhere")
    assert not _terminal._stages
    monkeypatch.setattr(Console, "is_terminal", True)
    _terminal.stage("Reading a\x1bfile")
    (shown,) = _terminal._stages
    assert shown.live.is_started
    assert shown.tasks[0].description == "Reading a\\x1bfile"
    _terminal.terminal().print("something")
    assert not _terminal._stages
    assert not shown.live.is_started
    capsys.readouterr()
    with _terminal.progress_bars(_terminal.terminal(stderr=True)) as on_step:
        on_step("DP-GD", 0, 3)
        assert "DP-GD (compiling)" in capsys.readouterr().err
        on_step("DP-GD", 3, 3)
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cells", "look"),
    [
        ("$1200|$1200.5|1200$|-$5", "try --currency '$'"),
        ("1.509,95 EUR", "try --decimal , --thousands . --currency EUR"),
        ("12%|1.5 %", "try --percent"),
        ("1,5%|-2,25 %", "try --decimal , --percent"),
        ("\u2212100|(100)|100-|( 100 )|100\u2212", "write -100"),
        ("1,200|12,345,678|-1,200.50", "try --thousands ,"),
        ("2,5|-0,25|1200,50", "try --decimal ,"),
        ("1'200", 'try --thousands "\'"'),
        ("1 200,5", 'try --decimal , --thousands " "'),
        ("many|a,b|12 Main Street", ""),
    ],
)
def test_formats_of_numbers_have_words_and_are_read(here, monkeypatch, cells, look):
    monkeypatch.setenv("COLUMNS", "300")
    cells = cells.split("|")
    names = [f"c{i}" for i in range(len(cells))]
    (here / "data.tsv").write_text("\t".join(names) + "\n" + "\t".join(cells))
    text = "".join(f"columns.{name} = {{center = 0, scale = 1}}\n" for name in names)
    (here / "schema.toml").write_text(text)
    given = "check", "data.tsv", "--schema", "schema.toml"
    code, shown, _ = invoke(*given)
    assert code == 0
    for name, cell in zip(names, cells, strict=True):
        looks = f"like {' '.join(cell.split())} ({' '.join(look.split())})"
        row = f"{name} 0 by 1 0% 100.0% 0%"
        assert (f"{row} {looks}" if look else row) in shown
    if look.startswith("try"):
        _, shown, _ = invoke(*given, *shlex.split(look.removeprefix("try ")))
        for name in names:
            assert f"{name} 0 by 1 0% 0% " in shown


def test_the_version_and_brackets_of_help():
    assert invoke("--version")[:2] == (0, f"dpjax {dpjax.__version__}")
    assert "[target]" in invoke("check", "--help")[1]
