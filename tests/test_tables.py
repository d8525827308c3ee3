"""Files to columns: a cell changes its own record alone, and no value raises."""

import csv
import datetime
import decimal
import gzip
import io
import zipfile

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import _csv
from dpjax._tables import column_names, read_columns
from dpjax._texts import TextFormat, Texts, numbers_of
from dpjax.datasets import Categorical, Numeric, encode
from tests.refusals import refused

ODD_LINES = [
    b'"unclosed,1',
    b"",
    b"7",
    b"1,2,3,4",
    b"\xff\xfe,\x00",
    b"a\rb,2",
    b'"' + b"x" * 200_000 + b'",1',
    b"nan,inf",
    "٣,1_0".encode(),
    b'a"b,"c"d',
]


@pytest.fixture
def csv_file(tmp_path):
    def write(content):
        path = tmp_path / "data.csv"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("odd", ODD_LINES)
def test_a_line_of_csv_changes_its_own_record_alone(csv_file, odd):
    lines = [b"x,y", b"1,a", odd, b'3,"c, d"', b" 4 , e"]
    columns = read_columns(csv_file(b"\n".join(lines) + b"\n"), ["x", "y"])
    assert [column[[0, 2, 3]].tolist() for column in columns.values()] == [
        ["1", "3", "4"],
        ["a", "c, d", "e"],
    ]
    assert len(columns["x"]) == 4
    schema = {"x": Numeric(), "y": Categorical(("a",))}
    assert np.isfinite(encode(columns, schema)[0]).all()


def test_csv_takes_a_byte_order_mark_and_windows_lines(csv_file):
    path = csv_file(b'\xef\xbb\xbf"x, 1", y \r\n1,2\r\n')
    assert column_names(path) == ["x, 1", "y"]
    columns = read_columns(path, ["y"])
    assert {name: column.tolist() for name, column in columns.items()} == {"y": ["2"]}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".tsv"])
def test_delimiters_and_codecs_are_recognised(tmp_path, delimiter, codec, suffix):
    lines = [["x", "y", "z"], ["1", "é", "2.5"], ["3", '"a,b;c\td"', "4"]]
    text = "\r\n".join(delimiter.join(line) for line in lines) + "\r\n"
    path, content = tmp_path / f"data{suffix}", text.encode(codec)
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert column_names(path) == ["x", "y", "z"]
    columns = read_columns(path, ["z", "y"])
    assert columns["z"].tolist() == ["2.5", "4"]
    assert columns["y"].tolist() == ["é", "a,b;c\td"]


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("odd", [b"\xd8\x00", b"7", b"\n", b"\0", b'"\0\0', b""])
def test_an_odd_line_of_utf_16_changes_its_own_record_alone(csv_file, codec, odd):
    end = "\n".encode(codec)
    lines = ["x,y".encode(codec), "1,a".encode(codec), odd, "3,b".encode(codec), odd]
    columns = read_columns(csv_file(end.join([*lines, b""])), ["x", "y"])
    assert columns["x"].tolist()[::2] == ["1", "3"]
    assert len(columns["y"]) == 4


def test_a_compressed_file_that_is_cut_off(tmp_path):
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 9999)[:-20])
    with pytest.raises(ValueError, match="DATA must be a readable file"):
        read_columns(path, ["x"])


def test_parquet_kinds(tmp_path):
    path = tmp_path / "data.parquet"
    pl.DataFrame(
        {
            "number": pl.Series([1.5, None, float("nan")]),
            "integer": pl.Series([2**62, None, 3]),
            "flag": [True, None, False],
            "text": ["a", None, "b"],
            "enum": pl.Series(["a", None, "b"], dtype=pl.Enum(["a", "b"])),
            "empty": pl.Series([None, None, None], dtype=pl.Null),
            "date": [datetime.date(2020, 1, 1)] * 3,
        }
    ).write_parquet(path)
    names = column_names(path)
    columns = read_columns(path, names[:-1])
    assert columns["flag"].tolist()[::2] == [1.0, 0.0]
    assert columns["integer"].tolist() == [str(2**62), "", "3"]
    assert columns["enum"].tolist() == ["a", "", "b"]
    for name in names[:-1]:
        schema = {name: Numeric(), "text": Categorical(("a",))}
        assert np.isfinite(encode(columns, schema)[0]).all()
    with pytest.raises(ValueError, match="column 'date' holds Date"):
        read_columns(path, names)


