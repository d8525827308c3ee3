"""A saved model: what it predicts, in which units, and files that are none."""

import dataclasses
import io
import itertools
import json
import math
import pickle
import zipfile
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from dp_accounting import NonPrivateDpEvent

from dpjax import load_model, losses, read_guarantee
from dpjax.accounting import PrivacyGuarantee
from dpjax.datasets import Categorical, Numeric
from dpjax.solvers.training._curves import Curves
from dpjax.tables.columns._kinds import BoundedColumn, date_kind, encode
from dpjax.tables.models._model import Model, model_file
from tests.unit.refusals import refused

ROOMS, TOWN = Numeric(4, 2), Categorical(("Ghent", "Lier"))
REFERRED = Categorical(("Lier", "Mons", "Ghent"), "Mons")
COST = Numeric(0, 100)
WEIGHTS = np.array([2.0, 1.0, -1.0, 0.5], np.float32)
HEIGHTS = np.array([[3.0, 0.0, 1.0]], np.float32)
BENT = Curves(WEIGHTS, HEIGHTS, (-2.0, 0.0, 2.0), (0,), 3)
NOTHING = NonPrivateDpEvent()
TABLE = {"rooms": ["6", "?", "4"], "town": ["Ghent", "Mons", "Lier"], "more": [1, 2, 3]}
PRICES = [650.0, 350.0, 250.0]  # 300 + 100 (2 (rooms - 4) / 2 + town + 0.5)
DATES = ["2020-01-31", "2024-12-31", "1900-01-01", "2020-02-30", "2020-10-31"]
ERRORS = {
    "standard_errors": np.array([0.4, 0.1, np.inf, 0.2], np.float32),
    "correlations": np.eye(4, dtype=np.float32),
}


def model(**changes):
    given = {
        "params": WEIGHTS,
        "columns": {"rooms": ROOMS, "town": TOWN},
        "target_name": "price",
        "target": Numeric(300, 100),
        "target_unit": "price / 100",
        "link": "identity",
        "privacy": PrivacyGuarantee.of(1.0, 1e-5, dp_event=NOTHING, num_samples=40),
        "method": "by hand",
        "data": "homes.csv",
        "versions": {"dpjax": "0"},
    }
    return Model(**given | changes)


def test_predictions_are_in_the_units_of_the_target(tmp_path):
    frame, file, text = pl.DataFrame(TABLE), tmp_path / "t.csv", f"{tmp_path}/t.parquet"
    frame.write_csv(file)
    frame.write_parquet(text)
    for table in (TABLE, frame, file, text):
        assert model().predict(table).tolist() == PRICES
    made = model(params=np.array([0.5]), columns={})  # which counts the records
    assert made.predict(TABLE).tolist() == [350.0] * 3


