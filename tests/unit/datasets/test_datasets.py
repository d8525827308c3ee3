"""Columns to features by public constants; bundled data sets; synthetic problems.

Every law is compared with SciPy's: Kolmogorov-Smirnov with 20,000 samples and a fixed
key. A right law is rejected where p < 1e-4, so a fresh key would fail one test in ten
thousand; a wrong one, with other parameters, must reach p < 1e-9.
"""

import functools
import math
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax import datasets
from dpjax.datasets import Categorical, Numeric, _adult, _rand_hie
from dpjax.datasets._dataset import bundled, encode, read_columns
from dpjax.datasets._heavy_tailed import l1_ball_params
from tests.unit.refusals import refused

pd = pytest.importorskip("pandas")
ODD_CELLS = ["", "?", "abc", "nan", "inf", "-inf", "1e400", "1e300", "\x00", "1,5"]
SIZES = {"adult": (32_561, 16_281, 105), "rand_hie": (16_190, 4_000, 29)}
loaded = functools.cache(datasets.load)  # for tests that change nothing


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


def test_a_reference_has_no_feature():
    kind, cells = Categorical(("a", "1", "b"), "1"), np.array(["b", "1.0", "?", "a"])
    assert kind.encode(cells).tolist() == [[0, 1], [0, 0], [0, 0], [1, 0]]
    assert kind.indices(cells).tolist() == [2, 1, -1, 0]
    assert kind.is_read(cells).tolist() == [True, True, False, True]
    assert kind.names("c") == ("c=a", "c=b")
    assert kind.weights(np.array([2.0, 3.0])).tolist() == [2.0, 0.0, 3.0]


