"""One odd cell changes its own record alone, in every container, and none raises."""

import decimal
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpjax import estimators, mechanisms, per_sample_grad, robust_grad, transforms
from dpjax.batching import Disjoint
from dpjax.datasets import Categorical, Numeric
from dpjax.gradients import by_user
from dpjax.sklearn import DPAdditiveClassifier, DPLinearRegression, DPLogisticRegression
from tests.unit.models import test_model

pytestmark = [
    pytest.mark.usefixtures("compiled_quickly"),
    pytest.mark.filterwarnings("ignore:About .* have no target"),
]
BIG = 2**53 + 1  # no number of float64
IDS = [BIG, 7, BIG - 1, 7, 0]
AMOUNTS = [decimal.Decimal(text) for text in ("1.10", "2.00", "0.50", "2.00", "7.25")]
FLOATS, TRUTHS = [1.5, -2.0, 0.25, 2.0, 1e16], [True, False, True, True, False]
TOWNS = ["Ghent", "Lier", "007", "Lier", "é"]
COLUMNS = {"ids": IDS, "amounts": AMOUNTS, "floats": FLOATS, "truths": TRUTHS}
COLUMNS |= {"towns": TOWNS}
# The columns that each type can hold, without a loss and with a missing cell.
PANDAS = {
    **{"Int64": ["ids"], "UInt64": ["ids"], "Float64": ["floats"]},
    **{"boolean": ["truths"], "string": ["towns"], "str": ["towns"]},
    **{"int64[pyarrow]": ["ids"], "double[pyarrow]": ["floats"]},
    **{"bool[pyarrow]": ["truths"], "string[pyarrow]": ["towns"], "category": COLUMNS},
}
ARROW = {
    **{pa.int64(): ["ids"], pa.decimal128(38, 2): ["amounts"], pa.bool_(): ["truths"]},
    **{pa.decimal128(38, 0): ["ids"], pa.float64(): ["floats"]},
    **{pa.string(): ["towns"], pa.large_string(): ["towns"]},
    pa.dictionary(pa.int8(), pa.string()): ["towns"],
}
POLARS = {
    **{pl.Int64: ["ids"], pl.Int128: ["ids"], pl.Decimal(38, 2): ["amounts"]},
    **{pl.Decimal(38, 0): ["ids"], pl.Float64: ["floats"], pl.Boolean: ["truths"]},
    **{pl.String: ["towns"], pl.Categorical: ["towns"]},
    pl.Enum(sorted({*TOWNS})): ["towns"],
}


def masked(cells):
    known = [cell is not None for cell in cells]
    filled = [cell if cell is not None else next(filter(None, cells)) for cell in cells]
    return np.ma.MaskedArray(np.array(filled), np.logical_not(known))


def typed():
    def of_pandas(cells, kind):
        return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(cells, kind)))

    makers = (
        ("", PANDAS, lambda cells, kind: pd.Series(cells, dtype=kind)),
        ("arrow ", ARROW, lambda cells, kind: pa.array(cells, kind)),
        ("pandas ", ARROW, of_pandas),
        ("polars ", POLARS, lambda x, kind: pl.Series(x, dtype=kind, strict=False)),
    )
    for library, kinds, make in makers:
        for kind, names in kinds.items():
            for name in names:
                yield f"{library}{kind}", name, partial(make, kind=kind)
    yield "masked", "ids", masked
    yield "categories", "ids", lambda cells: pd.Series(cells, dtype=CATEGORIES)


CATEGORIES = pd.CategoricalDtype([BIG, BIG - 1, 7, 0])
OBJECTS = {
    "list": list,
    "tuple": tuple,
    "array": lambda cells: np.fromiter(cells, object, len(cells)),
    "pandas": lambda cells: pd.Series(cells, dtype=object),
    "polars": lambda cells: pl.Series(cells, dtype=pl.Object),
}
ODD = [None, np.nan, pd.NA, pd.NaT, "?", "", "n/a", 1j, b"\xff", -1, 2.5, 10**400]
ODD += [(1, 2), "x" * 5000, np.datetime64("2020-01-01"), decimal.Decimal("sNaN")]
CASES = [(*each, None) for each in typed()]
CASES += [
    (kind, name, make, odd)
    for kind, make in OBJECTS.items()
    for name in COLUMNS
    for odd in ODD
]


def model(name):
    cells = COLUMNS[name]
    kinds = {"a": Categorical(tuple(dict.fromkeys(map(str, cells)))), "b": Numeric()}
    size = len(kinds["a"].categories)
    weights = np.array([*(10.0 ** np.arange(1, size + 1)), 1e-3, 0.0])
    return test_model.model(params=weights, columns=kinds, target=Numeric())


def expected(name):
    texts = list(map(str, COLUMNS[name]))
    return model(name).predict({"a": texts, "b": np.array(texts, object)})


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{a} {b} {x!r:.9}" for a, b, _, x in CASES]
)
def test_a_model_reads_each_cell_by_itself(case):
    _, name, make, odd = case
    made, truth, cells = model(name), expected(name), COLUMNS[name]
    for place in (0, 4):
        column = make([odd if i == place else x for i, x in enumerate(cells)])
        means = made.predict({"a": column, "b": column})
        np.testing.assert_array_equal(np.delete(means, place), np.delete(truth, place))
        assert odd is not None or means[place] == 0.0
    full = make(cells)
    np.testing.assert_array_equal(made.predict({"a": full, "b": full}), truth)


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_is_read_cell_by_cell(tmp_path, name, suffix):
    made, truth, path = model(name), expected(name), tmp_path / f"table{suffix}"
    for odd in [None, *(ODD[4:7] if suffix == ".csv" else ())]:
        cells = [odd, *COLUMNS[name][1:]]
        if suffix == ".csv":
            texts = ["" if odd is None else odd, *cells[1:]]
            path.write_text("\n".join(["a,b", *(f"{x},{x}" for x in texts)]))
        else:
            pq.write_table(pa.table({"a": cells, "b": cells}), path)
        np.testing.assert_array_equal(made.predict(path)[1:], truth[1:])


