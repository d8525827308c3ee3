"""The schema: what it may say, and what is proposed for one."""

import datetime
import json
import tomllib

import numpy as np
import polars as pl
import pytest

from dpjax.datasets import Categorical, Numeric
from dpjax.tables.cli import _curator
from dpjax.tables.cli._curator import Guess, guess_name, schema_text
from dpjax.tables.cli._schema import BoundedColumn, Schema, date_kind, read_schema
from tests.unit.cli.command import done, invoke, read_report, refused, words_of

KINDS = [("logit", Categorical(("yes",))), ("identity", Numeric(40, 20))]
KINDS += [("log", Numeric())]
ODD_NAMES = ["age", "a b", 'quo"te', "dot.ted", "tab\t\x7f", "é", "", "back\\slash"]


@pytest.fixture
def read(tmp_path):
    """Reads a text as a schema."""

    def read(text, **options):
        (tmp_path / "text.toml").write_text(text, encoding="utf-8")
        return read_schema(tmp_path / "text.toml", **options)

    return read


def test_a_schema_has_numbers_and_categories(read):
    # An editor may have put a byte order mark before it.
    text = """\ufeff
        quoted = false
        columns.a = {center = 1, scale = 2.5}
        columns.b = {categories = ["x", 3, true]}
        columns.c = {categories = [1, 2], reference = 2}
        columns.d = {categories = ["x"], others = "reference"}
        columns.e = {first = 2020-01-31, last = "2021-01-31", format = "%d.%m.%Y"}
        columns.f = {part = "weekday"}
        target = {center = 0, scale = 10}
    """
    kinds = {"a": Numeric(1, 2.5), "b": Categorical(("x", "3", "true"), "x")}
    kinds |= {"c": Categorical(("1", "2"), "2"), "d": Categorical(("x",))}
    kinds["e"] = date_kind("2020-01-31", "2021-01-31", "%d.%m.%Y")
    kinds["f"] = date_kind(part="weekday", reference="Monday")
    assert read(text, link="identity") == Schema(kinds, Numeric(0, 10))


@pytest.mark.parametrize(("link", "kind"), KINDS)
def test_a_proposal_is_a_schema(read, link, kind):
    guesses = {name: guess_name(name) for name in [*ODD_NAMES, "Expo", "exposure"]}
    text = schema_text(guesses, target="age", link=link)
    schema = read(text, link=link)
    assert list(schema.columns) == [name for name in ODD_NAMES[1:] if name]
    assert set(schema.columns.values()) == {Numeric()}
    assert (schema.target, schema.target_column) == (kind, "age")
    exposure = BoundedColumn("Expo", 1.0) if link == "log" else None
    assert (schema.exposure, schema.weight) == (exposure, None)
    assert read(text, link=None) == schema
    lines = text.splitlines()
    assert ("# [exposure]" in lines, '# column = "exposure"' in lines) == (True, True)


def test_a_proposal_without_a_target_lists_every_column():
    text = schema_text({name: guess_name(name) for name in ODD_NAMES}, target=None)
    assert list(tomllib.loads(text)["columns"]) == [*filter(None, ODD_NAMES)]
    assert '# [columns.""] is left out: it has no name in the file.' in text


@pytest.mark.parametrize(
    ("names", "guess"),
    [
        ("age AGE ageOfDriver driver_age Age(years)", Guess(40, 20)),
        ("stage price tourage 年齢", Guess()),
        ("customer_id UUID Email", Guess(left_out="tells records apart")),
        ("is_open hasGarage", Guess(0.5, 0.5)),
        ("region Vehicle-Type smoker", Guess(categories=())),
        ("start_date", Guess(left_out="holds times or dates")),
        ("OpTime", Guess()),
        ("Unnamed:0 __index_level_0__", Guess(left_out="has no name in the file")),
    ],
)
def test_names_tell_kinds(names, guess):
    assert [guess_name(name) for name in names.split()] == [guess] * len(names.split())


