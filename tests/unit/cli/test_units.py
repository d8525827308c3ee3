"""Persons, not rows: what neighbors differ in, and what it costs."""

import jax
import numpy as np
import polars as pl
import pytest

from dpjax.accounting import gaussian_stddev
from dpjax.datasets import Numeric
from dpjax.tables.cli._curator import warn_curator
from dpjax.tables.cli._run import plan_training
from dpjax.tables.cli._schema import Schema
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Draw, Table, encode_table
from dpjax.tables.cli._train import read_private
from dpjax.tables.cli._units import name_of, units_of

PEOPLE = [(f"p{i % 40}", 1.0 + i) for i in range(100)]
NAMES = sorted({who for who, _ in PEOPLE})


def table(people, size=3, names=None):
    """A table of one record for each entry: (who, value)."""
    who, x = (np.array(column, object) for column in zip(*people, strict=True))
    columns = {"x": x, "y": x}
    schema = Schema({"x": Numeric(0, 1)}, Numeric(0, 1))
    plain = Table("t", columns, schema, "y", np.zeros(len(x), bool))
    return plain.by_unit(units_of("who", who, size, names))


def without(who, others=()):
    """The people with other records for one of them."""
    rest = [one for one in PEOPLE if one[0] != who]
    return [(who, x) for x in others[:1]] + rest + [(who, x) for x in others[1:]]


def changed(first, second, holdout):
    """The units of which two tables differ, where shapes and all others agree."""
    tables = [one.held_out(holdout) if holdout else one for one in (first, second)]
    is_test = tables[0].is_test
    units = []
    places = ("features", ~is_test, 3), ("test_features", is_test, 1)
    for name, chosen, size in places:
        one, other = (getattr(encode_table(data), name) for data in tables)
        assert one.shape == other.shape
        differ = np.flatnonzero((one != other).any(axis=1))
        units += [*np.flatnonzero(chosen)[np.unique(differ // size)]]
    return units


@pytest.mark.parametrize("others", [[], [7.0], [1e38] * 3, ["nan", 5, 6, 7, 8, 9, 10]])
@pytest.mark.parametrize("who", ["p0", "p23"])
@pytest.mark.parametrize("holdout", [None, 0.3])
@pytest.mark.parametrize("names", [None, NAMES])
def test_neighbors_differ_in_the_places_of_one_person(names, holdout, who, others):
    # Others come up in another order, too: the one's first record comes first.
    first, second = table(PEOPLE, names=names), table(without(who, others), names=names)
    if names is None and not others:
        assert second.units.num_units == 39  # as is public: that all have a record
    else:
        assert changed(first, second, holdout) == [NAMES.index(who)]


@pytest.mark.parametrize("holdout", [None, 0.3])
def test_a_person_with_another_name_counts_as_two_of_a_list(holdout):
    names = [*NAMES, "p99"]
    for name, units in (("p99", {9, 40}), ("p7", {9, 37}), ("stranger", {9})):
        renamed = [(name if who == "p17" else who, x) for who, x in PEOPLE]
        tables = (table(people, names=names) for people in (PEOPLE, renamed))
        assert {9} <= set(changed(*tables, holdout)) <= units


def test_names_do_not_depend_on_the_type_of_their_column(tmp_path):
    # One missing cell makes floats of integers, in what holds the records.
    of = {"i.npz": np.array([7, 10, 9]), "f.npz": np.array([7.0, 10.0, np.nan])}
    for name, cells in of.items():
        np.savez(tmp_path / name, who=cells)
    (tmp_path / "i.csv").write_text("who\n7\n10\n9\n")
    (tmp_path / "f.csv").write_text("who\n7.0\n10.0\n\n")
    plain = Settings(source="x", epsilon=1.0).text_format

    def read(name):
        draw = Draw(size=9, key=jax.random.key(0))
        return draw.read(tmp_path / name, ["who"], plain)[0]["who"]

    for name in ("i.npz", "f.npz", "i.csv", "f.csv"):
        assert [*map(name_of, read(name))][:2] == ["7", "10"]
    far = [2**62, 2**62 + 1, None]  # one name as float64
    pl.DataFrame({"who": far}).write_parquet(tmp_path / "i.parquet")
    assert units_of("who", read("i.parquet"), 1).num_units == 3


def test_places_hold_the_first_records_and_zeros():
    data = encode_table(table(PEOPLE))
    assert data.features.shape == (120, 2)
    assert data.features[:3].tolist() == [[1, 1], [41, 1], [81, 1]]
    # Of p39 there are two records, and nothing stands for a third.
    last = 3 * NAMES.index("p39")
    assert data.features[last : last + 3].tolist() == [[40, 1], [80, 1], [0, 0]]
    assert data.targets[last : last + 3].tolist() == [40, 80, 0]
    assert data.weights[last : last + 3].tolist() == [1, 1, 0]
    surplus = encode_table(table(PEOPLE, size=1))
    assert [f"p{x - 1:g}" for x in surplus.features[:, 0]] == NAMES
    unknown = units_of("who", np.array([None, "", "a", " "], object), 2)
    assert unknown.num_units == 2  # those without a value are one together


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"delta": 1e-4}, {"max_features": 1}], ids=str)
def test_a_person_has_the_privacy_that_is_asked_for(options):
    asked = {"source": "t", "epsilon": 2.0, "loss": "squared", "unit": "who"} | options
    people, settings = table(PEOPLE), Settings(**asked)
    run = plan_training(settings, people)
    assert run.budget.epsilon == 2.0
    (privacy,) = run.parts.values()
    assert 2.0 * (1 - 1e-9) < privacy.epsilon <= 2.0
    delta = options.get("delta", 40**-1.1)
    assert delta * (1 - 1e-9) <= privacy.delta <= delta
    words = "any one of the 40 groups of records with one who by any others, at least "
    assert f"Replacing {words}one, with the same who, changes" in privacy.description
    noise = privacy.dp_event.event.noise_multiplier  # of a unit
    assert noise >= gaussian_stddev(2.0, delta, sensitivity=1.0)
    assert run.plan.unit_size == 3


def test_nobody_on_a_list_need_have_a_record(tmp_path):
    path, schema, names = (tmp_path / x for x in ("data.csv", "s.toml", "names.txt"))
    path.write_text("who,x,y,z\n")
    text = "columns = {x = {center = 0, scale = 1}, z = {categories = ['a', 'b']}}\n"
    schema.write_text(text + "target = {column = 'y', center = 0, scale = 1}")
    names.write_text("\n".join(NAMES))
    asked = {"source": str(path), "epsilon": 1.0, "loss": "squared", "schema": schema}
    asked |= {"unit": "who", "records_per_unit": 2, "holdout": 0.3}
    read = read_private(Settings(unit_names=names, **asked), jax.random.key(0))
    warn_curator(read.schema, read.target, read.columns)
    data = encode_table(read)
    assert (data.features.shape, data.test_features.shape) == ((56, 3), (12, 3))
    assert not np.vstack([data.features, data.test_features]).any()
    with pytest.raises(ValueError, match="a file with at least one record"):
        read_private(Settings(**asked), jax.random.key(0))
