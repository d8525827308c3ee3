"""Data sets that are not bundled: counts, units, and where their files come from."""

import gzip
import os

import numpy as np
import pytest

from benchmarks import data as sources

SIZES = {  # training and test records, features, mean and largest target
    "blog_feedback": (52_397, 7_624, 281, None, 142.4),
    "credit_default": (24_000, 6_000, 33, 2 * 0.2212 - 1, 1.0),
    "belgian_motor": (130_570, 32_642, 18, 0.16215088, 140.03242),
}


@pytest.mark.skipif(
    not os.environ.get("DPJAX_DATA"),
    reason="set DPJAX_DATA to the folder of data sets that are not bundled",
)
@pytest.mark.parametrize("name", SIZES)
def test_data_sets_of_the_archive_have_their_sizes_and_units(name):
    data = sources.load(name)
    num_train, num_test, num_features, mean, largest = SIZES[name]
    assert data.features.shape == (num_train, num_features)
    assert data.test_features.shape == (num_test, num_features)
    for array in (*data.train, *data.test):
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
    assert len(set(data.feature_names)) == num_features
    assert not {"claim", "nclaims", "amount", "average", "id"} & {*data.feature_names}
    assert data.features.std(axis=0).max() < 5  # public scales are near those of data
    targets = np.concatenate([data.targets, data.test_targets]).astype(np.float64)
    assert targets.max() == pytest.approx(largest, rel=1e-5)
    if mean is not None:
        assert targets.mean() == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("name", sources.SOURCES)
def test_a_missing_file_says_how_to_obtain_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"not on this machine: (Take|Inst)"):
        sources.load(name)


def test_a_table_of_another_form_is_an_error_of_the_schema(tmp_path, monkeypatch):
    monkeypatch.setenv("DPJAX_DATA", str(tmp_path))
    place = tmp_path / "insurance" / "beMTPL97.csv.gz"
    place.parent.mkdir()
    place.write_bytes(gzip.compress(b"id,expo\n1,1.0\n"))
    with pytest.raises(ValueError, match="amount"):
        sources.load("belgian_motor")