TABLE = pl.DataFrame(
    {
        "id": range(60),
        "sold": [True, False, None] * 20,
        "kind": pl.Series(["a", "b", "a"] * 20, dtype=pl.Enum(["a", "b", "c"])),
        "note": ["x", "n/a", "1"] * 20,
        "age": [20.0 + i for i in range(60)],
        "born": [datetime.date(2000, 1, 1)] * 60,
        "nothing": pl.Series([None] * 60, dtype=pl.Null),
        "smoker": ["yes", "no", ""] * 20,
        "code": [f"c{i}" for i in range(60)],
    }
)


def proposed(*options):
    result = done(invoke("schema", *options))
    return tomllib.loads(result.stdout), words_of(result.stderr)


def test_a_proposal_follows_from_names_and_declared_types(tmp_path, monkeypatch):
    monkeypatch.setattr(_curator, "read_columns", None)
    TABLE.write_parquet(tmp_path / "data.parquet")
    content, warning = proposed(tmp_path / "data.parquet", "--target", "smoker")
    assert warning == ""
    assert content["columns"] == {
        "sold": {"categories": ["false", "true"]},
        # Those of the type are of the records as a rule.
        "kind": {"categories": ["FILL IN"]},
        "note": {"categories": ["FILL IN"]},
        "age": {"center": 40, "scale": 20},
        "nothing": {"center": 0.0, "scale": 1.0},
        "code": {"categories": ["FILL IN"]},
    }
    assert content["target"] == {"column": "smoker", "positive": "yes"}
    TABLE.write_csv(tmp_path / "data.csv")
    content, _ = proposed(tmp_path / "data.csv")
    assert content["columns"]["sold"] == {"categories": ["FILL IN"]}
    assert content["columns"]["note"] == {"center": 0.0, "scale": 1.0}


def test_a_proposal_from_the_records_warns_and_follows_from_their_values(tmp_path):
    TABLE.write_csv(tmp_path / "data.csv")
    given = tmp_path / "data.csv", "--target", "smoker", "--from-data"
    content, warning = proposed(*given)
    assert "the guarantee of a model that uses them does not cover that" in warning
    assert content["columns"] == {
        "sold": {"categories": ["false", "true"]},
        "kind": {"categories": ["a", "b"]},
        "note": {"categories": ["x", "1"]},
        "age": {"center": 50.0, "scale": 20.0},
    }
    assert content["target"] == {"column": "smoker", "positive": "yes"}
    path = tmp_path / "schema.toml"
    done(invoke("schema", *given, "--output", path))
    assert "THE RECORDS, which no guarantee covers" in path.read_text()
    assert "# [columns.id] is left out: it tells records apart." in path.read_text()
    assert read_schema(path, link=None).target == Categorical(("yes",))