def test_npz(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.array([1, np.inf]), y=np.array(["a", "b"]))
    assert column_names(path) == ["x", "y"]
    assert read_columns(path, ["y"])["y"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3), "y": np.ones(2)}, "one shape"),
        ({"x": np.ones((3, 2)), "y": np.ones((3, 2))}, "one shape"),
        ({"x": np.ones(()), "y": np.ones(())}, "one shape"),
        ({"x": np.ones(2, complex), "y": np.ones(2)}, "text or numbers"),
        ({"x": np.array([1, "a"], object), "y": np.ones(2)}, "allow_pickle"),
        ({"x": np.ones(0), "y": np.ones(0)}, "at least one record"),
    ],
)
def test_npz_with_wrong_shapes(tmp_path, arrays, message):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=f"DATA must be .*{message}"):
        read_columns(path, ["x", "y"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.txt", b"x,y\n", "ends in .csv, .csv.gz, .tsv, .tsv.gz, .parq"),
        ("data.csv", b"", "a file with named columns"),
        ("data.csv", b"x,y,x\n1,2,3\n", r"distinct names \(not \['x'\] twice"),
        ("data.parquet", b"x,y\n1,2\n", "a readable file"),
        ("data.npz", b"x,y\n1,2\n", "a readable file"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"DATA must be .*{message}"):
        column_names(path)


def test_npz_that_is_cut_off(tmp_path):
    path = tmp_path / "data.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=1000))
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    path.write_bytes(content)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ValueError, match="a readable file"):
        read_columns(path, ["x"])


def test_a_file_without_rows(csv_file):
    with pytest.raises(ValueError, match="DATA must be a file with at least one"):
        read_columns(csv_file(b"x,y\n"), ["x"])


CELLS = st.text(st.sampled_from([*'ab1"",;\n\r\t |\0é\u2028\ufeff']), max_size=6)


def read_back(path, content, names=("x", "y", "z"), encoding=None):
    path.write_bytes(content)
    columns = read_columns(path, [*names], text_format=TextFormat(encoding=encoding))
    return [*zip(*(column.tolist() for column in columns.values()), strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6),
    block=st.sampled_from([3, 16, 1 << 22]),
    style=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    delimiter=st.sampled_from([*",;\t|"]),
)
def test_what_a_writer_has_written_is_read_back(
    tmp_path_factory, rows, block, style, delimiter
):
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=style, delimiter=delimiter)
    writer.writerows([("x", "y", "z"), *rows])
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_csv, "_BLOCK", block)
        found = read_back(path, text.getvalue().encode())
    # A line break inside quotes is in its cell; blanks around cells are in none.
    blanks = " \t\n\r\u2028"
    expected = [tuple(cell.strip(blanks) for cell in row) for row in rows]
    assert [tuple(c.strip(blanks) for c in row) for row in found] == expected


LINES = st.binary(max_size=12).map(lambda line: line.replace(b"\n", b'"'))


@settings(max_examples=60, deadline=None)
@given(odd=LINES, block=st.sampled_from([3, 16, 1 << 22]))
def test_bytes_of_a_line_change_its_own_record_alone(tmp_path_factory, odd, block):
    lines = [b"x,y,z", b'1,"a",2', odd, b'3,"b, c",4', b'5,"d ""e""",6', b"7,f,8"]
    path = tmp_path_factory.mktemp("csv") / "data.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_csv, "_BLOCK", block)
        found = read_back(path, b"\n".join(lines))
    assert found[:1] + found[2:] == [
        ("1", "a", "2"),
        ("3", "b, c", "4"),
        ("5", 'd "e"', "6"),
        ("7", "f", "8"),
    ]


@pytest.mark.parametrize("cell", [b"a", b'SECRET "q', b'"', b'",', b'"x\ny"'])
def test_no_record_chooses_the_names(csv_file, cell):
    # A name may have a quote of its own, as for inches.
    path = csv_file(b'id,height 5",name\n1,2,x\n2,3,' + cell + b"\n3,4,b\n")
    assert column_names(path) == ["id", 'height 5"', "name"]
    assert read_columns(path, ["id"])["id"].tolist()[::2][:2] == ["1", "3"]
    path = csv_file(b'id,"height,name\n1,2,x\n2,3,' + cell + b"\n3,4,b\n")
    for read in (column_names, lambda path: read_columns(path, ["id"])):
        with pytest.raises(ValueError, match="its header is not one line"):
            read(path)


def test_a_quote_reaches_no_further_than_a_record_can(csv_file, monkeypatch):
    lines = [b"x,y", b'1,"a', b"b", b'c"', b'2,"a', b"b,c", b'd"e,3', b'4,"', b"5,6"]
    columns = read_columns(csv_file(b"\n".join(lines)), ["x", "y"])
    assert columns["x"].tolist() == ["1", "2", "b", 'd"e', "4", "5"]
    assert columns["y"].tolist() == ["a\nb\nc", '"a', "c", "3", '"', "6"]
    monkeypatch.setattr(_csv, "_LONGEST", 3)
    columns = read_columns(csv_file(b"\n".join(lines[:4])), ["x"])
    assert columns["x"].tolist() == ["1", "b", 'c"']


