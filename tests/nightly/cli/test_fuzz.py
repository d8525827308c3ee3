"""Files of strangers are read or refused by a `ValueError`, which shows no cell."""

import io
import os
import random
import zipfile
from datetime import date

import jax
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import load_model, read_guarantee
from dpjax._store import opened
from dpjax.accounting import PrivacyFilter
from dpjax.accounting._filter import Spending
from dpjax.tables.cli._ledger import Entry, Ledger, Source, read_ledger
from dpjax.tables.cli._release import RunFolder
from dpjax.tables.cli._schema import read_schema
from dpjax.tables.cli._units import read_names
from dpjax.tables.io._tables import column_names, read_columns, surveys
from dpjax.tables.io._texts import TextFormat
from tests.unit.cli.command import sheet
from tests.unit.models.test_model import model, model_file

CELL, KEY = "zqj", jax.random.key(0)  # a text that is in cells alone
TABLE = b'1,"zqj, 2",zqj\r\n,zqj "" zqj,"\n\xc3\xa9,zqj,\x00zqj\n2,zqj\n'
SCHEMA = b"""quoted = true
columns.rooms = {center = 4, scale = 2, limit = 9}
columns.region = {categories = ["south", 7, true], reference = "south"}
target = {column = "price", positive = "yes"}
exposure = {column = "years", max = 1}
"""
STATED = b'"epsilon": 1, "delta": 0, "relation": "REPLACE_ONE", "description": "zqj"'
ENTRY = Entry("a0", date(2026, 1, 2), "train", ("a model",), Spending(0.1, 0.0))
LEDGER = Ledger(PrivacyFilter(3.0, 1e-5), "id", Source("my.csv", 9, ("x",)), (ENTRY,))
WORDS = [bytes([byte]) for byte in b"\0\n\r\"',;=[]{}.#\xff9"]
WORDS += [b"inf", b"nan", b"-1", b"1e999", b"true", b"{}", b"2026-13-01", b"\\ud800"]
WORDS += [b"\xef\xbb\xbf", b"\xff\xfe", b"[" * 3_000, b"{a=" * 3_000, b"1" * 5_000]


def changed(content, rng):
    """Puts in words, leaves out or repeats parts, and cuts a file short."""
    content = bytearray(content)
    for _ in range(rng.randint(0, 3)):
        start = rng.randint(0, len(content))
        end = start + rng.choice([0, 1, 1, 3, 20])
        again = bytes(content[start : end + 9])
        content[start:end] = rng.choice([*WORDS, again, rng.randbytes(2)])
    end = rng.choice([None, None, None, rng.randint(0, len(content))])
    return bytes(content[:end])


def changed_archive(content, rng):
    """Changes the files in an archive, whose checksums are then right."""
    if rng.random() < 0.3:
        return changed(content, rng)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            inside = old.read(name)
            new.writestr(name, changed(inside, rng) if rng.random() < 0.5 else inside)
    return made.getvalue()


def read_table(path):
    rng = random.Random(path.read_bytes())
    options = {"quoted": rng.random() < 0.5, "last_lines": rng.choice([0, 1])}
    options |= {"decimal": rng.choice(".,"), "percent": rng.random() < 0.5}
    text_format = TextFormat(**options if path.suffix == ".csv" else {})
    surveys(path, text_format)
    names = column_names(path, text_format)
    for column in read_columns(path, names, text_format=text_format).values():
        assert len(column) == len(column.tolist())


def read_key(path):
    RunFolder(path.parent).kept_key()
    RunFolder(path.parent).bound(KEY, [])


def keep_key(folder):
    RunFolder(folder).bound(KEY, []).keep_key(KEY)
    return (folder / "key.npz").read_bytes()


def saved(write, **arrays):
    file = io.BytesIO()
    write(file, **arrays)
    return file.getvalue()


FRAME = pl.DataFrame({"rooms": [1, 2], "town": [CELL, CELL]})
FILES = {
    "my.csv": (lambda _: b"rooms,area,price\n" + TABLE, read_table),
    "my.parquet": (lambda _: saved(FRAME.write_parquet), read_table),
    "my.xlsx": (lambda _: sheet([["rooms", "town"], [1, CELL]]), read_table),
    "my.npz": (lambda _: saved(np.savez, rooms=[1], town=[CELL]), read_table),
    "schema.toml": (lambda _: SCHEMA, lambda path: read_schema(path, link=None)),
    "ledger.toml": (lambda _: LEDGER.text().encode(), read_ledger),
    "model.npz": (lambda _: model_file(model()), load_model),
    "key.npz": (keep_key, read_key),
    "report.json": (lambda _: b'{"privacy": {%s}}' % STATED, read_guarantee),
    "names.txt": (lambda _: TABLE, read_names),
}


@pytest.mark.filterwarnings("ignore:Reading .* required additional header:UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_read_or_refused(name, tmp_path):
    (make, read), path, whys = FILES[name], tmp_path / name, []
    content = make(tmp_path)
    change = changed_archive if name.endswith(("npz", "xlsx")) else changed
    # The first line of a text has names, which are public.
    head, rest = content[: 17 * name.endswith("csv")], content[17:]
    rest = rest if head else content

    @settings(max_examples=400, deadline=None, database=None)
    @given(st.integers(0, 2**64))
    def try_one(seed):
        path.write_bytes(head + change(rest, random.Random(seed)))
        try:
            read(path)
        except ValueError as why:
            whys.append(str(why))

    path.write_bytes(content)
    read(path)
    try_one()
    assert whys
    assert [why for why in whys if CELL in why] == []


def keep_state(folder):
    with opened(folder, {"data": "abc"}) as store:
        store.save(1, {"key": np.zeros(2)})


def keep_paid(folder):
    RunFolder(folder).keep_paid("entry", "settings")


@pytest.mark.parametrize("keep", [keep_key, keep_paid, keep_state])
def test_secrets_are_for_their_owner_alone(keep, tmp_path):
    folder, before = tmp_path / "kept", os.umask(0)
    try:
        keep(folder)
    finally:
        os.umask(before)
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o600 if path.is_file() else 0o700), path