@pytest.mark.parametrize(
    ("declared", "features"),
    [
        # From the center, 731 days after the first: two scales to each end.
        (
            {"first": "2020-01-01", "last": "2024-01-02"},
            [-1.917921, 2, -2, 0, -1.168263],
        ),
        (
            {"first": "2018-05-01", "last": "2022-05-01", "part": "year"},
            [0, 2, -2, 0, 0],
        ),
        ({"part": "month", "reference": "1"}, ["", "12", "", "", "10"]),
        ({"part": "weekday"}, ["Friday", "Tuesday", "", "", "Saturday"]),
    ],
)
def test_dates_are_numbers_of_days_or_years_or_categories(tmp_path, declared, features):
    kind = date_kind(**declared)
    if kind.categories:
        wanted = np.equal.outer(features, kind.encoded).astype(float)
    else:
        wanted = np.array(features)[:, None]
    columns, count = {"sold": kind}, wanted.shape[1]
    params = np.append(np.arange(1.0, count + 1), 0.5)
    made = model(params=params, columns=columns)
    texts = pl.DataFrame({"sold": DATES, "rooms": [1.0] * 5})
    typed = texts.with_columns(pl.col("sold").str.to_date(strict=False))
    times = typed.with_columns(pl.col("sold").cast(pl.Datetime))
    tables = [texts, typed, times, typed.to_arrow(), times.to_pandas()]
    tables += [{"sold": times["sold"].to_numpy()}, tmp_path / "t.csv"]
    texts.write_csv(tables[-1])
    for name, table in {"typed": typed, "times": times}.items():
        tables.append(tmp_path / f"{name}.parquet")
        table.write_parquet(tables[-1])
    tables.append(tmp_path / "t.npz")
    np.savez(tables[-1], sold=times["sold"].to_numpy())
    loaded = load_model(save(tmp_path, model_file(made)))
    assert loaded.columns == columns
    for table in tables:
        predicted = loaded.predict(table)
        np.testing.assert_allclose(
            predicted, 350 + 100 * wanted @ params[:-1], rtol=1e-5
        )
    hostile = [b"\xff", 1e300, object(), "9" * 5000, None, "2020-01-31x"]
    assert not kind.is_read(np.array(hostile, object)).any()
    with pytest.raises(ValueError, match="columns of dates must be none in a model to"):
        made.export("sql")
    with pytest.raises(ValueError, match="must be of text or numbers"):
        model().predict(typed.with_columns(pl.col("sold").alias("town")))


@pytest.mark.parametrize("params", [WEIGHTS, BENT], ids=["linear", "curves"])
@pytest.mark.parametrize("link", ["identity", "logit", "log", "softmax"])
def test_numpy_predicts_as_jax_does(link, params):
    columns = {"rooms": ROOMS, "town": TOWN}
    rooms = np.array([*np.linspace(-20, 20, 300), np.nan, 1e300, 1e25, -1e25, -1e300])
    towns = np.resize(["Ghent", "Lier", "", "Mons"], len(rooms))
    table = {"rooms": rooms, "town": towns}
    target = Categorical(("yes",)) if link == "logit" else COST
    if link == "softmax":
        target = Categorical(("a", "b"))
        params = jax.tree.map(lambda x: np.stack([x, -0.5 * x], axis=-1), params)
    made = model(columns=columns, link=link, params=params, target=target)
    features = np.hstack([encode(table, columns)[0], np.ones((len(rooms), 1), "f4")])
    is_bent = isinstance(params, Curves)
    scores = params.predict(features) if is_bent else jnp.asarray(features @ params)
    loss = {"identity": losses.squared, "logit": losses.logistic}
    loss["softmax"] = losses.softmax(2)
    means = loss.get(link, losses.log_link(1.0)).mean_of(scores)
    scale = getattr(target, "scale", 1.0)
    expected = scale * np.asarray(means, np.float64)
    np.testing.assert_allclose(made.predict(table), expected, 1e-5, 1e-6 * scale)


def test_coefficients_predict_as_the_model_does():
    weights = model().coefficients()
    for rooms, town, price in ((6, "Ghent", PRICES[0]), (4, "Lier", PRICES[2])):
        by_hand = weights["intercept"] + rooms * weights["rooms"]
        assert by_hand + weights[f"town={town}"] == pytest.approx(price)
    labels = model(link="logit", target=Categorical(("yes",)))
    odds = labels.coefficients()
    assert odds["intercept"] + 4 * odds["rooms"] == pytest.approx(0.5)
    assert (labels.positive, model().positive) == ("yes", None)


def test_a_reference_adds_nothing():
    made = model(columns={"rooms": ROOMS, "town": REFERRED})
    assert [*made.coefficients()] == ["rooms", "town=Lier", "town=Ghent", "intercept"]
    grid, values = made.shapes()["town"]
    assert (grid.tolist(), values.tolist()) == ([*REFERRED.categories], [100, 0, -100])
    table = TABLE | {"town": ["Mons", "?", "Ghent"]}
    assert made.predict(table).tolist() == [550.0, 350.0, 250.0]


