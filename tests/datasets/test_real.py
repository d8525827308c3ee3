"""The real data sets: counts, encoding, and where their files come from."""

import functools
import gzip
import hashlib
import os

import numpy as np
import pytest

from dpjax import datasets
from dpjax.datasets import _adult, _files, _rand_hie

BUNDLED = ["adult", "rand_hie"]
EXTERNAL = ["blog_feedback", "credit_default", "belgian_motor"]
needs_data = pytest.mark.skipif(
    not os.environ.get("DPJAX_DATA"),
    reason="set DPJAX_DATA to the folder of data sets that are not bundled",
)
every_loader = pytest.mark.parametrize(
    "name", [*BUNDLED, *(pytest.param(name, marks=needs_data) for name in EXTERNAL)]
)
SIZES = {
    "adult": (32_561, 16_281, 105),
    "rand_hie": (16_190, 4_000, 29),
    "blog_feedback": (52_397, 7_624, 281),
    "credit_default": (24_000, 6_000, 33),
    "belgian_motor": (130_570, 32_642, 18),
}


loaded = functools.cache(datasets.load)  # for tests that change nothing


@every_loader
def test_shapes_dtypes_and_finiteness(name):
    data = loaded(name)
    num_train, num_test, num_features = SIZES[data.name]
    assert data.features.shape == (num_train, num_features)
    assert data.test_features.shape == (num_test, num_features)
    assert data.targets.shape == (num_train,)
    assert data.test_targets.shape == (num_test,)
    for array in (*data.train, *data.test):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
    assert len(set(data.feature_names)) == num_features
    assert data.feature_names[-1] == "intercept"
    assert np.all(data.features[:, -1] == 1)
    if data.task == "classification":
        assert set(np.unique(data.targets)) == {-1.0, 1.0}


@every_loader
def test_public_scales_suit_the_data(name):
    # Not computed from the data, yet near it: no column's spread passes 5 units.
    assert loaded(name).features.std(axis=0).max() < 5


@pytest.mark.parametrize("name", BUNDLED)
def test_loading_is_deterministic(name):
    first, second = datasets.load(name), datasets.load(name)
    pairs = zip((*first.train, *first.test), (*second.train, *second.test), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)


def test_adult_counts():
    data = loaded("adult")
    assert int((data.targets > 0).sum()) == 7_841
    assert int((data.test_targets > 0).sum()) == 3_846


def test_adult_first_record():
    # 39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family,
    # White, Male, 2174, 0, 40, United-States, <=50K
    data = loaded("adult")
    record = dict(zip(data.feature_names, data.features[0].tolist(), strict=True))
    nonzero = {name: value for name, value in record.items() if value}
    assert nonzero == pytest.approx(
        {
            "age": -1 / 15,
            "education-num": 1.0,
            "capital-gain": 0.2174,
            "workclass=State-gov": 1.0,
            "education=Bachelors": 1.0,
            "marital-status=Never-married": 1.0,
            "occupation=Adm-clerical": 1.0,
            "relationship=Not-in-family": 1.0,
            "race=White": 1.0,
            "sex=Male": 1.0,
            "native-country=United-States": 1.0,
            "intercept": 1.0,
        }
    )
    assert data.targets[0] == -1


def test_adult_lists_every_category_of_its_files():
    columns = _files.read_columns(_files.bundled("adult.data.gz"), _adult._FILE_COLUMNS)
    for name, kind in _adult.SCHEMA.items():
        if isinstance(kind, datasets.Categorical):
            assert set(columns[name]) - {"?"} <= set(kind.categories)


