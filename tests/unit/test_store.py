"""The states of a run in a folder: written whole, one run's, and one at a time."""

from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax._store import opened, packed

RUN = {"data": "abc", "key": "def"}
ARRAYS = {
    "half": np.asarray(jnp.arange(6, dtype="bfloat16").reshape(2, 3)),
    "none": np.zeros((0, 3)),
    "one": np.array(7),
}


def test_arrays_of_any_type_are_loaded_as_they_were_saved(tmp_path):
    folder = tmp_path / "states"
    with opened(folder, RUN) as store:
        store.claim()
        assert (store.step, store.latest()) == (0, {})
        store.save(3, ARRAYS)
    with opened(folder, RUN) as store:
        store.claim()
        loaded = store.latest()
    assert list(loaded) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.parametrize("name", ["_files.write_whole", "_store.sync"])
def test_a_state_that_was_not_finished_is_not_loaded(name, tmp_path, monkeypatch):
    with opened(tmp_path, RUN) as store:
        store.save(1, ARRAYS)
        monkeypatch.setattr(f"dpjax.{name}", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.save(2, ARRAYS)
        monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2.part"]
    with opened(tmp_path, RUN) as store:
        assert store.step == 1
        store.save(2, {})
        assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_files_that_are_no_states_are_never_removed(tmp_path):
    for name in ("1", "1.part", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("years of work")
    (tmp_path / "7").write_text("years of work")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "0.npz").write_bytes(packed({}, RUN))
    before = {path for path in tmp_path.rglob("*") if path.name != "0.npz"}
    with pytest.raises(ValueError, match=r"only a run's states, got .*7"):
        opened(tmp_path, RUN).__enter__()
    (tmp_path / "7").rename(tmp_path / "seven")
    with opened(tmp_path, RUN) as store:
        store.save(3, {})
    assert before - {tmp_path / "2", tmp_path / "7"} < {*tmp_path.rglob("*")}
