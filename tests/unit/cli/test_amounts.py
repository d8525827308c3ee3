"""Counts and amounts on the command line: a log link, exposure, weights, factors."""

import jax
import numpy as np
import pytest

from dpjax import losses
from dpjax.datasets import Numeric
from dpjax.tables.cli._fit import fit, rows_of
from dpjax.tables.cli._ranges import plan_ranges, release_ranges
from dpjax.tables.cli._run import plan_training
from dpjax.tables.cli._schema import BoundedColumn, Schema
from dpjax.tables.cli._settings import Settings
from dpjax.tables.cli._sources import Table, encode_table
from dpjax.tables.cli._units import units_of
from tests.unit.cli.command import options, refused, run, tree, write_table

SCHEMA = """\
columns.age = {center = 40, scale = 20}
target = {column = "claims", scale = 1}
exposure = {column = "years", max = 2}
weight = {column = "w", max = 4}
"""
CELLS = {
    "age": ["20", "60", "?", "40", "80"],
    "claims": ["0", "1", "2", "-3", "x"],
    "years": ["1", "0.5", "9", "", "-1"],
    "w": ["4", "1", "8", "2", "n/a"],
}


def table(units=None):
    """Five records, with every rule that a cell can meet."""
    columns = {name: np.array(cells, object) for name, cells in CELLS.items()}
    bounded = BoundedColumn("years", 2), BoundedColumn("w", 4)
    schema = Schema({"age": Numeric(40, 20)}, Numeric(0, 1), None, *bounded)
    made = Table("t", columns, schema, "claims", np.zeros(5, bool))
    if units is None:
        return made
    return made.by_unit(units_of("who", units, 2))


def test_exposures_and_weights_are_shares_of_their_maximum():
    data = encode_table(table())
    assert data.exposures.tolist() == [0.5, 0.25, 1, 0, 0]
    assert data.weights.tolist() == [1, 0.25, 1, 0.5, 0]
    assert data.targets.tolist() == [0, 1, 2, -3, 0]
    people = encode_table(table(units=["a", "b", "a", "b", "c"]))
    assert people.exposures.tolist() == [0.5, 1, 0.25, 0, 0, 0]
    assert people.weights.tolist() == [1, 1, 0.25, 0.5, 0, 0]


def plan_of(loss="poisson", **options):
    asked = {"source": "t", "epsilon": 1.0, "delta": 1e-3, "loss": loss} | options
    return plan_training(Settings(**asked), table()).plan


def test_each_loss_is_the_one_of_its_power():
    for loss, power in (("poisson", 1.0), ("gamma", 2.0), ("tweedie", 1.5)):
        assert plan_of(loss).loss_fn == losses.log_link(power)
    assert plan_of("tweedie", power=1.75).loss_fn == losses.log_link(1.75)


def test_the_solver_sees_offsets_and_weights(monkeypatch):
    seen = {}

    def solver(loss, data, **options):
        seen.update(options, loss=loss, targets=data[1])

    plan, data = plan_of("tweedie", power=1.25), encode_table(table())
    monkeypatch.setattr("dpjax.tables.cli._fit.dp_linear_model", solver)
    rows = jax.tree.map(jax.numpy.asarray, rows_of(data))
    fit(plan, rows, key=jax.random.key(0))
    # Without exposure a record has no weight, whatever its weight or its target is.
    assert seen["weights"].tolist() == [1, 0.25, 1, 0, 0]
    np.testing.assert_allclose(seen["offsets"], np.log([0.5, 0.25, 1, 1, 1]))
    assert seen["loss"] == losses.log_link(1.25)
    assert "max_weight" not in seen  # they are shares of the public one


@pytest.fixture
def folder(here):
    """A working directory with those records and their schema."""
    write_table(CELLS)
    (here / "schema.toml").write_text(SCHEMA)
    return here


USES = "whose columns have one use each"


@pytest.mark.parametrize(
    ("old", "new", "loss", "message"),
    [
        ("scale = 1}", "center = 0, scale = 1}", "squared", "[exposure], which is lef"),
        ('"w"', '"none"', "poisson", "columns of data.csv"),
        *(('"w"', f'"{name}"', "poisson", USES) for name in ("years", "claims")),
    ],
)
def test_schemas_that_are_refused(folder, old, new, loss, message, monkeypatch):
    """Before a record is read."""
    monkeypatch.setattr("dpjax.tables.cli._sources.Draw.read", None)
    (folder / "schema.toml").write_text(SCHEMA.replace(old, new))
    before = tree(folder)
    result = run("data.csv", *options(schema="schema.toml", target=None, loss=loss))
    refused(result, message)
    assert result.stdout == ""
    assert tree(folder) == before


def test_a_scale_is_bought_without_a_center():
    rng = np.random.default_rng(0)
    amounts = 5_000 + 1_000 * rng.uniform(size=4_000)
    years = rng.choice([0.0, 0.5, 2.0], 4_000)
    columns = {"a": np.zeros(4_000), "y": years * amounts, "e": years}
    schema = Schema({"a": Numeric()}, None, None, BoundedColumn("e", 2.0))
    made = Table("t", columns, schema, "y", np.zeros(4_000, bool))
    planned = plan_ranges(made, 1.0, 1e-5)
    options = {"key": jax.random.key(0), "is_centered": False}
    bought, _ = release_ranges(planned, made, **options)
    (kind,) = bought.columns.values()
    assert kind.center == 0
    assert 5_000 < kind.scale < 7_500  # a bin of ten a decade
    assert bought.privacy.epsilon == 1.0
    closed = made.with_ranges(bought.columns).schema
    assert closed.target == Numeric(0, 2 * kind.scale)  # for the largest exposure
    assert closed.exposure == schema.exposure
