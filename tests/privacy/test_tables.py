"""Files to columns: a cell changes its own record alone, and no value raises."""

import csv
import datetime
import decimal
import gzip
import io
import itertools
import sys
import zipfile
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.datasets import Categorical, Numeric
from dpjax.tables.cli._curator import count_cells
from dpjax.tables.columns._kinds import encode
from dpjax.tables.io import _csv
from dpjax.tables.io._tables import (
    column_names,
    declared_kinds,
    read_chunks,
    read_columns,
)
from dpjax.tables.io._texts import PLAIN, TextFormat, Texts, numbers_of
from tests.unit.cli.command import sheet


@pytest.fixture
def csv_file(tmp_path):
    def write(content):
        path = tmp_path / "data.csv"
        path.write_bytes(content)
        return path

    return write


# Lines of a table with the header x,y; {d} is its delimiter.
LINES = ["good{d}1", '"good{d}1', 'screen of 15"{d}1', '5"{d}"6"', '"a{d} b"{d}1']
LINES += ['a"b{d}"c"d', '"a ""b{d}c"" d" {d} "1"', '"a""{d}1', '"""', '"', '""']
LINES += ['""{d}""', "{d}", ",;\t|", "a{d}b{d}c{d}d", "7", " \t", "sep=;", "x{d}y"]
LINES += ["nan{d}inf", "Total{d}9", "\ufeff{d}\u2028\x85\x0b\x0c\x1c"]
LINES += ["\u0a05\u0100{d}\u0a0d\u0d0a", '\0{d}\x1a"\x1b', "\xe9{d}\u0663"]
LINES += ['"\U0001f600{d}1']
# Bytes that do not decode, or that switch to another alphabet.
BYTES = [b"\xff\xfe,\x00", b"\x81", b"\xe2\x82", b"\x1b$B", b"~{+AAo-", b"\x8130"]
WIDE_BYTES = [b"\x00\xd8", b"\xd8\x00", b"\xdc\x00", b"\x0a\x0a", b"\xff\xfe"]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"]
ENCODINGS += ["cp1252", "shift_jis", "gbk", "gb18030", "iso2022_jp", "hz", "utf-7"]
DECLARED = {"utf-8": None, "utf-8-sig": None, "utf-16": None}
END_IN_CELL = {"\n": "\r", "\r\n": "\r", "\r": "\n"}


def hostile(encoding, end, delimiter):
    """Returns a function that writes text, a plain line, and hostile ones, as bytes."""
    order = "utf-16-le" if encoding == "utf-16" else encoding.removesuffix("-sig")

    def written(text):
        return text.encode(order, "replace")

    lines = [line.format(d=delimiter) for line in LINES]
    other = END_IN_CELL[end]
    lines += [f"a{other}b{delimiter}1", other, f'"a{other}', f'b"{other}', "x" * 300]
    lines += [f'"{delimiter * 150}x']
    content = [*map(written, lines), *(WIDE_BYTES if "16" in encoding else BYTES)]
    return written, written(f"1{delimiter}p"), content


def records_of(path, lines, encoding, end):
    """Returns the records of a file with these lines, bytes of the encoding."""
    order = "utf-16-le" if encoding == "utf-16" else encoding.removesuffix("-sig")
    mark = {"utf-16": b"\xff\xfe", "utf-8-sig": b"\xef\xbb\xbf"}.get(encoding, b"")
    content = mark + b"".join(line + end.encode(order) for line in lines)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    form = TextFormat(encoding=DECLARED.get(encoding, encoding))
    columns = read_columns(path, ["x", "y"], text_format=form)
    return [*zip(*(column.tolist() for column in columns.values()), strict=True)]


