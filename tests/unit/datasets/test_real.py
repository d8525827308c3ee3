"""The bundled data sets: counts and encoding."""

import functools

import numpy as np
import pytest

from dpjax import datasets
from dpjax.datasets import _adult, _rand_hie
from dpjax.datasets._dataset import bundled, read_columns

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