def test_standard_errors_are_those_of_the_coefficients():
    summary = model(**ERRORS).summary(0.9)
    assert summary.names == [*model().coefficients()]
    # The intercept is where rooms are 0, two scales from their center.
    expected = [20, 10, np.inf, 100 * np.hypot(0.2, 0.8)]
    np.testing.assert_allclose(summary.standard_errors, expected, rtol=1e-6)
    np.testing.assert_allclose(summary.intervals[0], [67.1, 132.9], rtol=1e-3)
    rates = model(**ERRORS, link="log", target=COST).summary()
    assert rates.lines[1][4:] == ["2.718", "2.234 to 3.307"]


test_errors_that_are_refused = refused(
    lambda changes: model(**changes).summary(),
    ({}, "standard_errors must be those of a model that was trained"),
    (ERRORS | {"params": BENT}, "params must be weights if standard_errors"),
    (ERRORS | {"correlations": None}, "correlations must be of 4"),
    (ERRORS | {"standard_errors": np.zeros(4)}, "standard_errors must be positive"),
)


def test_curves_predict_as_they_are_shown():
    made = model(params=BENT)
    (grid, values), (towns, of_towns) = made.shapes().values()
    assert (grid.tolist(), values.tolist()) == ([0, 4, 8], [-100, 0, 500])
    assert (towns.tolist(), of_towns.tolist()) == (["Ghent", "Lier"], [100, -100])
    assert made.constant == 350
    by_hand = 350 + np.interp([6, 4, 4], grid, values) + [100, 0, -100]
    assert made.predict(TABLE).tolist() == by_hand.tolist() == [700, 350, 250]
    straight = model().shapes()
    assert straight["rooms"].grid.tolist() == [0, 8]
    assert straight["rooms"].values.tolist() == [-400, 400]
    held = model(columns={"rooms": Numeric(4, 2, 0.5), "town": TOWN}).shapes()
    assert held["rooms"].grid.tolist() == [3, 5]
    odds = model(params=BENT, link="log", target=COST)
    assert odds.shapes()["rooms"].values[-1] == 5
    assert odds.constant == pytest.approx(np.log(100) + 0.5)
    with pytest.raises(ValueError, match="params must be weights: of an additive"):
        made.coefficients()


def test_a_log_link_predicts_means_of_the_exposure():
    made = model(link="log", target=COST)
    means = 100 * np.exp([3.5, 0.5, -0.5])
    means[0] = 3000  # 30 scales
    assert made.predict(TABLE) == pytest.approx(means, rel=1e-5)
    assert made.mean_range == pytest.approx((0.1, 3000), rel=1e-5)
    weights = made.coefficients()
    by_hand = weights["intercept"] + 4 * weights["rooms"] + weights["town=Lier"]
    assert np.exp(by_hand) == pytest.approx(means[2])
    made = model(link="log", target=COST, exposure=BoundedColumn("years", 2.0))
    table = TABLE | {"years": ["1", "5", "-1"]}
    assert made.predict(table) == pytest.approx(means * [0.5, 1, 0], rel=1e-5)
    assert made.predict(TABLE) == pytest.approx(means / 2, rel=1e-5)
    yearly = made.coefficients()["intercept"]
    assert yearly == pytest.approx(weights["intercept"] - np.log(2))
    assert model().mean_range is None


def save(folder, content):
    path = folder / "model.npz"
    path.write_bytes(content)
    return path


SAVED = [
    {},
    {"params": BENT},
    ERRORS,
    {"columns": {"rooms": Numeric(4, 2, 0.5), "töwn,\n": TOWN}},
    {"columns": {"rooms": ROOMS, "town": REFERRED}},
    {"link": "logit", "target": Categorical(("yes",))},
    {"link": "log", "target": COST, "exposure": BoundedColumn("years", 2.0)},
    {"privacy": PrivacyGuarantee.of(math.inf, 0, dp_event=NOTHING)},
]
NO_CURVE, ONE_CURVE = np.zeros((0, 0)), np.zeros((1, 2))
CONTENT = json.loads(str(np.load(io.BytesIO(model_file(model())))["model"]))


