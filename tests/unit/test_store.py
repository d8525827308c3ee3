"""The states of a run in a folder: written whole, one run's, and one at a time."""

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


def test_arrays_of_any_type_come_back(tmp_path):
    with opened(tmp_path / "kept", RUN) as store:
        store.claim()
        assert (store.step, store.latest()) == (0, {})
        store.save(3, ARRAYS)
    with opened(tmp_path / "kept", RUN) as store:
        store.claim()
        found = store.latest()
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("name", ["_files.write_whole", "_store.sync"])
def test_a_state_that_was_not_finished_is_none(name, tmp_path, monkeypatch):
    class KilledError(Exception):
        pass

    def killed(*_, **__):
        raise KilledError

    with opened(tmp_path, RUN) as store:
        store.save(1, ARRAYS)
        monkeypatch.setattr(f"dpjax.{name}", killed)
        with pytest.raises(KilledError):
            store.save(2, ARRAYS)
        monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2.part"]
    with opened(tmp_path, RUN) as store:
        assert store.step == 1
        store.save(2, {})
        assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_what_is_no_state_stays(tmp_path):
    for name in ("1", "1.part", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("years of work")
    (tmp_path / "7").write_text("years of work")
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "0.npz").write_bytes(packed({}, RUN))
    before = {path for path in tmp_path.rglob("*") if path.name != "0.npz"}
    with pytest.raises(ValueError, match=r"one run's states alone, got .*7"):
        opened(tmp_path, RUN).__enter__()
    (tmp_path / "7").rename(tmp_path / "seven")
    with opened(tmp_path, RUN) as store:
        store.save(3, {})
    assert before - {tmp_path / "2", tmp_path / "7"} < {*tmp_path.rglob("*")}