@pytest.mark.parametrize("block", [1 << 22, 2_001])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_line_is_a_record_by_itself(tmp_path, monkeypatch, encoding, block):
    monkeypatch.setattr(_csv, "_BLOCK", block)
    monkeypatch.setattr(_csv, "_START", block)
    for end, delimiter in itertools.product(END_IN_CELL, ",;\t|"):
        path = tmp_path / ("t.tsv" if delimiter == "\t" else "t.csv")
        written, plain, lines = hostile(encoding, end, delimiter)
        head = [written(f"x{delimiter}y"), plain]
        content = [x for line in lines for x in (line, plain)]
        records = records_of(path, [*head, *content], encoding, end)
        assert records[::2] == [("1", "p")] * (len(lines) + 1)
        alone = records[1::2]
        # Each line follows each other one.
        pairs = [*itertools.product(range(len(lines)), repeat=2)]
        content = [lines[place] for pair in pairs for place in pair]
        records = records_of(path, [*head, *content], encoding, end)
        assert records == [("1", "p"), *(alone[i] for pair in pairs for i in pair)]


@pytest.mark.parametrize(
    ("encoding", "end"), [("utf-8", "\n"), ("utf-16", "\r\n"), ("shift_jis", "\r")]
)
def test_no_pair_of_lines_changes_another(tmp_path, encoding, end):
    path = tmp_path / "table.csv"
    written, plain, lines = hostile(encoding, end, ",")
    head = [written("x,y"), plain]
    alone = [records_of(path, [*head, line], encoding, end)[1] for line in lines]
    for i, j in itertools.product(range(len(lines)), repeat=2):
        records = records_of(path, [*head, lines[i], plain, lines[j]], encoding, end)
        assert records == [("1", "p"), alone[i], ("1", "p"), alone[j]]


def test_carriage_returns_alone_end_lines(csv_file):
    path = csv_file(b'x,y\r1,"a\r2,b\n\r')
    assert column_names(path) == ["x", "y"]
    assert read_columns(path, ["y"])["y"].tolist() == ['"a', "b"]
    with pytest.raises(ValueError, match="columns have changed") as refusal:
        read_columns(csv_file(b"x,z\rSECRET,2\r"), ["y"])
    assert "SECRET" not in str(refusal.value)


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize(
    ("suffix", "delimiter"),
    [(".csv", ","), (".csv", "\t"), (".csv.gz", ";"), (".TSV.gz", "\t")],
)
def test_delimiters_and_codecs_are_recognised(tmp_path, delimiter, codec, suffix):
    lines = [["x", "y", "z"], ["1", "é", "2.5"], ["3", '"a,b;c\td"', "4"]]
    text = "\r\n".join(delimiter.join(line) for line in lines) + "\r\n"
    path, content = tmp_path / f"data{suffix}", text.encode(codec)
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert column_names(path) == ["x", "y", "z"]
    columns = read_columns(path, ["z", "y"])
    assert columns["z"].tolist() == ["2.5", "4"]
    assert columns["y"].tolist() == ["é", "a,b;c\td"]