@pytest.mark.parametrize("changes", SAVED)
def test_what_is_loaded_is_what_was_saved(tmp_path, changes):
    made, table = model(**changes), TABLE | {"töwn,\n": TABLE["town"]}
    content = model_file(made)
    assert content == model_file(made)
    path = save(tmp_path, content)
    names = "columns", "target", "link", "versions", "target_unit", "data", "exposure"
    for loaded in (load_model(path), load_model(str(tmp_path))):
        assert model_file(loaded) == content
        assert jax.tree.all(jax.tree.map(np.array_equal, loaded.params, made.params))
        assert loaded.predict(table).tolist() == made.predict(table).tolist()
        for name in names:
            assert getattr(loaded, name) == getattr(made, name)
        for name in ("epsilon", "delta", "relation", "description"):
            assert getattr(loaded.privacy, name) == getattr(made.privacy, name)


def archive(**entries):
    file = io.BytesIO()
    np.savez(file, **entries)
    return file.getvalue()


def changed(**entries):
    """A file whose JSON has other entries."""
    return filed(json.dumps(CONTENT | entries))


def filed(text, heights=NO_CURVE):
    """A file of zeros whose JSON is a text."""
    return archive(params=np.zeros(4), heights=heights, model=np.array(text))


def with_errors(**changes):
    """A file of standard errors, which nothing is wrong with but the changes."""
    with np.load(io.BytesIO(model_file(model(**ERRORS)))) as entries:
        return archive(**{**entries, **changes})


def bent(heights=ONE_CURVE, **changes):
    """A file of a curve, which nothing is wrong with but the changes."""
    content = CONTENT | {"curves": ["rooms"], "knots": [-1, 1]} | changes
    return filed(json.dumps(content), heights)


