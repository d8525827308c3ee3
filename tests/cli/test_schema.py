"""The schema: what it may say, and its template."""

import tomllib

import pytest

from dpjax.cli._schema import Schema, read_schema, template
from dpjax.datasets import Categorical, Numeric

ODD_NAMES = ["age", "a b", 'quo"te', "dot.ted", "tab\t\x7f", "é", "", "back\\slash"]


def write(tmp_path, text):
    path = tmp_path / "schema.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_numbers_and_categories(tmp_path):
    path = write(
        tmp_path,
        """
        columns.a = {center = 1, scale = 2.5}
        columns.b = {categories = ["x", 3, true]}
        target = {center = 0, scale = 10}
        """,
    )
    assert read_schema(path, is_classification=False) == Schema(
        {"a": Numeric(1, 2.5), "b": Categorical(("x", "3", "true"))}, Numeric(0, 10)
    )


@pytest.mark.parametrize("is_classification", [True, False])
def test_the_template_is_a_schema(tmp_path, is_classification):
    text = template(ODD_NAMES, target="age", is_classification=is_classification)
    schema = read_schema(write(tmp_path, text), is_classification=is_classification)
    assert list(schema.columns) == ODD_NAMES[1:]
    assert set(schema.columns.values()) == {Numeric()}
    kind = Categorical(("yes",)) if is_classification else Numeric()
    assert (schema.target, schema.target_column) == (kind, "age")
    path = tmp_path / "schema.toml"
    assert read_schema(path, is_classification=None) == schema


def test_the_template_without_a_target_lists_every_column():
    assert list(tomllib.loads(template(ODD_NAMES))["columns"]) == ODD_NAMES


TARGET = "[target]\ncenter = 0\nscale = 1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("columns = ", "a TOML file, got .*Invalid value"),
        (f"{TARGET}[columns.a]\nscale=1\n[columns.a]\nscale=2", "a TOML file"),
        ("[columns.a]\ncenter = 0\nscale = 1", "two sections"),
        (f"{TARGET}[other]", "two sections"),
        (f"columns = 3\n{TARGET}", "at least one column"),
        (f"columns = {{}}\n{TARGET}", "at least one column"),
        (f"columns.a = 3\n{TARGET}", r"two numbers .* in \[columns.a\]"),
        (f"columns.a = {{center = 0}}\n{TARGET}", r"two numbers .* in \[columns.a\]"),
        (f"columns.a = {{center = 0, scale = '1'}}\n{TARGET}", "two numbers"),
        (f"columns.a = {{center = 0, scale = true}}\n{TARGET}", "two numbers"),
        (f"columns.a = {{center = 0, scale = 0}}\n{TARGET}", "scale must be positive"),
        (f"columns.a = {{center = nan, scale = 1}}\n{TARGET}", "center must be"),
        (f"columns.a = {{center = 1{'0' * 400}, scale = 1}}\n{TARGET}", "columns.a"),
        (f"columns.a = {{categories = []}}\n{TARGET}", "distinct"),
        (f"columns.a = {{categories = ['1', 1]}}\n{TARGET}", "distinct"),
        (f"columns.a = {{categories = [1, true]}}\n{TARGET}", "distinct"),
        (f"columns.a = {{categories = [[1]]}}\n{TARGET}", "texts or numbers"),
        ("columns.a = {}\ntarget = {column = 3}", "column of .target"),
        (f"columns.a = {{categories = 'ab'}}\n{TARGET}", "a list"),
        ("target.positive = 'x'\ncolumns.a = {center=0, scale=1}", r"in \[target\]"),
    ],
)
def test_what_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=f"--schema.*{message}"):
        read_schema(write(tmp_path, text), is_classification=False)


@pytest.mark.parametrize("target", ["{}", "{positive = []}", "3", "{center = 1}"])
def test_a_positive_that_is_refused(tmp_path, target):
    text = f"target = {target}\ncolumns.a = {{center = 0, scale = 1}}"
    with pytest.raises(ValueError, match=r"--schema must be positive, .* in \[target"):
        read_schema(write(tmp_path, text), is_classification=True)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match=r"--schema must be a file that exists"):
        read_schema(tmp_path / "none.toml", is_classification=True)


def test_empty_sections_are_left_open_only_where_that_is_allowed(tmp_path):
    text = "columns.a = {}\ncolumns.b = {center = 1, scale = 2}\ntarget = {}"
    path = write(tmp_path, text)
    schema = read_schema(path, is_classification=False, allows_empty=True)
    assert schema == Schema({"a": None, "b": Numeric(1, 2)}, None)
    with pytest.raises(
        ValueError, match=r"in \[columns.a\]; or empty, with --private-"
    ):
        read_schema(path, is_classification=False)
    for half in ("{center = 0}", "{scale = 1}", "3"):
        path = write(tmp_path, text.replace("{}", half, 1))
        with pytest.raises(
            ValueError, match=r"center and scale, .* \[columns.a\], got"
        ):
            read_schema(path, is_classification=False, allows_empty=True)