def test_a_text_of_arrow_that_is_not_utf8_is_replaced(tmp_path):
    """In its record alone, whatever else the column has, plain or as a dictionary."""
    data = pa.array([b"\xff", *(x.encode() for x in TOWNS[1:])], pa.binary())
    own = pa.Array.from_buffers(pa.string(), len(data), data.buffers())
    for column in (own, own.dictionary_encode(), pa.array(TOWNS)):
        table = pa.table({"a": column, "b": column})
        pq.write_table(table, tmp_path / "t.parquet")
        for source in (table, tmp_path / "t.parquet"):
            means = model("towns").predict(source)
            np.testing.assert_array_equal(means[1:], expected("towns")[1:])


TABLES = {
    "list": lambda cells: [[cell, 1] for cell in cells],
    "array": lambda cells: np.array([[cell, 1] for cell in cells], object),
    "pandas": lambda cells: pd.DataFrame({"a": OBJECTS["pandas"](cells), "b": 1}),
    "polars": lambda cells: pl.DataFrame(
        {"a": pl.Series(cells, dtype=pl.Object), "b": np.ones(len(cells))}
    ),
}
NUMBERS = [*np.linspace(-3.0, 3.0, 40).tolist()]
LINEAR = DPLinearRegression(epsilon=3.0, random_state=0)
LOGISTIC = DPLogisticRegression(classes=[0, 1], random_state=0)
BEYOND = np.array([[1e308, 1.0], [0.0, -1e308]])  # float32 has no such numbers
CLIPPING = estimators.Clipping(1.0)
SELECTION = {"sparsity": 1, "selection_scale": 1.0, "release_stddev": 1.0}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:9])
@pytest.mark.parametrize("kind", TABLES)
def test_a_fit_takes_each_cell_by_itself(kind, odd):
    """A table and targets with an odd cell give what the number in it gives."""
    number = float(odd) if (isinstance(odd, int | float) and abs(odd) < 9) else np.nan
    cells, plain = [odd, *NUMBERS[1:]], [number, *NUMBERS[1:]]
    rows = np.stack([plain, np.ones(40)], axis=1)
    labels = [odd, *[int(x > 0) for x in NUMBERS[1:]]]
    given = TABLES[kind](cells), OBJECTS[kind](cells)
    for model, fitted, same in (
        (LINEAR, given, (rows, np.array(plain))),
        (LOGISTIC, (rows, OBJECTS[kind](labels)), (rows, np.array([-1, *labels[1:]]))),
    ):
        np.testing.assert_array_equal(model.fit(*fitted).coef_, model.fit(*same).coef_)


@pytest.mark.parametrize("case", [*typed()], ids=lambda case: f"{case[0]} {case[1]}")
def test_a_type_reads_its_cells_one_by_one(case):
    """In a fit; of text, and of times, the type alone is refused."""
    _, name, make = case
    column = make([None, *COLUMNS[name][1:]] * 8)
    if isinstance(column, pa.Array):
        table = pa.table({"a": column})
    elif isinstance(column, np.ma.MaskedArray):
        table = column[:, None]
    else:
        table = column.to_frame()
    if name == "towns":
        with pytest.raises(ValueError, match="X must be of numbers, got column"):
            LINEAR.fit(table, np.arange(40))
        return
    plain = np.array([np.nan, *map(float, COLUMNS[name][1:])] * 8)
    weights = LINEAR.fit(table, column).coef_
    np.testing.assert_array_equal(weights, LINEAR.fit(plain[:, None], plain).coef_)


def test_categories_are_told_apart_to_the_last_digit():
    cells = pd.Series([BIG, BIG - 1, None, 7] * 500, dtype=CATEGORIES)
    labels = np.where(cells.array.codes == 0, "yes", "no")
    additive = DPAdditiveClassifier(epsilon=9.0, classes=["no", "yes"], random_state=0)
    additive.fit(pd.DataFrame({"a": cells, "b": 1.0}), labels)
    shape = additive.shapes_["a"]
    assert shape.grid.tolist() == [BIG, BIG - 1, 7, 0]
    assert shape.values[0] > shape.values[1] + 1


def privatized(key, x):
    private = transforms.privatize(CLIPPING, noise_multiplier=1.0, key=key)
    return private.update(x, private.init(jnp.zeros(2)))


CALLS = {
    "robust_grad": lambda key, x: robust_grad(jnp.vdot, CLIPPING)(jnp.ones(2), x),
    "per_sample_grad": lambda key, x: per_sample_grad(jnp.vdot)(jnp.ones(2), x),
    "by_user": lambda key, x: by_user(x, np.arange(2), num_users=2, records_per_user=1),
    "estimator": lambda key, x: CLIPPING(x),
    "privatize": privatized,
    "draw": lambda key, x: Disjoint().draw(Disjoint().init(key, 2, 2), x),
    "gaussian": lambda key, x: mechanisms.gaussian(key, x, stddev=1.0),
    "peeling": lambda key, x: mechanisms.peeling(key, x[0], **SELECTION),
    "exponential": lambda key, x: mechanisms.exponential(
        key, x[0], epsilon=1.0, sensitivity_range=1.0
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CALLS)
def test_numbers_beyond_float32_show_no_warning(name):
    CALLS[name](jax.random.key(0), BEYOND)