def test_rand_hie_keeps_outcomes_out_of_its_features():
    outcomes = {
        *("outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "totadm"),
        *("inpmis", "mentvis", "mdvis", "notmdvis", "lnmeddol", "binexp"),
    }
    assert not outcomes & set(_rand_hie.SCHEMA)


def test_rand_hie_targets_are_hundreds_of_dollars():
    data = loaded("rand_hie")
    targets = np.concatenate([data.targets, data.test_targets])
    assert targets.max() == pytest.approx(391.8202)
    assert targets.mean() == pytest.approx(1.7156790, rel=1e-5)


@pytest.mark.quick(1)
@needs_data
@pytest.mark.parametrize(
    ("name", "mean", "largest"),
    [
        ("blog_feedback", None, 142.4),
        ("belgian_motor", 0.16215088, 140.03242),
        ("credit_default", 2 * 0.2212 - 1, 1.0),
    ],
)
def test_targets_of_external_data(name, mean, largest):
    data = loaded(name)
    targets = np.concatenate([data.targets, data.test_targets]).astype(np.float64)
    assert targets.max() == pytest.approx(largest, rel=1e-5)
    if mean is not None:
        assert targets.mean() == pytest.approx(mean, rel=1e-5)


@needs_data
def test_belgian_motor_keeps_outcomes_out_of_its_features():
    names = loaded("belgian_motor").feature_names
    assert not {"claim", "nclaims", "amount", "average", "id"} & set(names)


@pytest.fixture
def empty_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("DPJAX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def remote_file(empty_machine):
    published = empty_machine / "published.txt"
    published.write_bytes(b"contents")
    return _files.DataFile(
        path="folder/file.txt",
        instructions="Ask for it.",
        address=published.as_uri(),
        sha256=hashlib.sha256(b"contents").hexdigest(),
    )


def test_a_file_is_fetched_once(remote_file, empty_machine):
    place = _files.locate(remote_file)
    (empty_machine / "published.txt").unlink()
    assert place == empty_machine / "cache" / "dpjax" / "folder" / "file.txt"
    assert _files.locate(remote_file) == place
    assert place.read_bytes() == b"contents"
    assert [entry.name for entry in place.parent.iterdir()] == ["file.txt"]


def test_a_wrong_checksum_leaves_nothing_behind(remote_file, empty_machine):
    (empty_machine / "published.txt").write_bytes(b"other contents")
    with pytest.raises(ValueError, match=r"sha256.*Ask for it.*DPJAX_DATA.*must be"):
        _files.locate(remote_file)
    assert not list((empty_machine / "cache" / "dpjax" / "folder").iterdir())


def test_a_failed_fetch_tells_where_to_put_the_file(remote_file, empty_machine):
    (empty_machine / "published.txt").unlink()
    with pytest.raises(OSError, match=r"could not be fetched.*Ask for it.*DPJAX_DATA"):
        _files.locate(remote_file)
    assert not list((empty_machine / "cache" / "dpjax" / "folder").iterdir())


def test_the_data_folder_comes_before_the_cache(
    remote_file, empty_machine, monkeypatch
):
    _files.locate(remote_file)
    mine = empty_machine / "mine" / "folder" / "file.txt"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    monkeypatch.setenv("DPJAX_DATA", str(empty_machine / "mine"))
    assert _files.locate(remote_file) == mine


def of_twitter(index):
    return ",".join(str(1000.0 * (index + 1) + column) for column in range(78))


def of_winnipeg(index):
    return ",".join([str(index % 7 + 1), *(str(10.0 * i) for i in range(1, 175))])


def of_year_prediction(index):
    return ",".join([str(1998 + index % 4), *("50.0",) * 12, *("-2000.0",) * 78])


# In the form of the archive's files, which are not on every machine.
IN_FORM = {
    "twitter": ("twitter/Twitter.data.gz", "", of_twitter, 20),
    "winnipeg": (
        "winnipeg/WinnipegDataset.txt.gz",
        ",".join(["label", *(f"f{i}" for i in range(1, 175))]) + "\n",
        of_winnipeg,
        600,
    ),
    "year_prediction": (
        "year_prediction/YearPredictionMSD.txt.gz",
        "",
        of_year_prediction,
        8,
    ),
}


@pytest.fixture(params=IN_FORM)
def in_form(request, empty_machine, monkeypatch):
    path, header, line, count = IN_FORM[request.param]
    place = empty_machine / "data" / path
    place.parent.mkdir(parents=True)
    text = header + "\n".join(line(index) for index in range(count)) + "\n"
    place.write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("DPJAX_DATA", str(empty_machine / "data"))
    monkeypatch.setattr("dpjax.datasets._year_prediction._NUM_TRAIN", 6)
    return datasets.load(request.param)


def test_files_of_the_archive_are_read(in_form):
    expected = {
        "twitter": ((16, 78), (4, 78), "regression"),
        "winnipeg": ((500, 175), (100, 175), "classification"),
        "year_prediction": ((6, 91), (2, 91), "classification"),
    }
    data = in_form
    assert (data.features.shape, data.test_features.shape, data.task) == expected[
        data.name
    ]
    first = dict(zip(data.feature_names, data.features[0].tolist(), strict=True))
    assert first["intercept"] == 1
    if data.name == "twitter":
        assert first["created-discussions-0"] == pytest.approx(1.0)
        assert first["author-increase-6"] == pytest.approx(1.013)
        assert first["attention-by-authors-0"] == pytest.approx(1014)
        assert first["active-discussions-6"] == pytest.approx(1.076)
        assert data.targets[0] == pytest.approx(1.077)
    elif data.name == "winnipeg":
        assert (first["f1"], first["f174"]) == (1, 174)
        assert data.targets[:7].tolist() == [-1, -1, -1, -1, -1, 1, -1]
    else:
        assert (first["timbre-mean-12"], first["timbre-covariance-78"]) == (1, -2)
        assert data.targets[:4].tolist() == [-1, -1, 1, 1]


@pytest.mark.parametrize(
    "name",
    ["credit_default", "belgian_motor", "twitter", "winnipeg", "year_prediction"],
)
@pytest.mark.usefixtures("empty_machine")
def test_a_file_without_an_address_says_how_to_obtain_it(name):
    with pytest.raises(FileNotFoundError, match="DPJAX_DATA"):
        datasets.load(name)


def test_a_table_of_another_form_is_an_error_of_the_schema(empty_machine, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA", str(empty_machine))
    place = empty_machine / "insurance" / "beMTPL97.csv.gz"
    place.parent.mkdir()
    place.write_bytes(gzip.compress(b"id,expo\n1,1.0\n"))
    with pytest.raises(ValueError, match="amount"):
        datasets.load("belgian_motor")


def test_the_name_of_no_data_set_is_refused():
    with pytest.raises(ValueError, match="name must be one of adult, rand_hie"):
        datasets.load("iris")


def test_short_and_long_rows_are_read():
    columns = _files.read_columns(b'a,b\n1, "x,y"\n\n2\n3,z,extra\n')
    assert columns["a"].tolist() == ["1", "2", "3"]
    assert columns["b"].tolist() == ["x,y", "", "z"]


def test_a_table_without_rows_is_read():
    assert _files.read_columns(b"a,b\n")["b"].shape == (0,)
