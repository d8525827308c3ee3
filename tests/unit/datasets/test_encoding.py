"""Columns to features: public constants, no value that raises; bundled data sets."""

import functools
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from dpjax import datasets
from dpjax.datasets import Categorical, Numeric, _adult, _rand_hie
from dpjax.datasets._dataset import bundled, encode, read_columns
from tests.unit.refusals import refused

pd = pytest.importorskip("pandas")
ODD_CELLS = ["", "?", "abc", "nan", "inf", "-inf", "1e400", "1e300", "\x00", "1,5"]


@pytest.mark.parametrize("dtype", [object, np.str_, np.dtypes.StringDType()])
def test_odd_text_is_at_the_center(dtype):
    column = np.array(["7", " 3 ", *ODD_CELLS], dtype=dtype)
    feature = Numeric(center=5, scale=2).encode(column)
    assert feature.dtype == np.float32
    assert feature[:, 0].tolist() == [1.0, -1.0, *[0.0] * len(ODD_CELLS)]


def test_odd_numbers_are_at_the_center():
    column = np.array([7, None, 10**400, [], b"3", True, object()], dtype=object)
    feature = Numeric(center=5, scale=2).encode(column)
    assert feature[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0, -1.0, -2.0, 0.0]
    for dtype in (np.float64, np.float32, np.float16):
        column = np.array([7, np.nan, np.inf, -np.inf], dtype=dtype)
        assert Numeric(5, 2).encode(column)[:, 0].tolist() == [1.0, 0.0, 0.0, 0.0]
    for dtype in (np.int8, np.uint64, np.bool_):
        assert Numeric().encode(np.array([0, 1], dtype)).tolist() == [[0.0], [1.0]]
    assert Numeric(scale=1e-30).encode(np.array([1e30, 1e-30])).tolist() == [[0], [1]]
    cells, clipped = np.array(["1e30", "-7", "45", "", "inf"]), Numeric(40, 10, 0.75)
    assert clipped.encode(cells)[:, 0].tolist() == [0.75, -0.75, 0.5, 0, 0]


@pytest.mark.parametrize("dtype", [object, np.str_, np.bytes_])
def test_categories_are_compared_as_stripped_text(dtype):
    column = np.array(["b", " a ", "A", "", "?"], dtype=dtype)
    expected = [[0, 1], [1, 0], [0, 0], [0, 0], [0, 0]]
    assert Categorical(("a", "b")).encode(column).tolist() == expected


def test_no_cell_raises_or_warns():
    column = np.array([None, np.nan, b"\xff", [], "a"], dtype=object)
    assert Categorical(("a", "None!")).encode(column).sum() == 1
    cells = [10**5000, Fraction(10**5000), [10**5000], np.array([1]), Decimal("sNaN")]
    cells += [np.complex64(1j), Decimal("1e9999"), np.longdouble("1e4000"), "1" * 5000]
    cells += [SimpleNamespace(ndim=10**5000), None]
    for kind in (Numeric(), Categorical(("1",))):
        assert not kind.encode(np.array(cells, dtype=object)).any()


def test_a_record_is_encoded_by_itself():
    rng = np.random.default_rng(0)
    x = rng.standard_cauchy(50).astype(np.str_)
    columns = {"x": x, "c": rng.choice(["a", "b", "z"], 50)}
    schema = {"x": Numeric(1, 3), "c": Categorical(("a", "b"))}
    features, names = encode(columns, schema)
    part, _ = encode({k: v[:7] for k, v in columns.items()}, schema)
    assert names == ("x", "c=a", "c=b")
    assert features.shape == (50, 3)
    assert np.array_equal(features[:7], part)
    features, _ = encode({"x": np.array([], object)}, {"x": Numeric()})
    assert features.shape == (0, 1)


TWO, NUMBER = np.ones(2), {"x": Numeric()}
test_errors_are_of_the_schema = refused(
    lambda given: encode(*given),
    (({"x": TWO}, {}), "schema must be"),
    (({"x": TWO}, {"y": Numeric()}), r"got \['y'\]"),
    (({"x": TWO, "y": np.ones(3)}, NUMBER | {"y": Numeric()}), "columns must be of"),
    (({"x": np.ones((2, 2))}, NUMBER), "column must be"),
    (({"x": np.ones(2, complex)}, NUMBER), "column must be"),
    (({"x": np.ones(2, "M8[s]")}, {"x": Categorical(("a",))}), "column must be"),
)


ONES = [1, 1.0, True, "1", "1.0", "1.", "+1", "1.0e+00", " true ", "TRUE", b"1"]
ONES += [np.float32(1)]