def test_one_schema_serves_every_command(here):
    rng = np.random.default_rng(0)
    town = rng.choice(["Ghent", "Lier", "Mons"], 6_000, p=[0.2, 0.5, 0.3])
    x = rng.normal(size=6_000)
    y = 2 * x + 3 * (town == "Lier") - 4 * (town == "Mons") + rng.normal(size=6_000)
    since = np.datetime64("2019-03-01") + rng.integers(0, 1_000, 6_000)
    frame = {"x": x, "town": town, "since": since.astype("datetime64[D]"), "y": y}
    pl.DataFrame(frame).write_csv("data.csv")
    schema = done(invoke("schema", "data.csv", "--target", "y", "--from-data")).stdout
    schema = schema.replace('"Mons"', '"Mons", "Nowhere"')
    assert 'first = "2019-01-01"\nlast = "2021-12-31"\nformat = "%Y-%m-%d"' in schema
    (here / "schema.toml").write_text(schema)
    given = "data.csv", "--schema", "schema.toml"
    assert "Nearly every column can be used." in invoke("check", *given).stdout
    run = *given, "--epsilon", 1e3, "--delta", 1e-6, "--seed", 0, "--output"
    done(invoke("train", *run, "out", "--loss", "squared", "--intervals"))
    intervals = read_report(here / "out")["intervals"]
    weights = intervals["coefficients"]
    assert intervals["level"] == 0.95
    # JSON has no infinity.
    assert weights["town=Nowhere"]["standard_error"] is None
    days = "since (days since 2019-01-01)"
    towns = [f"town={name}" for name in ("Lier", "Mons", "Nowhere")]
    assert [*weights] == ["x", *towns, days, "intercept"]
    shown = words_of(done(invoke("show", "out")).stdout)
    assert "No honest interval can be had for town=Nowhere: the noise hides" in shown
    assert "Categories are compared with a reference: town with 'Ghent'." in shown
    row = [float(number) for number in shown.split("town=Lier ")[1].split()[:2]]
    assert row == pytest.approx([*weights["town=Lier"].values()][:2], rel=1e-3)
    done(invoke("describe", *run, "described"))
    described = json.loads((here / "described" / "description.json").read_text())
    truth = {"Ghent": sum(town == "Ghent"), "Nowhere": 0, "(other)": 0}
    for row in described["rows"]:
        if row["statistic"] == "count" and row["of"] in truth:
            assert row["value"] == pytest.approx(truth[row["of"]], abs=2)
        if (row["column"], row["statistic"]) == (days, "mean"):
            assert row["value"] == pytest.approx(59 + 499.5, rel=0.05)


def test_a_schema_that_is_there_is_not_written_over(tmp_path):
    data, path = tmp_path / "data.csv", tmp_path / "schema.toml"
    TABLE.write_csv(data)
    path.write_text("corrected by hand")
    for options, message in [
        (["--output", path], "--output must be a new file"),
        (["--output", data], "--output must be a file that ends in"),
        (["--target", "cost"], "--target must be a column of"),
    ]:
        refused(invoke("schema", data, *options), message)
    assert path.read_text() == "corrected by hand"


TARGET = "target = {center = 0, scale = 1}\n"
A = "columns.a = {center = 0, scale = 1}"
AMOUNTS = f"""
{A}
target = {{column = "y", scale = 2}}
exposure = {{column = "e", max = 365}}
weight = {{column = "w", max = 2.5}}
"""
OF_COLUMNS = [  # what the schema has of column a, or all of it
    ("quoted = 1\ncolumns.a = {}", "quoted = true or false, got 1"),
    ("columns = ", "a TOML file, got .*Invalid value"),
    ("[columns.a]\nscale=1\n[columns.a]\nscale=2", "a TOML file"),
    ("columns = {}", "at least one section"),
    ("columns.a = 3", r"two numbers .* in \[columns.a\]"),
    ("columns.a = {center = 0, scale = '1'}", "scale must be a number"),
    ("columns.a = {center = 0, scale = 0}", "scale must be positive"),
    (f"columns.a = {{center = 1{'0' * 400}, scale = 1}}", "columns.a"),
    ("columns.a = {categories = []}", "distinct"),
    ("columns.a = {categories = [1, true]}", "distinct"),
    ("columns.a = {categories = [[1]]}", "texts or numbers"),
    ("columns.a = {categories = ['nan']}", "none blank, nan, NaT or <NA>"),
    ("columns.a = {categories = 'ab'}", "a list"),
    ("columns.a = {levels = ['a', 'b']}", "write categories in the place of levels"),
    ("columns.a = {categories = ['a']}", r"two or more .* of .columns.a.,"),
    ("columns.a = {categories = ['a'], reference = 'a'}", "two or more levels"),
    ("columns.a = {categories = ['a', 'b'], reference = 'c'}", "one of them as refer"),
    ("columns.a = {categories = [1, 2], reference = [1]}", "one of them as reference"),
    ("columns.a = {categories = ['a'], others = 'a'}", "others = .reference., if"),
    ("columns.a = {categories = ['a', 'b'], refrence = 'a'}", "got .*'refrence': 'a'"),
    ("columns.a = {first = '2020-01-01'}", r"columns.a.: first and last must be given"),
    ("columns.a = {first = '2020-01-01', last = '2019-01-01'}", "a later days"),
    ("columns.a = {part = 'month', last = '2019-01-01'}", "left out for months"),
    ("columns.a = {part = 'month', format = '%d.%m'}", "with year, month and day"),
    ("columns.a = {part = 'hour'}", "part must be days or"),
    ("columns.a = {format = '%Y', center = 3}", "first, last, format and part alone"),
    (
        "columns.a = {categories = ['a', 'b'], reference = 'a', others = 'reference'}",
        "or with others",
    ),
]
OF_LABELS = r"be a file with positive, .* in \[target"
LABELS = "{}", "{positive = []}", "3", "{center = 1}"
OF_AMOUNTS = [
    ("scale = 2", "center = 3, scale = 2", "scale, and center 0 or non"),
    ("scale = 2", "scale = 0", "scale must be positive"),
    ("max = 365", "max = 0", r"column, a name, and max, a number .* .exposure"),
    ("max = 365", f"max = 1{'0' * 400}", r"and max, a number above zero, in .expo"),
    ('"w"', "7", r"column, a name, and max, .* in .weight"),
    (", max = 2.5", "", r"column, a name, and max, .* in .weight"),
]