@pytest.mark.parametrize(
    ("encoding", "town"),
    [("latin-1", "Gh\u00e9nt"), ("cp1252", "Gh\u00e9nt"), (None, "Gh\ufffdnt")],
)
def test_bytes_that_do_not_decode_are_missing(csv_file, encoding, town):
    path = csv_file(b"x,y,z\n1,Gh\xe9nt,a\n2,Lier,b\n")
    text_format = TextFormat(encoding=encoding)
    column = read_columns(path, ["y"], text_format=text_format)["y"]
    assert column.tolist() == [town, "Lier"]
    found = Categorical(("Gh\u00e9nt", "Lier")).encode(column).tolist()
    assert found == [[float(encoding is not None), 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "encoding",
    ["utf-7", "shift_jis", "iso2022_jp", "hz", "gbk", "utf-16-le", "utf-16", "utf-8"],
)
def test_no_byte_of_an_encoding_takes_another_line(csv_file, encoding):
    end = "\n".encode("utf-16-le" if "16" in encoding else "ascii")
    name, cell = (
        "x".encode("utf-16-le" if "16" in encoding else "ascii"),
        b"\x81\x1b$B~{",
    )
    content = end.join([name, cell, name, cell + b"+AAo-", name, b""])
    text_format = TextFormat(encoding=encoding)
    column = read_columns(csv_file(content), ["x"], text_format=text_format)["x"]
    assert column.tolist()[1::2] == ["x", "x"]
    assert len(column) == 4


@pytest.mark.parametrize("name", ["no-such", "rot13", "cp037", "utf-32", "base64"])
def test_encodings_that_are_refused(name):
    with pytest.raises(ValueError, match="--encoding must be a text encoding"):
        TextFormat(encoding=name)


@pytest.mark.parametrize(
    ("options", "cells"),
    [
        (
            {},
            {"+1.5e2": 150, ".5": 0.5, "5.": 5, "1_8": None, "0x1": None, "1,5": None},
        ),
        (
            {},
            {"True": 1, "FALSE": 0, "nan": None, "inf": None, "1e400": None, "": None},
        ),
        (
            {"decimal": ","},
            {"1,5": 1.5, "1.5": None, "-,5e1": -5, "true": 1, "1_8": None},
        ),
        (
            {"thousands": ",", "currency": "$"},
            {
                "$1,200.5": 1200.5,
                "-$ 5": -5,
                "$-5": -5,
                "1,20": None,
                "$": None,
                "7": 7,
            },
        ),
        (
            {"decimal": ",", "thousands": " ", "currency": "EUR"},
            {"1\u00a0200,5 EUR": 1200.5, "12 00": None, "EUR3": 3, "3 USD": None},
        ),
    ],
)
def test_numbers_in_a_format(options, cells):
    column = Texts.of(cells, TextFormat(**options))
    expected = [np.nan if number is None else number for number in cells.values()]
    np.testing.assert_array_equal(column.numbers, expected)
    if not options:  # and so in an array, which has no other format
        np.testing.assert_array_equal(numbers_of(np.array([*cells], object)), expected)


test_formats_that_are_refused = refused(
    lambda options: TextFormat(**options),
    ({"decimal": ";"}, "--decimal"),
    ({"thousands": "."}, "--thousands"),
    ({"thousands": "x"}, "--thousands"),
    ({"currency": "1"}, "--currency"),
    ({"currency": ""}, "--currency"),
    said="{} must be ",
)


def test_parquet_of_many_types(tmp_path):
    path, ids = tmp_path / "data.parquet", [2**53, 2**53 + 1, None]
    pl.DataFrame(
        {
            "id": ids,
            "price": [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")],
            "kind": pl.Series(["a", None, "b"], dtype=pl.Categorical),
            "raw": [b"a", b"\xff", None],
            "when": [datetime.datetime(2020, 1, 1)] * 3,
            "nested": [[1], [2], None],
            "record": [{"a": 1}] * 3,
        }
    ).write_parquet(path)
    columns = read_columns(path, ["id", "price", "kind", "raw"])
    assert Categorical((str(2**53 + 1),)).encode(columns["id"]).sum() == 1
    np.testing.assert_array_equal(numbers_of(columns["id"])[:2], [2**53, 2**53])
    np.testing.assert_array_equal(numbers_of(columns["price"]), [1.5, np.nan, -2.25])
    assert columns["kind"].tolist() == ["a", "", "b"]
    assert Categorical(("a",)).encode(columns["raw"]).tolist() == [[1], [0], [0]]
    for name, kind in {
        "when": "Datetime",
        "nested": "List",
        "record": "Struct",
    }.items():
        with pytest.raises(ValueError, match=f"column '{name}' holds {kind}"):
            read_columns(path, [name])


def test_a_file_that_changes_while_it_is_read(csv_file, monkeypatch):
    path, blocks = csv_file(b"x,y\n1,2\n"), _csv._blocks

    def changing(path, encoding):
        yield from blocks(path, encoding)
        path.write_bytes(b"x,y\n1,2\n3,4\n")

    monkeypatch.setattr(_csv, "_blocks", changing)
    with pytest.raises(ValueError, match="written to while it was read"):
        read_columns(path, ["x"])
    with pytest.raises(ValueError, match="its columns have changed"):
        read_columns(csv_file(b"y,z\n1,2\n"), ["x"])


def test_one_row_and_wider_than_long(csv_file):
    names = [f"c{i}" for i in range(600)]
    lines = ",".join(names), ",".join(map(str, range(600)))
    columns = read_columns(csv_file("\n".join(lines).encode()), names[::-1])
    assert [column.tolist() for column in columns.values()] == [
        [str(i)] for i in range(600)
    ][::-1]
