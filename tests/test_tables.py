"""Files to columns: a cell changes its own record alone, and no value raises."""

import datetime
import gzip
import zipfile

import numpy as np
import polars as pl
import pytest

from dpjax._tables import column_names, read_columns
from dpjax.datasets import Categorical, Numeric, encode

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