def test_npz_files_hold_one_column_of_text_or_numbers_for_each_array(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.array([1, np.inf]), y=np.array(["a", "b"]))
    assert column_names(path) == ["x", "y"]
    assert read_columns(path, ["y"])["y"].tolist() == ["a", "b"]
    for x, y, message in (
        (np.ones(3), np.ones(2), "one shape"),
        *((np.ones(shape), np.ones(shape), "one shape") for shape in ((3, 2), ())),
        (np.ones(2, complex), np.ones(2), "text or numbers"),
        (np.array([1, "a"], object), np.ones(2), "allow_pickle"),
        (np.ones(0), np.ones(0), "at least one record"),
    ):
        np.savez(path, x=x, y=y)
        with pytest.raises(ValueError, match=f"DATA must be .*{message}"):
            read_columns(path, ["x", "y"])
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=1000))
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ValueError, match="a readable file"):
        read_columns(path, ["x"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.txt", b"x,y\n", "ends in .csv, .csv.gz, .tsv, .tsv.gz, .xlsx"),
        ("data.csv", b"", "a file with named columns"),
        ("data.csv", b"\n1,2\n", "a file with named columns"),
        ("data.csv", b"x,y,x\n1,2,3\n", r"distinct names \(not \['x'\] twice"),
        ("data.csv", b"x,Sales,Sales\nx,y,z\n", "--skip-lines"),
        ("data.csv", gzip.compress(b"x,y\n1,2\n", mtime=0), "compressed by gzip"),
        ("data.csv", b"PK\x03\x04\x14\x00", "rename it, to end in .xlsx"),
        ("data.csv", b"\xd0\xcf\x11\xe0\xa1", "save it as .xlsx, or as CSV"),
        ("data.csv", b"PAR1\x15\x04\x15", "to end in .parquet"),
        ("data.csv", b"BZh91AY&SY\x01\n1", "its header is not text"),
        ("data.csv", b"Gr\xf6\xdfe,y\n1,2\n", "not text in UTF-8"),
        ("data.csv.bz2", b"x,y\n1,2\n", "ends in .csv"),
        ("data.jsonl", b"{}\n", "ends in .csv"),
        ("data.parquet", b"x,y\n1,2\n", "a readable file"),
        ("data.npz", b"x,y\n1,2\n", "a readable file"),
        ("data.xlsx", b"x,y\n1,2\n", "a readable file"),
        ("data.xlsx", sheet([]), "a file with named columns; --skip-lines"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"DATA must be .*{message}"):
        column_names(path)


@pytest.mark.parametrize("other", ["year=2021", "b.jsonl", "c.csv.bz2", "notes.txt"])
def test_a_folder_leaves_nothing_out(tmp_path, other):
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "_SUCCESS").write_text("")
    assert read_columns(tmp_path, ["x"])["x"].tolist() == ["1"]
    (tmp_path / other).mkdir()
    with pytest.raises(ValueError, match=f"a folder of such alone, without {other}"):
        column_names(tmp_path)


@pytest.mark.parametrize("num_rows", [0, 2])
def test_names_of_files_are_no_patterns(tmp_path, num_rows):
    (tmp_path / "year=2021").mkdir()
    path = tmp_path / "year=2021" / "[1]?*.parquet"
    numbers = [float(i) for i in range(num_rows)]
    pl.DataFrame({"x": numbers}, schema={"x": pl.Float64}).write_parquet(path)
    pl.DataFrame({"y": [3]}).write_parquet(path.with_name("1ab.parquet"))
    assert (column_names(path), declared_kinds(path)) == (["x"], {"x": "numbers"})
    assert all_cells(path, "x") == numbers
    for option, value in {"skip_lines": 1, "last_lines": 2, "row_names": True}.items():
        rule = f"--{option.replace('_', '-')} must be left out .*no lines, got {value}"
        with pytest.raises(ValueError, match=rule):
            column_names(path, TextFormat(**{option: value}))


def test_files_without_records_or_cut_short_are_refused(tmp_path, csv_file):
    with pytest.raises(ValueError, match="DATA must be a file with at least one"):
        read_columns(csv_file(b"x,y\n"), ["x"])
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 9999)[:-20])
    with pytest.raises(ValueError, match="DATA must be a readable file"):
        read_columns(path, ["x"])


DATE, EUROS = datetime.datetime(2020, 1, 1), {"decimal": ",", "thousands": "."}
IN_SHEETS = [  # rows of a sheet, and the texts of their cells
    ([1.5, "a\tb\n"], ["1,5", "a\tb"]),
    ([2**53, ' "'], ["9007199254740992", '"']),
    ([1 / 3, True, "surplus"], ["0,3333333333333333", "True"]),
    ([1e-12, DATE], ["1e-12", "2020-01-01"]),
    (["1.234,5", datetime.time(3)], ["1.234,5", "03:00:00"]),
    ([-1e300, 'x"\r'], ["-1e+300", 'x"']),
    ([None, "#DIV/0!"], ["", "#DIV/0!"]),
    (["  ", "=1/0"], ["", ""]),  # a formula that no program has computed
    ([], ["", ""]),
]
CELLS = st.text(st.sampled_from([*'ab1"",;\n\r\t |\0é\u2028\ufeff']), max_size=6)


