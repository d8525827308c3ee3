"""How often the intervals of linear models and of quantiles hold the population's."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import populations
from benchmarks.coverage import LAWS, QUANTILE_LAWS, SIZES, are_too_many, misses, study
from dpjax.solvers.linear import _intervals


@pytest.mark.quick(2)
@pytest.mark.parametrize(("num_samples", "epsilon"), SIZES)
@pytest.mark.parametrize("name", LAWS)
def test_intervals_hold_the_truth(name, num_samples, epsilon, record_property):
    missed, total = misses(*study(name, num_samples, epsilon, 400)[:2])
    record_property("missed", missed.tolist())
    record_property("finite", total.tolist())
    assert not are_too_many(missed, total)
    if np.sum(total) > 2_000:
        assert 0.935 < 1 - np.sum(missed) / np.sum(total) < 0.985


@pytest.mark.quick(2)
@pytest.mark.parametrize(("num_samples", "epsilon"), SIZES)
@pytest.mark.parametrize("name", QUANTILE_LAWS)
def test_intervals_hold_the_quantiles(name, num_samples, epsilon, record_property):
    errors, found, alone = study(name, num_samples, epsilon, 400)
    missed, total = misses(errors, found)
    record_property("missed", missed.tolist())
    assert np.all(total == 400)
    assert not are_too_many(missed, total)
    assert np.all(np.median(found / alone, axis=0) < 2.5)


@pytest.mark.parametrize("name", ["skewed by a feature", "few positives"])
def test_some_intervals_hold_the_truth(name):
    missed, total = misses(*study(name, 12_000, 2.0, 60)[:2])
    assert np.all(total > 50)
    assert not are_too_many(missed, total)
    assert np.sum(missed) < 0.08 * np.sum(total)


def test_a_width_without_the_noise_is_seen(monkeypatch):
    release = _intervals.released_scores

    def without_noise(*args):
        scores = release(*args)
        return scores._replace(stddev=jnp.zeros_like(scores.stddev))

    monkeypatch.setattr(_intervals, "released_scores", without_noise)
    assert are_too_many(*misses(*study("normal", 12_000, 1.0, 60)[:2]))


def test_real_columns_are_populations(tmp_path, monkeypatch):
    monkeypatch.setattr(populations, "COLUMNS", [("adult", "age")])
    monkeypatch.setattr(populations, "EPSILONS", (5.0,))
    monkeypatch.setattr(populations, "NUM_SAMPLES", 4_000)
    (place,) = populations.places()
    rows, _ = populations.cell(8, 4, place)
    assert [name for *_, name in rows] == list(populations.STATISTICS)
    for (*_, name), row in rows.items():
        held, finite, plain = (np.array(row[x]) for x in ("held", "finite", "plain"))
        assert np.sum(held) >= 0.6 * np.sum(finite)
        assert np.sum(plain) >= 0.6 * 8 * len(plain)
        assert "groups" in name or (finite == 8).all()
        assert 0.5 < row["width"] < 20
    text = populations.table(rows)
    assert text.count("| adult, age | 5 |") == len(rows)
    assert populations.table({}) == ""