def shaped(size, name="params", compression=zipfile.ZIP_STORED):
    """A file whose weights or heights are said to be so many."""
    entry, file = io.BytesIO(), io.BytesIO(changed())
    about = {"descr": "<f8", "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(entry, about)
    with zipfile.ZipFile(file) as saved:
        entries = {name: saved.read(name) for name in saved.namelist()}
    entries[f"{name}.npy"] = entry.getvalue() + bytes(32)
    with zipfile.ZipFile(file := io.BytesIO(), "w", compression) as made:
        for name, content in entries.items():
            made.writestr(name, content)
    return file.getvalue()


class Attack:  # would make a file when a pickle of it is loaded
    def __reduce__(self):
        return (open, ("made", "w"))


SAVED_MODEL, PICKLED = model_file(model()), np.array([Attack()], dtype=object)
BROKEN = [
    *(b"", b"a,b\n12345,2\n", bytes(100), pickle.dumps(Attack())),
    *(SAVED_MODEL[:size] for size in (10, len(SAVED_MODEL) // 2, -1)),
    archive(params=np.zeros(4)),
    *(archive(params=np.zeros(4), model=x) for x in (PICKLED, np.zeros(2))),
    *(filed("{"), filed("3"), filed("[" * 100_000), filed("{}")),
    shaped(4, compression=zipfile.ZIP_DEFLATED),
]


@pytest.mark.parametrize("read", [load_model, read_guarantee])
def test_broken_files_are_refused_and_run_no_code(tmp_path, monkeypatch, read):
    monkeypatch.chdir(tmp_path)
    for content in BROKEN:
        with pytest.raises(ValueError, match=r"(model|path) must be a file") as error:
            read(save(tmp_path, content))
        assert "12345" not in str(error.value)  # which may be private
    assert not (tmp_path / "made").exists()
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.npz")


def test_files_that_are_no_models_are_refused(tmp_path):
    middle = bytearray(SAVED_MODEL)
    middle[80:90] = b"\xff" * 10
    town, privacy = CONTENT["columns"]["town"], CONTENT["privacy"]
    bad_scales = "2", [2], True, None, 10**400, float("inf")
    bad_privacy = {"epsilon": 10**400}, {"relation": ["REPLACE_ONE"]}
    sizes = itertools.product((10**20, 10**11, -4), ("params", "heights"))
    bad_errors = np.zeros(3), np.full((4, 4), np.nan), np.array("no")
    contents = [
        bytes(middle),
        archive(params=PICKLED, model=np.array("{}")),
        archive(params=np.zeros(4), model=np.array(json.dumps(CONTENT))),
        *(bent(curves=x) for x in ("rooms", None, ["x"], [0], ["rooms", "rooms"])),
        *(bent(knots=x) for x in ([1, -1], ["1", 2], [1], None, [1, 10**400])),
        *(bent(np.zeros(shape)) for shape in ((0, 0), (1, 3), (1,))),
        *(bent(np.zeros((1, 2), kind)) for kind in (int, "U1")),
        *(changed(columns={}), changed(columns=3), changed(link="exp")),
        changed(columns={"rooms": {"center": 0}, "town": {"categories": 3}}),
        # Values of other types, and numbers that nothing holds.
        *(changed(**{name: 3}) for name in ("method", "data", "exposure", "versions")),
        *(changed(link=["identity"]), changed(feature_names=[])),
        *(
            changed(columns={"rooms": {"center": 0, "scale": scale}, "town": town})
            for scale in bad_scales
        ),
        *(changed(privacy=privacy | x) for x in (*bad_privacy, {"description": None})),
        *(shaped(size, name) for size, name in sizes),
        *(with_errors(**{name: bad}) for name in ERRORS for bad in bad_errors),
        with_errors(standard_errors=np.full(4, -1.0)),
    ]
    for content in contents:
        with pytest.raises(ValueError, match="model must be a file that dpjax train"):
            load_model(save(tmp_path, content))
    for content in (changed(), bent(), with_errors()):  # which nothing is wrong with
        load_model(save(tmp_path, content))
    for version in (3, 1, None, True):
        path = save(tmp_path, changed(format=version))
        with pytest.raises(ValueError, match=f"format must be 2, or .*, got {version}"):
            load_model(path)


test_tables_that_are_refused = refused(
    lambda table: model().predict(table),
    ({"rooms": [1]}, r"\['town'\] are not in it"),
    (np.zeros((3, 2)), "table must be a data frame"),
    ({"rooms": [1, 2], "town": ["a"]}, "columns must be of one length"),
    ({"rooms": np.zeros(2, "M8[s]"), "town": ["a", "b"]}, "'rooms' must be of text or"),
)


def curves(**changes):
    return {"params": dataclasses.replace(BENT, **changes)}


EXPOSURE = {"exposure": BoundedColumn("years", 1.0)}
NO_EXPONENTIAL = "link must be log if there is an exposur"
test_models_that_are_refused = refused(
    lambda changes: changes() if callable(changes) else model(**changes),
    (partial(BoundedColumn, "years", 0.0), "max must be positive"),
    ({"link": "probit"}, "link must be identity or logit or log"),
    ({"link": "log"}, NO_EXPONENTIAL),
    ({"link": "log", "target": Categorical(("yes",))}, NO_EXPONENTIAL),
    (EXPOSURE, NO_EXPONENTIAL),
    (curves(slopes=np.zeros(4, int)), "params must be floats of shape .4,."),
    *(
        (curves(heights=heights), "params must be curves with float heights of shape")
        for heights in (np.zeros((1, 2)), np.zeros((1, 3), int))
    ),
    *(
        (curves(knots=knots), "params must be curves of 2 or more ascending knots")
        for knots in ((0.0, 0.0, 1.0), (0.0, 1.0, math.inf), (math.nan, 0, 1), (0.0,))
    ),
    *(
        (curves(smooth=smooth), "params must be curves of different features among")
        for smooth in ((), (1,), (0, 0))
    ),
    (curves(intercept=None), "params must be curves with the intercept at index 3"),
)