test_bad_references_are_refused = refused(
    lambda given: Categorical(*given),
    ((("a", "b"), "c"), r"reference must be one of two or more categories \(a, b\)"),
    ((("a",), "a"), "reference must be one of two or more"),
)
TWO, NUMBER = np.ones(2), {"x": Numeric()}
test_bad_schemas_and_columns_are_refused = refused(
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


def test_missing_cells_are_in_no_category():
    missing = [None, np.nan, pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("NaN"), " "]
    kind = Categorical(("NA", "None", "a"))
    assert not kind.encode(np.array(missing, object)).any()
    assert kind.encode(np.array(["NA", "None", "nan"])).sum() == 2  # if listed
    for frame in (pd.DataFrame({"x": ["a", None]}), pd.DataFrame({"x": ["a", np.nan]})):
        assert kind.encode(frame["x"].to_numpy(object))[:, 2].tolist() == [1, 0]


def test_codes_that_differ_are_different_categories():
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


@pytest.mark.parametrize("name", SIZES)
def test_bundled_data_are_finite_and_near_unit_scale(name):
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


def test_the_first_record_of_adult_is_that_of_its_file():
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


def test_short_rows_are_padded_and_long_ones_cut():
    columns = read_columns(b'a,b\n1, "x,y"\n\n2\n3,z,extra\n')
    assert columns["a"].tolist() == ["1", "2", "3"]
    assert columns["b"].tolist() == ["x,y", "", "z"]
    assert read_columns(b"a,b\n")["b"].shape == (0,)


# -- Laws and synthetic problems -------------------------------------------------------
NUM_SAMPLES = 20_000
FALSE_ALARM = 1e-4
# Law, its oracle, and an oracle with a wrong parameter.
LOG_NORMAL, ROOT = datasets.LogNormal(location=1.0, scale=1.0), 5**0.5
CENTERED = [stats.lognorm(1, shift - math.exp(1.5), math.e) for shift in (0, 0.5)]
CASES = [
    (datasets.Normal(1.0, ROOT), stats.norm(1, ROOT), stats.norm(1, 1.2 * ROOT)),
    (LOG_NORMAL, stats.lognorm(1, scale=math.e), stats.lognorm(1, scale=1.2 * math.e)),
    (datasets.StudentT(3.0), stats.t(3), stats.t(3, scale=1.2)),
    (datasets.StudentT(0.3), stats.t(0.3), stats.t(0.3, scale=1.4)),  # without a mean
    (datasets.StudentT(1e4), stats.norm(), stats.norm(scale=1.2)),
    (datasets.Pareto(1.5, 2.0), stats.pareto(1.5, scale=2), stats.pareto(1.8, scale=2)),
    (LOG_NORMAL.centered(), *CENTERED),
]


def check_law(law, oracle, wrong, key, names):
    """Checks samples, the mean, and the repr of a law by names of a module."""
    samples = law.sample(key, (NUM_SAMPLES,))
    assert samples.dtype == jnp.float32
    again = law.sample(jax.random.clone(key), (NUM_SAMPLES,))
    np.testing.assert_array_equal(samples, again)
    samples = np.asarray(samples, np.float64)
    assert stats.kstest(samples, oracle.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(samples, wrong.cdf).pvalue < 1e-9
    expected = oracle.mean() if math.isfinite(law.mean) else law.mean
    assert law.mean == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
    twin = eval(repr(law), names.copy())
    assert (twin, hash(twin)) == (law, hash(law))


@pytest.mark.parametrize(("law", "oracle", "wrong"), CASES, ids=lambda x: repr(x)[:30])
def test_samples_follow_the_law(law, oracle, wrong, key):
    check_law(law, oracle, wrong, key, vars(datasets))


def test_samples_are_finite_where_the_law_leaves_float32(key):
    samples = datasets.LogNormal(scale=100.0).sample(key, (200_000,))
    assert bool(jnp.all(jnp.isfinite(samples)))
    assert float(samples.max()) == float(jnp.finfo(jnp.float32).max)


def test_laws_of_other_parameters_differ_and_infinite_means_are_not_removed():
    assert datasets.Normal() not in (datasets.LogNormal(), datasets.Normal(scale=2.0))
    infinite = datasets.Pareto(tail_index=1.0), datasets.LogNormal(scale=100.0)
    student = datasets.StudentT(degrees_of_freedom=1.0)
    for law, mean in (*((law, math.inf) for law in infinite), (student, math.nan)):
        assert law.mean == pytest.approx(mean, nan_ok=True)
        with pytest.raises(ValueError, match="law must be"):
            law.centered()


def test_problems_are_repeated_by_one_vmap(key):
    model = datasets.linear_model
    problem = model(key, num_samples=50, num_features=7)
    again = model(jax.random.clone(key), num_samples=50, num_features=7)
    assert all(leaf.dtype == jnp.float32 for leaf in problem)
    assert all(np.array_equal(*pair) for pair in zip(problem, again, strict=True))
    assert problem.data == (problem.features, problem.targets)
    repeated = jax.vmap(lambda key: model(key, num_samples=50, num_features=7))
    problems = repeated(jax.random.split(jax.random.clone(key), 3))
    assert [leaf.shape for leaf in problems] == [(3, 50, 7), (3, 50), (3, 7)]
    assert not np.array_equal(problems.targets[0], problems.targets[1])


def test_linear_model_is_that_of_paper_001(key):
    problem = datasets.linear_model(key, num_samples=20_000, num_features=10)
    features, targets, true_params = (np.asarray(leaf, np.float64) for leaf in problem)
    noise = targets - features @ true_params
    law = stats.lognorm(1, loc=-math.exp(1.5), scale=math.e)
    assert stats.kstest(noise, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(features.ravel(), stats.norm.cdf).pvalue > FALSE_ALARM
    assert abs(true_params).sum() <= 1
    key = jax.random.clone(key)
    problem = datasets.linear_model(key, num_samples=50, num_features=7, noise_law=None)
    expected = np.asarray(problem.features) @ np.asarray(problem.true_params)
    np.testing.assert_allclose(problem.targets, expected, rtol=1e-5, atol=1e-6)


def test_l1_ball_params_are_uniform(key):
    draw = jax.jit(jax.vmap(lambda key: l1_ball_params(key, 4)))
    draws = draw(jax.random.split(key, 5_000))
    # The l1 norm of a uniform point of the ball in d dimensions has the law r^d.
    norms = np.abs(np.asarray(draws, np.float64)).sum(axis=1)
    assert stats.kstest(norms, stats.beta(4, 1).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(norms, stats.beta(5, 1).cdf).pvalue < 1e-9
    assert abs(np.sign(draws).mean()) < 4 / math.sqrt(20_000)