@pytest.mark.parametrize("rows", [1, 2, 1 << 16])
def test_a_row_of_a_sheet_is_a_record_by_itself(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(_csv, "_ROWS", rows)
    path, form = tmp_path / "data.xlsx", TextFormat(skip_lines=2, last_lines=3, **EUROS)
    # Each row follows each other one.
    pairs = [x for pair in itertools.product(IN_SHEETS, repeat=2) for x in pair]
    own = [[*row[:1], "z", *row[1:]] if row else row for row, _ in pairs]
    title, sums = [["Sales of 2023"], [], ["x", None, "y"]], [["Total", 9], [], [" "]]
    path.write_bytes(sheet([*title, *own, *sums]))
    assert column_names(path, form) == ["x", "column 2", "y"]
    columns = read_columns(path, ["x", "y"], text_format=form)
    assert columns["x"].tolist() == [texts[0] for _, texts in pairs]
    assert columns["y"].tolist() == [texts[1] for _, texts in pairs]
    numbers = Texts.of([texts[0] for _, texts in IN_SHEETS], form).numbers
    assert numbers[:6].tolist() == [1.5, 2**53, 1 / 3, 1e-12, 1234.5, -1e300]


def test_cells_that_excel_cannot_show_stop_nothing(tmp_path, monkeypatch):
    # A date beyond the year 9999 has a warning of its own, with the cell.
    path, rows = tmp_path / "data.xlsx", [["x", "y"], [1e300, 7], [-1e300, 8]]
    path.write_bytes(sheet(rows, A2="yyyy-mm-dd", A3="[h]:mm"))
    columns = read_columns(path, ["x", "y"])
    assert columns["y"].tolist() == ["7", "8"]
    assert np.isnan(columns["x"].numbers).all()
    # Only a file that no program has written has a text for a number.
    with zipfile.ZipFile(path) as book, zipfile.ZipFile(tmp_path / "odd", "w") as odd:
        for name in book.namelist():
            odd.writestr(name, book.read(name).replace(b"<v>7</v>", b"<v>SECRET</v>"))
    (tmp_path / "odd").rename(path)
    with pytest.raises(ValueError, match="not written as Excel writes") as refusal:
        read_columns(path, ["x"])
    assert "SECRET" not in str(refusal.value)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(ImportError, match=r'openpyxl: pip install "dpjax\[excel\]"'):
        column_names(path)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6),
    block=st.sampled_from([3, 16, 1 << 22]),
    style=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    delimiter=st.sampled_from([*",;\t|"]),
)
def test_what_is_written_is_read_back(tmp_path_factory, rows, block, style, delimiter):
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=style, delimiter=delimiter)
    writer.writerows([("x", "y", "z"), *rows])
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    path.write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_csv, "_BLOCK", block)
        patch.setattr(_csv, "_START", max(block, 32))
        columns = read_columns(path, [*"xyz"], text_format=TextFormat(quoted=True))
    cells = zip(*(column.tolist() for column in columns.values()), strict=True)
    # A line break inside quotes is in its cell; blanks around cells are in none.
    blanks = " \t\n\r\u2028"
    expected = [tuple(cell.strip(blanks) for cell in row) for row in rows]
    assert [tuple(c.strip(blanks) for c in row) for row in cells] == expected


@pytest.mark.parametrize("cell", [b"a", b'SECRET "q', b'"', b'",'])
def test_no_record_chooses_the_names(csv_file, cell):
    # A name may have a quote of its own, as for inches.
    path = csv_file(b'id,height 5",name\n1,2,x\n2,3,' + cell + b"\n3,4,b\n")
    assert column_names(path) == ["id", 'height 5"', "name"]
    assert read_columns(path, ["id"])["id"].tolist()[::2][:2] == ["1", "3"]
    path = csv_file(b'id,"height,name\n1,2,x\n2,3,' + cell + b"\n3,4,b\n")
    for read in (column_names, lambda path: read_columns(path, ["id"])):
        with pytest.raises(ValueError, match="its header is not one line"):
            read(path)


def all_cells(path, name, text_format=PLAIN):
    """The cells of a column, of any number of records."""
    chunks = read_chunks(path, [name], text_format)
    return [cell for chunk in chunks for cell in chunk[name].tolist()]