@pytest.mark.parametrize("name", ["1", "1.0", "true"])
def test_one_is_one_however_it_is_written(name):
    kind = Categorical((name, "no"))
    cells = np.array([*ONES, "no"], dtype=object)
    assert kind.encode(cells)[:, 0].tolist() == [1.0] * len(ONES) + [0.0]
    assert kind.encode(np.array([True, False]))[:, 0].tolist() == [1, 0]
    assert kind.encode(np.array([1.0, np.nan], "f4"))[:, 0].tolist() == [1, 0]
    odd = np.array(["01", "1e0", "1E+00", "1_0", "one", "0", None, "nan"], dtype=object)
    assert not kind.encode(odd).any()


def test_what_is_missing_is_no_category():
    missing = [None, np.nan, pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("NaN"), " "]
    kind = Categorical(("NA", "None", "a"))
    assert not kind.encode(np.array(missing, object)).any()
    assert kind.encode(np.array(["NA", "None", "nan"])).sum() == 2  # if listed
    for frame in (pd.DataFrame({"x": ["a", None]}), pd.DataFrame({"x": ["a", np.nan]})):
        assert kind.encode(frame["x"].to_numpy(object))[:, 2].tolist() == [1, 0]


def test_codes_stay_apart():
    kind = Categorical(("01", "1"))
    assert kind.encode(np.array(["01", "1.0"])).tolist() == [[1, 0], [0, 1]]
    codes = ["250.1", "250.10", "250", "250.00", "1.5"]
    assert (Categorical(tuple(codes)).encode(np.array(codes)) == np.eye(5)).all()
    # In a column of numbers, and as programs write numbers, there is but one of each.
    cells = Categorical(("250.10", "1.5")).encode(np.array([250.1, 1.5, np.nan]))
    assert cells.tolist() == [[1, 0], [0, 1], [0, 0]]
    written = np.array(["1.5e+00", "2.500000000000000000e-01", "1.5"])
    cells = Categorical(("1.5", "0.25")).encode(written)
    assert cells.tolist() == [[1, 0], [0, 1], [1, 0]]


SIZES = {"adult": (32_561, 16_281, 105), "rand_hie": (16_190, 4_000, 29)}
loaded = functools.cache(datasets.load)  # for tests that change nothing


@pytest.mark.parametrize("name", SIZES)
def test_shapes_dtypes_and_scales(name):
    data = loaded(name)
    n, num_test, d = SIZES[data.name]
    arrays, again = (*data.train, *data.test), datasets.load(name)
    assert [x.shape for x in arrays] == [(n, d), (n,), (num_test, d), (num_test,)]
    for array, same in zip(arrays, (*again.train, *again.test), strict=True):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
        np.testing.assert_array_equal(array, same)
    assert len(set(data.feature_names)) == d
    assert data.feature_names[-1] == "intercept"
    assert np.all(data.features[:, -1] == 1)
    if data.task == "classification":
        assert set(np.unique(data.targets)) == {-1.0, 1.0}
    # Scales are not computed from the data, yet near it.
    assert data.features.std(axis=0).max() < 5


def test_adult_first_record():
    # The file says: age 39, education-num 13, capital-gain 2174, 40 hours a week.
    data = loaded("adult")
    record = dict(zip(data.feature_names, data.features[0].tolist(), strict=True))
    nonzero = {name: value for name, value in record.items() if value}
    ones = ["education-num", "workclass=State-gov", "education=Bachelors", "race=White"]
    ones += ["marital-status=Never-married", "occupation=Adm-clerical", "sex=Male"]
    ones += ["relationship=Not-in-family", "native-country=United-States", "intercept"]
    expected = dict.fromkeys(ones, 1.0) | {"age": -1 / 15, "capital-gain": 0.2174}
    assert nonzero == pytest.approx(expected)
    assert data.targets[0] == -1
    assert int((data.targets > 0).sum()) == 7_841
    assert int((data.test_targets > 0).sum()) == 3_846


def test_adult_lists_every_category_of_its_files():
    columns = read_columns(bundled("adult.data.gz"), _adult._FILE_COLUMNS)
    for name, kind in _adult.SCHEMA.items():
        if isinstance(kind, datasets.Categorical):
            assert set(columns[name]) - {"?"} <= set(kind.categories)


def test_rand_hie_targets_are_hundreds_of_dollars_and_no_outcome_is_a_feature():
    outcomes = {
        *("outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "totadm"),
        *("inpmis", "mentvis", "mdvis", "notmdvis", "lnmeddol", "binexp"),
    }
    assert not outcomes & set(_rand_hie.SCHEMA)
    data = loaded("rand_hie")
    targets = np.concatenate([data.targets, data.test_targets])
    assert targets.max() == pytest.approx(391.8202)
    assert targets.mean() == pytest.approx(1.7156790, rel=1e-5)
    with pytest.raises(ValueError, match="name must be one of adult, rand_hie"):
        datasets.load("iris")


def test_short_and_long_rows_are_read():
    columns = read_columns(b'a,b\n1, "x,y"\n\n2\n3,z,extra\n')
    assert columns["a"].tolist() == ["1", "2", "3"]
    assert columns["b"].tolist() == ["x,y", "", "z"]
    assert read_columns(b"a,b\n")["b"].shape == (0,)
