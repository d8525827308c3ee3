"""The guarantee that files state: what the schema and the reader take, and refuse."""

import importlib.resources
import json
import math
import re

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, UnsupportedDpEvent

import dpjax
from dpjax import accounting, read_guarantee
from dpjax.tables._statement import Statement
from tests.unit.models.test_model import archive, model, model_file, shaped

SCHEMA = importlib.resources.files("dpjax.tables") / "privacy.schema.json"
SCHEMA = json.loads(SCHEMA.read_text("utf-8"))
KINDS = {"object": dict, "string": str, "number": int | float}


def fits(value, schema=SCHEMA):
    """Tells whether a value fits a JSON schema of the rules below; others raise."""
    rules = {
        "type": lambda x: isinstance(value, KINDS[x]) and value is not True,
        "const": lambda x: (type(value), value) == (type(x), x),
        "enum": lambda x: value in x,
        "pattern": lambda x: re.search(x, value) is not None,
        "minimum": lambda x: value >= x,
        "exclusiveMaximum": lambda x: value < x,
        "required": lambda x: {*x} <= {*value},
        "properties": lambda x: all(fits(value[k], x[k]) for k in x if k in value),
    }
    words = ("$schema", "title", "description")
    return all(rules[name](x) for name, x in schema.items() if name not in words)


def guarantee(**changes):
    given = {"epsilon": 1.0, "delta": 1e-5, "dp_event": GaussianDpEvent(3.75)}
    return accounting.PrivacyGuarantee.of(**given | changes)


PRIVACY = Statement.of(guarantee()).content()
# As earlier versions wrote it.
OLD = {x: PRIVACY[x] for x in ("epsilon", "delta", "relation", "description")}


def saved(folder, content):
    path = folder / "report.json"
    is_file = isinstance(content, bytes)
    path.write_bytes(content if is_file else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("relation", NeighboringRelation)
def test_what_is_read_is_what_was_stated(tmp_path, relation):
    unit = "group of records with one town by any others, with the same town,"
    privacy = guarantee(relation=relation, unit=unit)
    (tmp_path / "model.npz").write_bytes(model_file(model(privacy=privacy)))
    content = json.loads(str(np.load(tmp_path / "model.npz")["model"]))
    assert fits(content)
    assert content["privacy"]["dpjax"] == dpjax.__version__
    assert "GaussianDpEvent(noise_multiplier=3.75)" in content["privacy"]["mechanism"]
    for path in (tmp_path / "model.npz", saved(tmp_path, content)):
        read = read_guarantee(path)
        assert read == read_guarantee(str(path))
        for name in ("epsilon", "delta", "relation", "description"):
            assert getattr(read, name) == getattr(privacy, name)
        assert f"{read.unit}," == unit
        assert read.dp_event == UnsupportedDpEvent()


def test_files_of_earlier_versions_and_of_later_models_are_read(tmp_path):
    read = read_guarantee(saved(tmp_path, {"privacy": OLD, "format": 99}))
    assert (read.epsilon, read.delta, read.unit) == (1.0, 1e-5, "unknown")
    assert str(read) == str(guarantee())
    assert fits({"privacy": Statement.read(OLD).content()})
    later = PRIVACY | {"more": 1, "noise_key": "from the operating system"}
    assert read_guarantee(saved(tmp_path, {"privacy": later})).unit == "record"


WRONG = [
    *(("format", x) for x in (2, -1, 10**400, "1", 1.0, True, None)),
    *(("epsilon", x) for x in (-1e-9, math.nan, "1", True, None, [1])),
    *(("delta", x) for x in (-1e-9, 1, math.nan, "1", None)),
    *(("relation", x) for x in ("replace_one", "", 1, None, ["REPLACE_ONE"])),
    *(("unit", x) for x in ("", " ")),
    *((x, 1) for x in ("description", "unit", "mechanism", "dpjax")),
]
WORDS = "path must be a file of dpjax that states its guarantee .*, got '.*': "
LIMIT, NPZ = "dpjax.tables._statement._MOST_BYTES", model_file(model())
FOREIGN = {
    "it has no field privacy": (b"[12345]", b"3", b"{}", b'{"epsilon": 1}'),
    "privacy must be a dict": (b'{"privacy": 1}',),
    "JSONDecodeError": (json.dumps(PRIVACY).encode()[:-9],),
    "RecursionError": (b"[" * 100_000,),
    "model must be a str": (archive(model=np.zeros(())),),
}


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_does_not_fit_the_schema_is_refused(tmp_path, name, value):
    assert fits({"privacy": PRIVACY})
    wrong = {"privacy": PRIVACY | {name: value}}
    assert not fits(wrong)
    with pytest.raises(ValueError, match=f"{WORDS}.*{name}"):
        read_guarantee(saved(tmp_path, wrong))


def test_a_field_that_is_missing_is_refused(tmp_path):
    for name in PRIVACY.keys() - {"format"}:
        left = {"privacy": {x: y for x, y in PRIVACY.items() if x != name}}
        assert not fits(left)
        with pytest.raises(ValueError, match=f"{WORDS}KeyError, '{name}'"):
            read_guarantee(saved(tmp_path, left))


@pytest.mark.parametrize("words", FOREIGN)
def test_foreign_and_damaged_files_are_refused(tmp_path, words):
    for content in FOREIGN[words]:
        with pytest.raises(ValueError, match=f"{WORDS}.*{words}") as error:
            read_guarantee(saved(tmp_path, content))
        assert "12345" not in str(error.value)  # which may be private


def test_no_more_than_a_limit_is_read(tmp_path, monkeypatch):
    report = json.dumps({"privacy": PRIVACY}).encode()
    for content in (report, NPZ):
        path = saved(tmp_path, content)
        assert read_guarantee(path).epsilon == 1.0
        monkeypatch.setattr(LIMIT, len(report) - 1)
        with pytest.raises(ValueError, match=f"{WORDS}.*bytes of JSON must be at most"):
            read_guarantee(path)
        monkeypatch.undo()
    for size in (10**20, 10**11, -4):
        read_guarantee(saved(tmp_path, shaped(size)))  # of weights, which are not read