SUMS = {"skip_lines": 2, "last_lines": 2}
LINES_OF = {
    "titles and sums": ("Sales;;\n\nx;y\n1;a\nTotal;a\n\n", SUMS, ["a"]),
    "a separator": ("sep=;\nx;y,z\n1;a\n", {}, ["a"]),
    "a separator that is counted": ("sep=;\nx;y\n1;a\n", {"skip_lines": 1}, ["a"]),
    "row names": ('"x","y"\n"1",5,a\n"2",6,b\n', {"row_names": True}, ["a", "b"]),
    "blank names": ("x,,\n1,2,a\n", {}, ["a"]),
    "delimiters in quotes": ('"x;1;2;3",y\n1,a\n', {}, ["a"]),
    "blank lines are records": ("x,y\n1,a\n\n2,b\n\n", {}, ["a", "", "b", ""]),
    "more last lines than records": ("x,y\n1,a\n", {"last_lines": 9}, []),
    "a header in quotes": ('x,"y\nz"\n1,a\n', {"quoted": True}, ["a"]),
    "an open record": ('x,y\n1,a\n2,"b\n3,c\n', {"quoted": True}, ["a", '"b\n3']),
}


@pytest.mark.parametrize("block", [1, 1 << 22])
@pytest.mark.parametrize("kind", LINES_OF)
def test_titles_sums_and_separators_are_no_records(csv_file, monkeypatch, kind, block):
    monkeypatch.setattr(_csv, "_BLOCK", block)
    monkeypatch.setattr(_csv, "_START", max(block, 6))
    text, options, cells = LINES_OF[kind]
    path, text_format = csv_file(text.encode()), TextFormat(**options)
    *first, last = column_names(path, text_format)
    assert first in (["x"], ["column 1", "x"], ["x", "column 2"], ["x;1;2;3"])
    assert (last == "column 3") == (kind == "blank names")
    assert all_cells(path, last, text_format) == cells


@pytest.mark.parametrize(
    ("encoding", "town"),
    [("latin-1", "Gh\u00e9nt"), ("cp1252", "Gh\u00e9nt"), (None, "Gh\ufffdnt")],
)
def test_bytes_that_do_not_decode_are_missing(csv_file, encoding, town):
    path = csv_file(b"x,y,z\n1,Gh\xe9nt,a\n2,Lier,b\n")
    column = read_columns(path, ["y"], text_format=TextFormat(encoding=encoding))["y"]
    assert column.tolist() == [town, "Lier"]
    encoded = Categorical(("Gh\u00e9nt", "Lier")).encode(column).tolist()
    assert encoded == [[float(encoding is not None), 0.0], [0.0, 1.0]]


COMMA = {"decimal": ","}
NUMBERS = [  # a format, and numbers of cells
    ({}, {"+1.5e2": 150, ".5": 0.5, "5.": 5, "1_8": None, "0x1": None, "1,5": None}),
    ({}, {"True": 1, "FALSE": 0, "nan": None, "inf": None, "1e400": None, "": None}),
    (COMMA, {"1,5": 1.5, "1.5": None, "-,5e1": -5, "true": 1, "1_8": None}),
    (
        {"thousands": ",", "currency": "$"},
        {"$1,200.5": 1200.5, "-$ 5": -5, "$-5": -5, "1,20": None, "$": None, "7": 7},
    ),
    (
        {"percent": True},
        {"12%": 0.12, "-1.5 %": -0.015, "7": 7, "%": None, "1e3%": None},
    ),
    (COMMA | {"percent": True}, {"12,5\u00a0%": 0.125, "1.5%": None, "5 % %": None}),
    (
        COMMA | {"thousands": " ", "currency": "EUR"},
        {"1\u00a0200,5 EUR": 1200.5, "12 00": None, "EUR3": 3, "3 USD": None},
    ),
]


def test_cells_are_numbers_in_the_format_of_their_file():
    for options, cells in NUMBERS:
        column = Texts.of(cells, TextFormat(**options))
        expected = [np.nan if number is None else number for number in cells.values()]
        np.testing.assert_array_equal(column.numbers, expected)
        if not options:  # and so in an array, which has no other format
            column = np.array([*cells], object)
            np.testing.assert_array_equal(numbers_of(column), expected)