@pytest.mark.parametrize(
    ("link", "text", "message"),
    [
        *(("identity", f"{TARGET}{text}", message) for text, message in OF_COLUMNS),
        ("identity", A, "two sections"),
        ("identity", "columns.a = {}\ntarget = {column = 3}", "as column in .target"),
        ("identity", f"target.positive = 'x'\n{A}", r"in \[target\]"),
        *(("logit", f"target = {target}\n{A}", OF_LABELS) for target in LABELS),
        ("softmax", f"target.classes = [1, 2]\n{A}", "categories in the place of cla"),
        ("softmax", f"target.categories = ['a']\n{A}", "a list of two classes or more"),
        ("logit", f"target.positive = [1, true]\n{A}", "distinct"),
        *(("log", AMOUNTS.replace(x, y), message) for x, y, message in OF_AMOUNTS),
    ],
)
def test_bad_schemas_are_refused(read, link, text, message):
    with pytest.raises(ValueError, match=f"--schema.*{message}"):
        read(text, link=link)


def test_a_target_may_have_several_classes_or_positive_labels(read):
    for name, link in (("categories", "softmax"), ("positive", "logit")):
        schema = read(f"target.{name} = ['x', 2]\n{A}", link=None)
        assert (schema.target, schema.link) == (Categorical(("x", "2")), link)


def test_amounts_have_a_scale_an_exposure_and_a_weight(read):
    schema = read(AMOUNTS, link="log")
    scale = 2 * 365  # of a target at the largest exposure
    bounded = BoundedColumn("e", 365)
    assert (schema.target, schema.exposure) == (Numeric(0, scale), bounded)
    assert schema.bounded == {"e": schema.exposure, "w": BoundedColumn("w", 2.5)}
    assert read(AMOUNTS, link=None).target == Numeric(0, 2)
    centered = AMOUNTS.replace("scale = 2", "center = 0.0, scale = 2")
    assert read(centered, link="log") == schema
    with pytest.raises(ValueError, match="center and scale, two numbers"):
        read(AMOUNTS, link="identity")


def test_empty_sections_are_left_open_only_where_that_is_allowed(read):
    text = "columns.a = {}\ncolumns.b = {center = 1, scale = 2}\ntarget = {}"
    schema = read(text, link="identity", allows_empty=True)
    assert schema == Schema({"a": None, "b": Numeric(1, 2)}, None)
    rule = r"in \[columns.a\]; or empty, with --private-"
    with pytest.raises(ValueError, match=rule):
        read(text, link="identity")
    rule = r"center and scale, .* \[columns.a\], got"
    for half in ("{center = 0}", "{scale = 1}", "3"):
        with pytest.raises(ValueError, match=rule):
            read(text.replace("{}", half, 1), link="identity", allows_empty=True)