def test_texts_of_a_file_are_encoded_as_those_of_an_array():
    ids = ["103241243500726324", "103241243500726320", "103241243500726324.0"]
    codes = ["250.1", "250.10", "250", "250.00", "1.5"]
    missing = [None, np.nan, pd.NA, pd.NaT, np.datetime64("NaT"), " "]
    for cells, names in (
        *((ids, (ids[0],)), (codes, tuple(codes))),
        (missing, ("NA", "None", "a")),
    ):
        kind, column = Categorical(names), Texts.of(cells)
        encoded = kind.encode(column)
        np.testing.assert_array_equal(encoded, kind.encode(np.array(cells, object)))
    assert np.isnan(numbers_of(column)).all()
    assert np.isnan(numbers_of(np.array(missing, object))).all()
    cells = [10**5000, Fraction(10**5000), [10**5000], np.array([1]), "1" * 5000, None]
    for kind in (Numeric(), Categorical(("1",))):
        assert count_cells(kind, np.array(cells, object))[:3] == (6, 1, 5)


def test_formats_that_are_refused():
    for name, bad in (
        ("decimal", ";"),
        *(("thousands", x) for x in (".", "x")),
        *(("currency", x) for x in ("1", "")),
        *(("encoding", x) for x in ("no-such", "rot13", "cp037", "utf-32", "base64")),
    ):
        with pytest.raises(ValueError, match=f"--{name} must be "):
            TextFormat(**{name: bad})


def test_parquet_columns_of_every_type_are_read_or_refused(tmp_path):
    path, texts = tmp_path / "data.parquet", ["a", None, "b"]
    frame = {
        "id": [2**53, 2**53 + 1, None],
        "price": [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")],
        "kind": pl.Series(texts, dtype=pl.Categorical),
        "raw": [b"a", b"\xff", None],
        "number": pl.Series([1.5, None, float("nan")]),
        "flag": [True, None, False],
        "enum": pl.Series(texts, dtype=pl.Enum(["a", "b"])),
        "empty": pl.Series([None] * 3, dtype=pl.Null),
        "when": [datetime.datetime(2020, 1, 1)] * 3,
        **{"nested": [[1], [2], None], "record": [{"a": 1}] * 3},
    }
    pl.DataFrame(frame).write_parquet(path)
    names = column_names(path)[:-3]
    columns = read_columns(path, names)
    for name in names:
        schema = {name: Numeric(), "kind": Categorical(("a",))}
        assert np.isfinite(encode(columns, schema)[0]).all()
    assert columns["flag"].tolist()[::2] == [1.0, 0.0]
    assert columns["enum"].tolist() == columns["kind"].tolist() == ["a", "", "b"]
    assert Categorical((str(2**53 + 1),)).encode(columns["id"]).sum() == 1
    np.testing.assert_array_equal(numbers_of(columns["id"])[:2], [2**53, 2**53])
    np.testing.assert_array_equal(numbers_of(columns["price"]), [1.5, np.nan, -2.25])
    assert Categorical(("a",)).encode(columns["raw"]).tolist() == [[1], [0], [0]]
    types = {"when": "timestamp", "nested": "large_list", "record": "struct"}
    for name, kind in types.items():
        with pytest.raises(ValueError, match=f"column '{name}' holds {kind}"):
            read_columns(path, [name])


def test_a_file_that_changes_while_it_is_read(csv_file, monkeypatch):
    path, lines = csv_file(b"x,y\n1,2\n"), _csv._lines

    def changing(path, encoding, **options):
        yield from lines(path, encoding, **options)
        path.write_bytes(b"x,y\n1,2\n3,4\n")

    monkeypatch.setattr(_csv, "_lines", changing)
    with pytest.raises(ValueError, match="written to while it was read"):
        read_columns(path, ["x"])
    with pytest.raises(ValueError, match="its columns have changed"):
        read_columns(csv_file(b"y,z\n1,2\n"), ["x"])
